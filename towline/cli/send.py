"""`towline send`: messages from an argument, from files, or from stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from towline.cli.delivery_time import when
from towline.cli.options import Connection, Usage
from towline.cli.output import Format, Output, many, note, print_json, stamp
from towline.cli.times import Duration
from towline.errors import BadRequest, TooLarge, TowlineError
from towline.model import Priority, Receipt

if TYPE_CHECKING:
    from towline.client._sync.client import Client

__all__ = ["send"]

BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 << 20
LINE_MAX = 16 << 20


@Parameter(name="*")
@dataclass(frozen=True)
class Bodies:
    """The source of the messages, other than an argument."""

    file: Annotated[
        tuple[Path, ...],
        Parameter(
            name=("--file", "-f"),
            consume_multiple=True,
            negative=(),
            show_default=False,
            help="Send each of these files as a message.",
        ),
    ] = ()
    whole: Annotated[bool, Parameter(negative=(), show_default=False, help="Send all of stdin as one message.")] = False

    def is_single(self, body: str | None) -> bool:
        return len(self.file) == 1 or (not self.file and (self.whole or body not in (None, "-")))

    def batches(self, body: str | None) -> Iterator[list[bytes]]:
        from_stdin = body is None or body == "-"
        if self.file and (body is not None or self.whole):
            raise Usage("give the message as an argument, with --file, or on stdin: one of them")
        if self.whole and not from_stdin:
            raise Usage("--whole is for a message on stdin")
        if self.file:
            return ([_read(path)] for path in self.file)
        if not from_stdin:
            # Arguments that are not UTF-8 come as surrogates, and leave as the bytes they were.
            return iter([[os.fsencode(body or "")]])
        if sys.stdin.isatty():
            what = "one message" if self.whole else "one message per line"
            note(f"reading {what} from the terminal; end with Ctrl-D")
        return iter([[sys.stdin.buffer.read()]]) if self.whole else _lines(sys.stdin.fileno())


@Parameter(name="*")
@dataclass(frozen=True)
class Labels:
    """Properties that are kept with a message."""

    key: Annotated[str | None, Parameter(name=("--key", "-k"), help="A business reference, kept with the message.")] = (
        None
    )
    header: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--header", "-H"),
            negative=(),
            show_default=False,
            help="`NAME=VALUE`, kept with the message; can be repeated.",
        ),
    ] = ()
    shard_key: Annotated[
        str | None,
        Parameter(
            help="In an ordered topic, messages with the same shard key stay in order; without it, the key counts."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        return {"key": self.key, "headers": _headers(self.header), "shard_key": self.shard_key}


@Parameter(name="*")
@dataclass(frozen=True)
class Handling:
    """Handling of a message by its consumers."""

    ttl: Annotated[
        Duration | None, Parameter(help="What is not consumed after so long (`30s`) is not delivered any more.")
    ] = None
    timeout: Annotated[
        Duration | None,
        Parameter(help="A handler that works on it for longer than this (`30s`) is interrupted, and it failed."),
    ] = None
    attempts: Annotated[
        int | None,
        Parameter(
            help="How often it is tried before it goes to the dead letters; without it, as the retry policy of each "
            "group says."
        ),
    ] = None
    priority: Annotated[Priority, Parameter(name=("--priority", "-p"), help="Which lane of the topic it goes to.")] = (
        "middle"
    )

    def options(self) -> dict[str, Any]:
        return {"ttl": self.ttl, "timeout": self.timeout, "attempts": self.attempts, "priority": self.priority}


@Parameter(name="*")
@dataclass(frozen=True)
class Delivery:
    """The time of delivery."""

    delay: Annotated[
        Duration | None, Parameter(help="Deliver it so long after the broker has it, for example `30s`.")
    ] = None
    at: Annotated[
        str | None,
        Parameter(
            help="Deliver it at this time: `2026-05-01T12:00` in this machine's time zone, `2026-05-01T12:00Z` in UTC, "
            "or Unix time."
        ),
    ] = None
    delay_level: Annotated[
        int | None, Parameter(help="Deliver it after a delay of the broker's table, by number: 1 is 1s, 18 is 2h.")
    ] = None

    def options(self) -> dict[str, Any]:
        return when(self.delay, self.at, self.delay_level)


def send(
    topic: Annotated[str, Parameter(help="The topic to send to.")],
    body: Annotated[
        str | None, Parameter(help="The message. Without it, or with `-`, every line of stdin is one.")
    ] = None,
    /,
    *,
    bodies: Bodies = Bodies(),  # noqa: B008 it is frozen
    labels: Labels = Labels(),  # noqa: B008
    handling: Handling = Handling(),  # noqa: B008
    delivery: Delivery = Delivery(),  # noqa: B008
    durability: Annotated[
        Literal["fsync", "os", "received"] | None,
        Parameter(
            help="What the acknowledged message must survive: power loss (fsync), a killed broker (os) or nothing "
            "(received). Without it, the broker decides."
        ),
    ] = None,
    dedup_id: Annotated[
        str | None,
        Parameter(help="Send it once: if a message with this id came to the topic lately, print the id of that one."),
    ] = None,
    transaction: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Store all messages together or not at all: at the end of stdin."
        ),
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Send messages.

    Prints the id of a single message, the number of many, or with `-o json` a receipt for each. A printed receipt means
    that the broker has the message and that it survives what --durability says.

        towline send orders 'one message'

        tail -f app.log | towline send logs

        towline send scans --file page-1.png page-2.png

        towline send orders --transaction < batch.txt

        towline send reminders 'pay your bill' --delay 30m
    """
    if dedup_id is not None and not bodies.is_single(body):
        raise Usage("--dedup-id is for a single message: give it as an argument, with --whole or with one --file")
    options: dict[str, Any] = {"durability": durability, "dedup_id": dedup_id}
    options |= labels.options() | handling.options() | delivery.options()
    batches = bodies.batches(body)
    with connection.connect() as client:
        if transaction:
            _send_together(client, topic, batches, options, output)
        else:
            _send(client, topic, batches, options, output)


