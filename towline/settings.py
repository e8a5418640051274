"""All settings of a broker, in one frozen object. Flags, environment and the TOML file are derived from its fields."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from towline.errors import BadRequest
from towline.model import DELAY_LEVELS

__all__ = ["PREFIX", "BrokerSettings", "load_settings"]

PREFIX = "TOWLINE_"


def _help(text: str, **limits: Any) -> Any:
    return msgspec.Meta(description=text, **limits)


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field can be given as a flag (`--max-frame-bytes`), in the environment (`TOWLINE_MAX_FRAME_BYTES`) or in a
    TOML file (`max_frame_bytes = …`); the first of these that names it wins."""

    store: Annotated[str, _help("Where messages are kept: `memory:` or `file:DIR`.")] = "file:./data"
    listen: Annotated[str, _help("HOST:PORT to listen on; port 0 takes a free one.")] = "127.0.0.1:7400"
    name: Annotated[str, _help("The broker's name in logs and answers.", max_length=50)] = "towline"
    durability: Annotated[
        Literal["fsync", "os", "received"],
        _help(
            "What an acknowledged send or ack survives unless the sender asks otherwise: power loss (fsync), "
            "a killed broker (os), or nothing (received)."
        ),
    ] = "fsync"
    tokens_file: Annotated[
        str,
        _help("A file of `name = secret` lines: only clients that prove one of them may connect. Empty: anyone may."),
    ] = ""
    tls_cert: Annotated[str, _help("Certificate file (PEM); with --tls-key, the broker speaks TLS only.")] = ""
    tls_key: Annotated[str, _help("Key file (PEM) of the certificate.")] = ""
    allow_remote: Annotated[
        bool, _help("Listen on other addresses than loopback although no tokens are set: anyone there may do anything.")
    ] = False
    auto_create_topics: Annotated[
        bool, _help("Make a topic upon the first send to it, with the settings of the template topic.")
    ] = True
    auto_create_groups: Annotated[bool, _help("Make a group upon its first use.")] = True
    retention_s: Annotated[
        float, _help("Messages older than this are dropped, consumed or not; 0 keeps them for ever.", ge=0)
    ] = 7 * 86400.0
    retention_bytes: Annotated[
        int, _help("The oldest messages are dropped when the store is larger than this; 0 is no limit.", ge=0)
    ] = 0
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
    max_connections: Annotated[int, _help("Connections at a time.", ge=1, le=100_000)] = 2_000
    max_frame_bytes: Annotated[int, _help("The largest batch a producer may send.", ge=1 << 10, le=64 << 20)] = 16 << 20
    max_pending_bytes: Annotated[
        int, _help("Bytes a connection may have on the way in either direction before it is paused.", ge=64 << 10)
    ] = 32 << 20
    handshake_s: Annotated[float, _help("How long a new connection may take to introduce itself.", gt=0, le=300)] = 5.0
    idle_s: Annotated[
        float, _help("A half-sent request, or an answer nobody reads, closes the connection after this long.", gt=0)
    ] = 60.0
    dedup_window_s: Annotated[
        float, _help("A message with a dedup id that came this long ago or less is not stored again.", ge=0, le=86400)
    ] = 600.0
    dedup_max_ids: Annotated[
        int, _help("Dedup ids remembered; if more come within the window, the oldest are forgotten.", ge=1)
    ] = 100_000
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
    drain_s: Annotated[float, _help("How long a stopping broker waits for running requests.", ge=0, le=600)] = 10.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _help("What is logged to stderr.")] = "info"


def load_settings(
    given: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """Settings from a TOML file, overlaid by the environment, overlaid by what was `given`; a None does not count."""
    merged: dict[str, Any] = {}
    if file is not None:
        merged.update(_from_toml(file))
    names = {field.name: field for field in msgspec.structs.fields(BrokerSettings)}
    for name in names:
        text = (os.environ if environment is None else environment).get(PREFIX + name.upper())
        if text is not None:
            merged[name] = text
    merged.update({name: value for name, value in (given or {}).items() if value is not None})
    try:
        return msgspec.convert(merged, BrokerSettings, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"settings: {error}") from None


def _from_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise BadRequest(f"settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"settings file {file}: {error}") from None
