"""Reading: a place (a broker or a folder), and the record batches of one range of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from towline.client.blocking import Client, connect
from towline.client.scanning import Missing, StreamReader
from towline.errors import BadFrame, BadRequest, NotFound, StoreDamaged
from towline.frame import Frame
from towline.frame.search import find_key
from towline.spark.arrow import DEAD, MESSAGES, Origin, Records, chosen, message_batch
from towline.spark.events import EVENTS, event_batch
from towline.spark.ranges import Kind, Lane, Range, Selection, Where, check_known
from towline.spark.schedule import SCHEDULE, schedule_batches
from towline.store.log.outside import Lost, Outside, Place, read_range

__all__ = ["BATCH_ROWS", "SCHEMAS", "BrokerPlace", "Door", "FolderPlace", "Wants", "open_place", "read_batches"]

_log = logging.getLogger("towline.spark")

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 32 << 20
SCHEMAS: Final[dict[Kind, Any]] = {"messages": MESSAGES, "dead": DEAD, "events": EVENTS, "schedule": SCHEDULE}
_KINDS: Final[dict[str, Kind]] = {
    "lane": "messages",
    "own": "messages",
    "dead": "dead",
    "pull": "events",
    "schedule": "schedule",
}
"""By the first part of a stream's name; `own` lanes, of dead letters sent again, are for the archive."""
GONE: Final = "it is not kept any more"