def _headers(texts: Sequence[str]) -> dict[str, str] | None:
    headers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"--header {text!r} is not NAME=VALUE")
        headers[name] = value
    return headers or None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None


def _lines(descriptor: int) -> Iterator[list[bytes]]:
    """The lines so far, as often as some come: many while they pour in, and each at once when they trickle."""
    rest = b""
    while block := os.read(descriptor, BATCH_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LINE_MAX:
            raise TooLarge(f"a line is longer than {LINE_MAX} bytes; send large messages with --file or --whole")
        for at in range(0, len(lines), BATCH_MESSAGES):
            yield lines[at : at + BATCH_MESSAGES]
    if rest:
        yield [rest]


def _send(client: Client, topic: str, batches: Iterator[list[bytes]], options: dict[str, Any], output: Format) -> None:
    sent = 0
    only = ""
    for bodies in batches:
        try:
            receipts = _send_batch(client, topic, bodies, options)
        except TowlineError as error:
            if sent:
                raise type(error)(f"{error} ({many(sent, 'message')} sent before)") from error
            raise
        sent += len(bodies)
        if isinstance(receipts, list):
            only = receipts[0].id
        if output == "json":
            for each in receipts:
                print_json(_facts(each), flush=False)
            sys.stdout.buffer.flush()
    if output == "text":
        print(only if sent == 1 else f"sent {many(sent, 'message')}")


def _send_together(
    client: Client, topic: str, batches: Iterator[list[bytes]], options: dict[str, Any], output: Format
) -> None:
    options = dict(options)
    # Lines that are typed or piped take as long as they take.
    with client.transaction(timeout=None, durability=options.pop("durability")) as tx:
        for bodies in batches:
            for body in bodies:
                tx.send(topic, body, **options)
    if output == "json":
        for each in tx.receipts:
            print_json(_facts(each), flush=False)
        sys.stdout.buffer.flush()
    else:
        print(tx.receipts[0].id if len(tx) == 1 else f"sent {many(len(tx), 'message')} in one transaction")


def _send_batch(client: Client, topic: str, bodies: list[bytes], options: dict[str, Any]) -> Iterable[Receipt]:
    if len(bodies) == 1:
        return [client.send(topic, bodies[0], **options)]
    key, headers, shard_key = options["key"], options["headers"], options["shard_key"]
    apart = ("key", "headers", "dedup_id", "shard_key")
    others = {name: value for name, value in options.items() if name not in apart}
    return client.send_many(
        topic,
        bodies,
        keys=[key] * len(bodies) if key else None,
        headers=[headers] * len(bodies) if headers else None,
        shard_keys=[shard_key] * len(bodies) if shard_key else None,
        **others,
    )


def _facts(receipt: Receipt) -> dict[str, object]:
    return {
        "id": receipt.id,
        "topic": receipt.topic,
        "lane": receipt.lane,
        "seq": receipt.seq,
        "appended_at": stamp(receipt.appended_at_us),
    }
