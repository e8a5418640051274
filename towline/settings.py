"""All settings of a broker, in one frozen object. Flags, environment and the TOML file are derived from its fields."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from towline.errors import BadRequest
from towline.model import DELAY_LEVELS

__all__ = ["GONE", "PREFIX", "BrokerSettings", "load_settings", "misspelt_variables"]

PREFIX = "TOWLINE_"
GONE = {
    "tokens_file": "there is one way to say who may come in: set security (--security), and declare the tokens and "
    "what they may in a TOML file that access_file (--access-file) names, see docs/security.md",
}
"""Removed settings, and their replacements. To ignore one would let in whoever it kept out."""
_OF_CLIENTS = ("TOWLINE_URL", "TOWLINE_TOKEN", "TOWLINE_SECRET", "TOWLINE_SECRET_FILE")


def _help(text: str, **limits: Any) -> Any:
    return msgspec.Meta(description=text, **limits)


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field can be given as a flag (`--max-frame-bytes`), in the environment (`TOWLINE_MAX_FRAME_BYTES`) or in a
    TOML file (`max_frame_bytes = …`); the first of these that names it wins."""

    store: Annotated[
        str, _help("Where messages are kept: `memory:`, `file:DIR` or `mysql://USER@HOST:PORT/DATABASE`.")
    ] = "file:./data"
    store_password_file: Annotated[str, _help("A file that holds the database's password (mysql store).")] = ""
    store_tls_ca: Annotated[
        str, _help("Certificates (PEM) to check the database's with; its connections are encrypted then (mysql store).")
    ] = ""
    store_wait_s: Annotated[
        float,
        _help(
            "How long a request waits for a database that does not answer, before it is refused (mysql store).", ge=0
        ),
    ] = 10.0
    listen: Annotated[str, _help("HOST:PORT to listen on; port 0 takes a free one.")] = "127.0.0.1:7400"
    name: Annotated[str, _help("The broker's name in logs and answers.", max_length=50)] = "towline"
    durability: Annotated[
        Literal["fsync", "os", "received"],
        _help(
            "What an acknowledged send or ack survives unless the sender asks otherwise: power loss (fsync), "
            "a killed broker (os), or nothing (received)."
        ),
    ] = "fsync"
    security: Annotated[
        bool,
        _help(
            "Ask who is calling, and refuse what no rule allows: users, tokens and rules are kept in the store "
            "(`towline user`, `token`, `acl`). The first start writes a one-time setup secret to a file."
        ),
    ] = False
    access_file: Annotated[
        str,
        _help(
            "With security, a TOML file of tokens and what they may, read at each start, besides those of the store: "
            "for brokers that nobody sets up by hand."
        ),
    ] = ""
    setup_file: Annotated[
        str, _help("Where the setup secret is written; empty: `setup-secret` in the store's folder, or here.")
    ] = ""
    audit_file: Annotated[
        str,
        _help("Where the audit log is written; empty: with security, `audit.jsonl` in the folder of a file store."),
    ] = ""
    audit_max_bytes: Annotated[
        int,
        _help(
            "So much of the audit log is kept, in several files; what is older goes, and a line says so. 0 is all.",
            ge=0,
        ),
    ] = 1 << 30
    tls_cert: Annotated[str, _help("Certificate file (PEM); with --tls-key, the broker speaks TLS only.")] = ""
    tls_key: Annotated[str, _help("Key file (PEM) of the certificate.")] = ""
    tls_client_ca: Annotated[
        str, _help("A file of authorities (PEM): clients must show a certificate that one of them vouches for.")
    ] = ""
    tls_client_optional: Annotated[
        bool, _help("With --tls-client-ca, let clients in without a certificate, too: by their token.")
    ] = False
    allow_remote: Annotated[
        bool, _help("Listen on other addresses than loopback without security: anyone there may do anything.")
    ] = False
    metrics: Annotated[
        str, _help("HOST:PORT where /metrics (Prometheus) and /health are served over HTTP. Empty: nowhere.")
    ] = ""
    metrics_hosts: Annotated[
        str,
        _help(
            "Names by which /metrics is asked for without security, with commas between, besides addresses, localhost "
            "and the broker's own: a page that a browser has from elsewhere must not read it by a name of its own.",
            max_length=10_000,
        ),
    ] = ""
    auto_create_topics: Annotated[
        bool, _help("Make a topic upon the first send to it, with the settings of the template topic.")
    ] = True
    auto_create_groups: Annotated[bool, _help("Make a group upon its first use.")] = True
    group_expiry_s: Annotated[
        float,
        _help(
            "A group that nobody has used for this long is removed, with its dead letters; that is said beforehand. 0 "
            "is never.",
            ge=0,
        ),
    ] = 0.0
    broadcast_expiry_s: Annotated[
        float,
        _help(
            "The same for the position of a broadcast consumer with a name (`name=`), which may be gone for good.", ge=0
        ),
    ] = 7 * 86400.0
    retention_s: Annotated[
        float, _help("Messages older than this are dropped, consumed or not; 0 keeps them for ever.", ge=0)
    ] = 7 * 86400.0
    retention_bytes: Annotated[
        int, _help("The oldest messages are dropped when the store is larger than this; 0 is no limit.", ge=0)
    ] = 0
    holds: Annotated[
        str,
        _help(
            "Retention waits for these, by name, separated by commas: an archive that is made with `--hold NAME`. They "
            "say in `hold-NAME.json` how far they have come."
        ),
    ] = ""
    hold_max_s: Annotated[
        float, _help("How much longer than retention asks for a hold keeps messages; then they go all the same.", ge=0)
    ] = 3 * 86400.0
    hold_max_bytes: Annotated[
        int, _help("How much more than `retention_bytes` a hold keeps; then the oldest go all the same.", ge=0)
    ] = 10 << 30
    open_max_s: Annotated[
        float,
        _help(
            "How much longer than retention asks for messages are kept that a consumer holds or that are tried again; "
            "then they go all the same.",
            ge=0,
        ),
    ] = 86400.0
    open_max_bytes: Annotated[
        int,
        _help(
            "How much more than `retention_bytes` is kept because of such messages; then the oldest of them go all the "
            "same.",
            ge=0,
        ),
    ] = 10 << 30
    maintenance_s: Annotated[float, _help("How often retention and snapshots run.", gt=0, le=3600)] = 10.0
    segment_bytes: Annotated[int, _help("Size of a file of the message log (file store).", ge=64 << 10, le=2 << 30)] = (
        128 << 20
    )
    min_free_bytes: Annotated[
        int, _help("Producers are refused while the disk has less than this free (file store).", ge=0)
    ] = 64 << 20
    capacity_messages: Annotated[int, _help("How many messages the memory store holds.", ge=1)] = 1_000_000
    capacity_bytes: Annotated[int, _help("How many bytes the memory store holds.", ge=1 << 10)] = 256 << 20
    heartbeat_s: Annotated[
        float, _help("A consumer not heard of for this long loses what it holds.", ge=0.05, le=3600)
    ] = 30.0
    reconnect_grace_s: Annotated[
        float,
        _help(
            "What a consumer holds is kept this long after its connection broke, so that it can come back.", ge=0, le=60
        ),
    ] = 0.5
    delay_levels: Annotated[
        str, _help("The delays that a producer asks for by number: level 1, level 2, and so on.", max_length=1000)
    ] = DELAY_LEVELS
    group_start: Annotated[
        Literal["earliest", "latest"],
        _help("Where a new group begins, unless its first consumer or its topic says: with all there is, or anew."),
    ] = "earliest"
    max_connections: Annotated[int, _help("Connections at a time.", ge=1, le=100_000)] = 2_000
    max_gone_streams: Annotated[
        int,
        _help(
            "Streams of deleted topics and groups whose names and next numbers are remembered, at about 1 KB of memory "
            "each; beyond, no topic or group of a new name is made.",
            ge=1,
        ),
    ] = 100_000
    max_frame_bytes: Annotated[int, _help("The largest batch a producer may send.", ge=1 << 10, le=64 << 20)] = 16 << 20
    max_pending_bytes: Annotated[
        int, _help("Bytes a connection may have on the way in either direction before it is paused.", ge=64 << 10)
    ] = 32 << 20
    max_pending_total_bytes: Annotated[
        int,
        _help(
            "Bytes that all connections together may have on their way to the store before they are paused.", ge=1 << 20
        ),
    ] = 256 << 20
    max_unread_total_bytes: Annotated[
        int,
        _help(
            "Bytes of answers that all clients together may leave unread; beyond, those that stand still are closed, "
            "the one with most first.",
            ge=1 << 20,
        ),
    ] = 256 << 20
    handshake_s: Annotated[float, _help("How long a new connection may take to introduce itself.", gt=0, le=300)] = 5.0
    idle_s: Annotated[
        float, _help("A half-sent request, or an answer nobody reads, closes the connection after this long.", gt=0)
    ] = 60.0
    dedup_window_s: Annotated[
        float, _help("A message with a dedup id that came this long ago or less is not stored again.", ge=0, le=86400)
    ] = 600.0
    dedup_max_ids: Annotated[
        int,
        _help(
            "Dedup ids remembered, which take some 200 bytes of memory each, 300 at most, and the length of the id and "
            "its topic; if more come within the window, the oldest are forgotten early, and that is said.",
            ge=1,
        ),
    ] = 2_000_000
    tx_check_after_s: Annotated[
        float,
        _help(
            "A prepared transaction is asked after when nothing was heard of it for this long; again after twice the "
            "time, and so on.",
            ge=0.05,
            le=86400,
        ),
    ] = 60.0
    tx_max_checks: Annotated[
        int, _help("A prepared transaction asked after this often in vain is parked: resolve it by hand.", ge=1, le=100)
    ] = 15
    join: Annotated[
        str,
        _help(
            "Brokers of the cluster to join, as HOST:PORT,…; one that is there is enough, this broker may be among "
            "them.",
            max_length=10_000,
        ),
    ] = ""
    advertise: Annotated[
        str,
        _help(
            "HOST:PORT by which clients and other brokers reach this one, if it is not the one of --listen.",
            max_length=300,
        ),
    ] = ""
    realms: Annotated[
        int,
        _help(
            "Into how many parts brokers that share a database divide its topics; each is served by one of them at a "
            "time. The same for all of them, and for good.",
            ge=1,
            le=64,
        ),
    ] = 1
    cluster_token: Annotated[str, _help("The token by which this broker is known to the others.", max_length=64)] = ""
    cluster_secret_file: Annotated[str, _help("A file with the secret of --cluster-token.")] = ""
    cluster_ca_file: Annotated[
        str, _help("A file of certificates (PEM) that vouch for the other brokers, if they speak TLS.")
    ] = ""
    cluster_beat_s: Annotated[
        float, _help("How often brokers beat; one not heard of for three beats counts as silent.", ge=0.05, le=60)
    ] = 1.0
    cluster_gone_s: Annotated[float, _help("A broker not heard of for this long is gone.", ge=0.2, le=86400)] = 30.0
    console: Annotated[
        str,
        _help("HOST:PORT of the web console that is started beside the broker, or `off`; port 0 takes a free one."),
    ] = "127.0.0.1:7480"
    http_connections_per_address: Annotated[
        int,
        _help(
            "Connections that one address may have to the console beside the broker, and to --metrics; a proxy in "
            "front of it counts as one. 0 is no limit but the one in all.",
            ge=0,
        ),
    ] = 200
    business_lines: Annotated[
        str,
        _help(
            "Business lines in the order in which lists show them, with commas between; others follow by name.",
            max_length=10_000,
        ),
    ] = ""
    smtp: Annotated[str, _help("HOST:PORT of the mail server that takes alarm e-mails. Empty: none are sent.")] = ""
    smtp_tls: Annotated[Literal["starttls", "tls", "none"], _help("How the mail server is spoken to.")] = "starttls"
    smtp_from: Annotated[str, _help("The sender of alarm e-mails.", max_length=200)] = "towline@localhost"
    smtp_user: Annotated[str, _help("Who logs in at the mail server. Empty: nobody does.", max_length=200)] = ""
    smtp_password_file: Annotated[str, _help("A file with the password for the mail server.")] = ""
    webhook_allow: Annotated[
        str,
        _help(
            "Webhooks of alarms may go to these networks, addresses and hosts, with commas between, though they are of "
            "this machine, link-local, or where a cloud gives out credentials.",
            max_length=10_000,
        ),
    ] = ""
    gateways: Annotated[
        str,
        _help(
            "Addresses and networks of consoles and REST doors on other machines, with commas between: wrong passwords "
            "from there are counted by the addresses of those for whom they ask, as from loopback.",
            max_length=10_000,
        ),
    ] = ""
    alarm_wait_s: Annotated[float, _help("Alarms that begin within this time are told together.", ge=0, le=3600)] = 30.0
    drain_s: Annotated[float, _help("How long a stopping broker waits for running requests.", ge=0, le=600)] = 10.0
    exit_on_store_failure: Annotated[
        bool,
        _help(
            "End with exit code 1 when the store takes no more writes, for a supervisor that starts the broker anew. "
            "Otherwise the broker stays, refuses, and says why. On `mysql:` it changes nothing: a broker alone always "
            "ends then, and with --join it lets go of the realm and stays."
        ),
    ] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _help("What is logged to stderr.")] = "info"