class Door(NamedTuple):
    """Where to read and how to get in: a broker's `url` or a store's `path`. The secret is shown nowhere."""

    url: str = ""
    path: str = ""
    token: str = ""
    secret: str = ""
    secret_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 30.0

    def __repr__(self) -> str:
        return f"<Door {self.name}>"

    @property
    def name(self) -> str:
        return self.url or self.path

    def connect(self) -> Client:
        secret = self.secret
        if self.secret_file:
            try:
                secret = Path(self.secret_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise BadRequest(f"secret file {self.secret_file}: {error.strerror}") from None
        return connect(
            self.url,
            token=self.token,
            secret=secret,
            timeout=self.timeout_s,
            ca_file=self.ca_file or None,
            cert_file=self.cert_file or None,
            key_file=self.key_file or None,
        )


class Wants(NamedTuple):
    """What is wanted of a range: which columns (None is all), messages with which key, and what to do about damage."""

    columns: Any = None
    """An Arrow schema, or names."""
    key: str | None = None
    skip_damaged: bool = False
    skip_gone: bool = False
    """Pass over what retention has dropped since the plan was made."""
    batch_rows: int = BATCH_ROWS


ALL: Final = Wants()


class BrokerPlace:
    """A broker, over the network."""

    def __init__(self, door: Door) -> None:
        self._client = door.connect()
        self._reader = StreamReader(self._client)
        self._name = door.url

    @property
    def broker(self) -> str:
        return self._reader.broker

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        self._client.close()

    def lanes(self, selection: Selection) -> list[Lane]:
        if selection.kind == "schedule":
            return self._schedules(selection)
        found = {
            state.name: state
            for prefix in selection.prefixes()
            for state in self._reader.survey(prefix)
            if selection.wants(state.name)
        }
        known = {name.split("/")[1] for name in found}
        for topic in selection.exact:
            if topic not in known:
                try:
                    self._client.topic(topic)
                except NotFound:
                    raise NotFound(f"there is no topic {topic} at {self._name}") from None
        states = [found[name] for name in sorted(found)]
        return [selection.lane_of(one.name, one.first, one.end, one.size_bytes, self.broker) for one in states]

    def _schedules(self, selection: Selection) -> list[Lane]:
        topics = {one.config.name: one.delayed for one in self._client.topics()}
        check_known(selection, topics, self._name)
        return [
            Lane(f"schedule/{name}", name, "", "", 0, waiting, 0, self.broker)
            for name, waiting in sorted(topics.items())
            if selection.wants_topic(name)
        ]

    def locate(self, lane: Lane, time_us: int) -> int:
        return self._reader.locate(lane.stream, time_us)

    def where(self, lane: Lane, seq: int) -> Where:
        del lane, seq
        return Where()

    def shards(self, topic: str) -> int:
        return self._client.topic(topic).config.shards

    def records(self, span: Range) -> Iterator[Any]:
        return self._reader.scan(span.stream, span.first, span.end)


class FolderPlace:
    """The folder of a log store, whether a broker has it open or not."""

    def __init__(self, door: Door) -> None:
        self._path = Path(door.path)
        self._outside: Outside | None = None
        self._selection: Selection | None = None

    broker = ""

    def close(self) -> None:
        self._outside = None

    def lanes(self, selection: Selection) -> list[Lane]:
        if selection.kind == "schedule":
            raise BadRequest("kind=schedule: what waits is told by a broker: give its url")
        if self._outside is None or self._selection != selection:
            self._outside, self._selection = Outside(self._path, selection.wants), selection
        streams = self._outside.look()
        topics = {name.split("/")[1] for name in streams}
        if not topics >= set(selection.exact):
            check_known(selection, {*topics, *self._catalogued()}, str(self._path))
        return [
            selection.lane_of(name, seen.first, seen.end, seen.frame_bytes) for name, seen in sorted(streams.items())
        ]

    def locate(self, lane: Lane, time_us: int) -> int:
        assert self._outside is not None, "a lane is found by looking"
        return self._outside.locate(lane.stream, time_us)

    def where(self, lane: Lane, seq: int) -> Where:
        assert self._outside is not None, "a lane is found by looking"
        return Where(*self._outside.place_of(lane.stream, seq))

    def shards(self, topic: str) -> int:
        return self._catalogued().get(topic, 0)

    def records(self, span: Range) -> Iterator[Any]:
        return read_range(self._path, span.stream, span.first, span.end, Place(span.segment, span.position))

    def _catalogued(self) -> dict[str, int]:
        """The topics that the broker's own list names, and their shards."""
        try:
            text = (self._path / "config" / "topics.json").read_bytes()
            return {topic.name: topic.shards for topic in msgspec.json.decode(text, type=_Catalogue).topics}
        except (OSError, msgspec.MsgspecError):
            return {}


class _Topic(msgspec.Struct):
    name: str
    shards: int = 0


class _Catalogue(msgspec.Struct):
    topics: list[_Topic] = []


@contextmanager
def open_place(door: Door) -> Iterator[BrokerPlace | FolderPlace]:
    place = BrokerPlace(door) if door.url else FolderPlace(door)
    try:
        yield place
    finally:
        place.close()


def read_batches(
    place: BrokerPlace | FolderPlace,
    span: Range,
    wants: Wants = ALL,
    on_skip: Callable[[str, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range as batches of the columns that are wanted. What cannot be read is an error, unless it is
    to be skipped: then `on_skip` is told why, and how many it were."""
    kind = _KINDS[span.stream.partition("/")[0]]
    schema = wants.columns if isinstance(wants.columns, pa.Schema) else chosen(SCHEMAS[kind], wants.columns)
    if kind == "schedule":
        assert isinstance(place, BrokerPlace), "only a broker's schedule is planned"
        yield from schedule_batches(place.client, span.topic, span.broker, schema, wants.key)
        return
    build = _Build(place, span, kind, schema, wants.key)
    waiting: list[Records] = []
    rows = size = 0
    for item in place.records(span):
        if isinstance(item, Lost | Missing):
            _skip(place, span, item, wants, on_skip)
            continue
        if not build.is_wanted(item):
            continue
        waiting.append(item)
        rows += item.count
        size += len(item.frame)
        if rows >= wants.batch_rows or size >= BATCH_BYTES:
            yield from build.batches(waiting, wants, on_skip)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from build.batches(waiting, wants, on_skip)


class _Build:
    """From records to batches."""

    def __init__(self, place: BrokerPlace | FolderPlace, span: Range, kind: Kind, schema: Any, key: str | None) -> None:
        self._place = place
        self._span = span
        self._schema = schema
        self._events = kind == "events"
        if key is not None and self._events:
            raise BadRequest("events have no key: read messages or dead letters by key")
        self._key = key
        self._with_key = schema if key is None or "key" in schema.names else schema.append(pa.field("key", pa.string()))
        self._origin = Origin(span.topic, span.lane, span.group, span.broker)
        self._shards = place.shards(span.topic) if self._events else 0

    def is_wanted(self, piece: Records) -> bool:
        """Whether a message with the key is in this frame; most frames can be passed over."""
        if self._key is None:
            return True
        found = find_key(Frame(piece.frame), self._key.encode(), piece.start, piece.start + piece.count)
        return found is not None

    def batches(
        self, pieces: list[Records], wants: Wants, on_skip: Callable[[str, int], None] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield self._batch(pieces)
        except (BadFrame, StoreDamaged):
            # One of them is broken: go through them one by one.
            for piece in pieces:
                try:
                    batch = self._batch([piece])
                except (BadFrame, StoreDamaged) as error:
                    _skip(self._place, self._span, Lost(piece.first, piece.count, str(error)), wants, on_skip)
                else:
                    yield batch

    def _batch(self, pieces: list[Records]) -> pa.RecordBatch:
        if self._events:
            return event_batch(self._origin, pieces, self._schema, self._shards)
        batch = message_batch(self._origin, pieces, self._with_key)
        if self._key is None:
            return batch
        batch = batch.filter(pc.equal(batch.column("key"), self._key))
        return batch if self._with_key is self._schema else batch.select(self._schema.names)


def _skip(
    place: BrokerPlace | FolderPlace,
    span: Range,
    lost: Lost | Missing,
    wants: Wants,
    on_skip: Callable[[str, int], None] | None,
) -> None:
    gone = lost.reason == GONE
    what = f"{span.stream}: records {lost.first} to {lost.first + lost.count - 1} cannot be read: {lost.reason}"
    if not (wants.skip_gone if gone else wants.skip_damaged):
        option = "failOnDataLoss=false" if gone else "skipDamaged=true"
        raise StoreDamaged(f"{what}. To go on without them, set {option}")
    _log.warning("%s; skipped", what)
    if on_skip is not None:
        on_skip(lost.reason, lost.count)
