"""The options of `format("towline")`, checked."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from towline.errors import BadRequest
from towline.model import Durability, check_group, check_topic
from towline.spark.plan import Position, Selection, parse_position
from towline.spark.range_reader import BATCH_ROWS
from towline.spark.sources import ReadSource

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS", "ReadOptions", "WriteOptions"]

_DOOR: Final = ("url", "path", "token", "secret", "secretFile", "caFile", "certFile", "keyFile", "timeout")
READ_OPTIONS: Final = (
    *_DOOR,
    *("broker", "topic", "kind", "lane", "group", "columns", "from", "to", "key", "rowsPerPartition", "batchRows"),
    *("skipDamaged", "failOnDataLoss", "pushFilters", "maxMessagesPerTrigger", "maxBytesPerTrigger", "progressGroup"),
)
WRITE_OPTIONS: Final = (*_DOOR, "topic", "priority", "mode", "txnId", "rerun", "durability", "compress", "frameRows")
DAY_US: Final = 86_400 * 1_000_000
"""The clocks of a driver and of a broker may be apart by this much."""
_SPARKS: Final = {"checkpointlocation", "queryname", "outputmode", "provider", "__partition_columns"}
"""Options that Spark itself adds."""


class ReadOptions(NamedTuple):
    door: ReadSource
    selection: Selection
    begin: Position
    stop: Position
    key: str | None
    rows: int
    """The rows of a range at most; 0 is automatic."""
    batch_rows: int
    skip_damaged: bool
    fail_on_data_loss: bool
    push_filters: bool
    max_messages: int
    max_bytes: int
    progress_group: str
    columns: tuple[str, ...] = ()
    """All, if none is named."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, batch: bool = False, streaming: bool = False) -> ReadOptions:
        """For a batch, for a stream, or before it is known for which."""
        options = _Given(given, READ_OPTIONS)
        door = options.door()
        selection = Selection.parse(
            options.text("topic"), options.text("kind", "messages"), options.text("lane"), options.text("group")
        )
        if streaming and selection.kind != "messages":
            raise BadRequest(f"option kind={selection.kind}: a stream reads messages; read this with spark.read")
        if streaming and options.has("to"):
            raise BadRequest("option to: a stream has no end; use spark.read, or the trigger availableNow")
        if selection.kind == "messages" and ((streaming and selection.groups) or len(selection.groups) > 1):
            raise BadRequest("option group: with messages, name one group, whose attempts are told, in spark.read only")
        begin = parse_position(options.text("from", "earliest"), "from")
        stop = parse_position(options.text("to", "latest"), "to")
        if selection.kind == "schedule" and (options.has("from") or options.has("to")):
            raise BadRequest("options from and to: what waits for its time has no numbers; read all, and filter")
        _check_bounds(begin, stop, batch=batch)
        group = options.text("progressGroup")
        if group and not door.url:
            raise BadRequest("option progressGroup: progress is told to a broker: give its url")
        return cls(
            door,
            selection,
            begin,
            stop,
            options.text("key") or None,
            options.number("rowsPerPartition", 0, 0),
            options.number("batchRows", BATCH_ROWS, 1),
            options.truth("skipDamaged", False),
            options.truth("failOnDataLoss", True),
            options.truth("pushFilters", False),
            options.number("maxMessagesPerTrigger", 0, 0),
            options.number("maxBytesPerTrigger", 0, 0),
            check_group(group) if group else "",
            _columns(options.text("columns")),
        )


def _check_bounds(begin: Position, stop: Position, *, batch: bool) -> None:
    """Refuse bounds between which there can be nothing."""
    if batch and begin.what == "latest":
        raise BadRequest("option from=latest: nothing comes behind the latest message; use it with a stream")
    if batch and stop.what == "earliest":
        raise BadRequest("option to=earliest: nothing comes before the earliest message")
    if begin.what == stop.what and begin.number > stop.number:
        raise BadRequest("option from: it is behind the option to")
    if begin.what == "time" and begin.number > time.time_ns() // 1_000 + DAY_US:
        raise BadRequest("option from: this time is in the future: no message has come since")


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"option columns: {name!r} is named twice")
    return names


class WriteOptions(NamedTuple):
    door: ReadSource
    topic: str
    priority: str
    """Empty if none was given: an ordered topic has none."""
    mode: str
    txn_id: str
    rerun: str
    durability: str
    compress: bool
    frame_rows: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        options = _Given(given, WRITE_OPTIONS)
        door = options.door()
        if not door.url:
            raise BadRequest("option path: messages are written to a broker: give its url")
        topic, mode = options.text("topic"), options.text("mode", "staged")
        if topic:
            check_topic(topic)
        if mode not in ("staged", "direct"):
            raise BadRequest(f"option mode={mode!r}: give staged or direct")
        txn_id = options.text("txnId")
        if txn_id and not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", txn_id):
            raise BadRequest("option txnId: use 1 to 100 letters, digits, dots, colons, underscores and hyphens")
        priority = options.text("priority")
        if priority and priority not in ("high", "middle", "low"):
            raise BadRequest(f"option priority={priority!r}: give high, middle or low")
        rerun = options.text("rerun", "check")
        if rerun not in ("check", "trust"):
            raise BadRequest(f"option rerun={rerun!r}: give check or trust")
        durability = options.text("durability")
        if durability:
            Durability.parse(durability)
        compress = options.truth("compress", False)
        frame_rows = options.number("frameRows", 10_000, 1)
        return cls(door, topic, priority, mode, txn_id, rerun, durability, compress, frame_rows)


class _Given:
    """Options by name, whatever their case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name not in names and name not in _SPARKS:
                near = difflib.get_close_matches(name, names, 1)
                hint = f": did you mean {names[near[0]]}?" if near else f"; there are: {', '.join(known)}"
                raise BadRequest(f"there is no option {name}{hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def number(self, name: str, default: int, least: int) -> int:
        text = self.text(name, str(default)).replace("_", "")
        if not text.isascii() or not text.isdigit() or not least <= int(text) < 1 << 62:
            raise BadRequest(f"option {name}={text[:50]!r}: give a whole number, at least {least}")
        return int(text)

    def truth(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise BadRequest(f"option {name}={text[:50]!r}: give true or false")
        return text == "true"

    def door(self) -> ReadSource:
        url, path = self.text("url"), self.text("path")
        if bool(url) == bool(path):
            raise BadRequest(
                "give one of the options url (brokers: towline://one:7400,two:7400) and path (a store's folder)"
            )
        brokers = tuple(word.strip() for word in self.text("broker").split(",") if word.strip())
        if brokers and not url:
            raise BadRequest("option broker: it chooses among the brokers of a cluster: give their url")
        if url and not url.startswith(("towline://", "towlines://")):
            raise BadRequest("option url: give towline://host:port or towlines://host:port; a folder goes to path")
        try:
            timeout_s = float(self.text("timeout", "30"))
        except ValueError:
            raise BadRequest(f"option timeout={self.text('timeout')[:50]!r}: give seconds") from None
        files: dict[str, Any] = {
            "secret_file": self.text("secretFile"),
            "ca_file": self.text("caFile"),
            "cert_file": self.text("certFile"),
            "key_file": self.text("keyFile"),
        }
        path = path.removeprefix("file://") if path.startswith("file:///") else path
        return ReadSource(
            url, path, self.text("token"), self.text("secret"), timeout_s=timeout_s, brokers=brokers, **files
        )