class _Given(NamedTuple):
    value: Any
    source: str
    """Its source, in words: a flag, a variable, a file."""


def load_settings(
    given: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given_as: Callable[[str], str] = lambda name: f"flag --{name.replace('_', '-')}",
) -> BrokerSettings:
    """Settings from a TOML file, overlaid by the environment, overlaid by what was `given`; a None does not count.
    `given_as` is the name of a given setting for error texts."""
    merged: dict[str, _Given] = {}
    if file is not None:
        merged.update({name: _Given(value, f"file {file}") for name, value in _from_toml(file).items()})
    variables = os.environ if environment is None else environment
    for name in [*_names(), *GONE]:
        text = variables.get(PREFIX + name.upper())
        if text is not None:
            merged[name] = _Given(text, f"variable {PREFIX}{name.upper()}")
    for name, value in (given or {}).items():
        if value is not None:
            merged[name] = _Given(value, given_as(name))
    return BrokerSettings(**{name: _checked(name, each) for name, each in merged.items()})


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is nearly the name of a setting, and so has no effect."""
    known = _names()
    said = []
    for name in environment:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() not in known and name not in _OF_CLIENTS:
            close = get_close_matches(name.removeprefix(PREFIX).lower(), known, 1, 0.8)
            if close:
                said.append(f"variable {name} has no effect: did you mean {PREFIX}{close[0].upper()}?")
    return said


def _names() -> list[str]:
    return [field.name for field in msgspec.structs.fields(BrokerSettings)]


def _checked(name: str, given: _Given) -> Any:
    if name in GONE:
        raise BadRequest(f"setting {name} ({given.source}) is no more: {GONE[name]}")
    kind = get_type_hints(BrokerSettings, include_extras=True).get(name)
    if kind is None:
        raise BadRequest(f"unknown setting {name!r} ({given.source}){_hint(name, given.value)}")
    try:
        return msgspec.convert(given.value, kind, strict=False)
    except msgspec.ValidationError:
        shown = repr(given.value)
        shown = shown if len(shown) <= 100 else shown[:100] + "…"
        raise BadRequest(f"setting {name} ({given.source}) cannot be {shown}: give {_allowed(kind)}") from None


def _hint(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f": settings stand at the top of the file, not in a table; remove the line [{name}]"
    close = get_close_matches(name.replace("-", "_").lower(), _names(), 1, 0.7)
    if not close:
        return ""
    if close[0] == name.replace("-", "_"):
        return f": write it with underscores, {close[0]}"
    return f": did you mean {close[0]}?"


def _allowed(kind: Any) -> str:
    """The allowed values of a setting, in words."""
    type_, meta = get_args(kind)
    if get_origin(type_) is Literal:
        return "one of " + ", ".join(get_args(type_))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[type_]
    bounds = (("more than", meta.gt), ("at least", meta.ge), ("less than", meta.lt), ("at most", meta.le))
    limits = [f"{word} {bound:,}" for word, bound in bounds if bound is not None]
    if meta.max_length is not None:
        limits.append(f"at most {meta.max_length} characters")
    return f"{words} of {' and '.join(limits)}" if limits else words


def _from_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise BadRequest(f"settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"settings file {file}: {error}") from None
