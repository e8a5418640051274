"""A plan: streams cut into ranges for tasks. Plain data: it travels as JSON."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from towline.errors import BadRequest, NotFound
from towline.model import LANES, check_group, check_topic

__all__ = [
    "Kind",
    "Lane",
    "Position",
    "Range",
    "Selection",
    "Survey",
    "Where",
    "cut",
    "decode_ranges",
    "encode_ranges",
    "parse_position",
    "plan",
]

FEWEST_ROWS: Final = 1_000_000
MOST_ROWS: Final = 5_000_000
MOST_BYTES: Final = 1 << 30
"""Bounds of a range that nobody has set: a task costs about 30 ms before it reads the first row, and one that fails is
read again from its beginning. Only large messages make ranges of fewer rows than `FEWEST_ROWS`."""

Kind = Literal["messages", "own", "dead", "events", "schedule"]
_PREFIXES: Final[dict[Kind, str]] = {
    "messages": "lane",
    "own": "own",
    "dead": "dead",
    "events": "pull",
    "schedule": "schedule",
}
_MAX_RANGES: Final = 1_000_000


class Lane(msgspec.Struct, frozen=True):
    """One stream, as of the survey."""

    stream: str
    topic: str
    lane: str
    """Empty for streams of a group."""
    group: str
    first: int
    end: int
    size_bytes: int
    broker: str = ""
    """The name of its broker, if one was asked, …"""
    node: str = ""
    """… and its id, in a cluster."""

    @property
    def plain(self) -> str:
        return "/".join(part for part in (self.topic, self.group, self.lane) if part)

    @property
    def name(self) -> str:
        """Its name for people and in offsets: `orders/middle`; in a cluster, `orders/middle@ID` of its broker."""
        return f"{self.plain}@{self.node}" if self.node else self.plain

    @property
    def key(self) -> str:
        """The name of its stream, unique over all brokers."""
        return f"{self.stream}@{self.node}" if self.node else self.stream


class Range(msgspec.Struct, frozen=True):
    """Records `first` to `end` of a stream: the range of one task. `segment` and `position` are the place of the first
    one in a folder, if that is known."""

    stream: str
    topic: str
    lane: str
    group: str
    first: int
    end: int
    broker: str = ""
    segment: int = 0
    position: int = 0
    node: str = ""

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def key(self) -> str:
        """As that of its lane."""
        return f"{self.stream}@{self.node}" if self.node else self.stream


class Position(NamedTuple):
    """The begin or end of a range: an end of the stream, a time, a number, or numbers by lane."""

    what: Literal["earliest", "latest", "time", "seq", "lanes"]
    number: int = 0
    lanes: tuple[tuple[str, int], ...] = ()


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


class Selection(NamedTuple):
    """The chosen streams: of topics by name or by prefix (`orders.*`), lanes and groups by name; empty is all of
    them."""

    topics: tuple[str, ...]
    kind: Kind = "messages"
    lanes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def parse(cls, topics: str, kind: str = "messages", lanes: str = "", groups: str = "") -> Selection:
        names = _words(topics)
        if not names:
            raise BadRequest("no topic: give one (orders), several (orders,stock), or a prefix (orders.*)")
        for name in names:
            if name != "*":
                check_topic(name.removesuffix("*").rstrip(".-_") or "x")
        if kind not in _PREFIXES:
            raise BadRequest(f"there is no kind {kind!r} of stream: there are {', '.join(_PREFIXES)}")
        for group in _words(groups):
            check_group(group)
        if groups.strip() and kind == "schedule":
            raise BadRequest("option group: what waits for its time belongs to no group")
        if lanes.strip() and kind not in ("messages", "own"):
            raise BadRequest(f"option lane: kind {kind} has no lanes; only messages and own have")
        for lane in _words(lanes):
            if lane not in LANES and not re.fullmatch(r"0|[1-9][0-9]{0,3}", lane):
                raise BadRequest(f"option lane={lane[:50]!r}: give {', '.join(LANES)}, or the number of a shard")
        return cls(names, kind, _words(lanes), _words(groups))

    @property
    def exact(self) -> tuple[str, ...]:
        return tuple(name for name in self.topics if not name.endswith("*"))

    def prefixes(self) -> list[str]:
        """Prefixes of stream names that cover the selection."""
        kind = _PREFIXES[self.kind]
        return [f"{kind}/{name[:-1]}" if name.endswith("*") else f"{kind}/{name}/" for name in self.topics]

    def wants(self, stream: str) -> bool:
        kind, *parts = stream.split("/")
        if len(parts) != (3 if self.kind == "own" else 2) or kind != _PREFIXES[self.kind]:
            return False
        if not self.wants_topic(parts[0]):
            return False
        if self.kind != "messages" and self.groups and parts[1] not in self.groups:
            return False
        return self.kind not in ("messages", "own") or not self.lanes or parts[-1] in self.lanes

    def wants_topic(self, topic: str) -> bool:
        return any(topic.startswith(name[:-1]) if name.endswith("*") else topic == name for name in self.topics)

    def lane_of(self, stream: str, first: int, end: int, size_bytes: int, *, broker: str = "", node: str = "") -> Lane:
        _, topic, *rest = stream.split("/")
        lane = rest[-1] if self.kind in ("messages", "own") else ""
        group = "" if self.kind == "messages" else rest[0]
        return Lane(stream, topic, lane, group, min(first, end), end, size_bytes, broker, node)


class Catalogued(NamedTuple):
    """A topic of a catalog, with or without messages."""

    shards: int
    groups: frozenset[str]

    def has_lane(self, lane: str) -> bool:
        return int(lane) < self.shards if lane.isdecimal() else not self.shards and lane in LANES


class Survey(Protocol):
    """A place to read as a plan sees it: a broker or a folder."""

    def lanes(self, selection: Selection) -> list[Lane]:
        """The present streams, in the order of their names. `NotFound` if a topic named exactly does not exist."""

    def locate(self, lane: Lane, time_us: int) -> int:
        """The first record appended at this time or later; the end if there is none."""

    def where(self, lane: Lane, seq: int) -> Where:
        """The place of a record, if it is known."""

    def catalogue(self) -> Mapping[str, Catalogued]:
        """All topics."""


class Where(NamedTuple):
    segment: int = 0
    position: int = 0


def plan(
    place: Survey,
    selection: Selection,
    begin: Position = EARLIEST,
    stop: Position = LATEST,
    *,
    rows: int = 0,
    cores: int = 1,
) -> list[Range]:
    """Ranges that cover the records between `begin` and `stop`: of at most `rows` records, or, if that is 0, fitting so
    many `cores`."""
    spans = [(lane, resolve(place, lane, begin), resolve(place, lane, stop)) for lane in place.lanes(selection)]
    if selection.kind == "schedule":  # it is no stream: it is read page by page, as it is by then
        rows = max((lane.end for lane, _, _ in spans), default=0) or 1
    total = sum(end - first for _, first, end in spans if end > first)
    ranges: list[Range] = []
    for lane, first, end in spans:
        ranges += cut(lane, first, end, rows or _fitting(lane, total, cores), place.where)
    return ranges


def _fitting(lane: Lane, total: int, cores: int) -> int:
    """As few ranges as possible, so that all cores have as much to do, to the end."""
    rounds = -(-total // (MOST_ROWS * cores)) or 1
    rows = max(-(-total // (rounds * cores)), FEWEST_ROWS)
    mean_bytes = lane.size_bytes // max(lane.end - lane.first, 1)
    return min(rows, max(MOST_BYTES // max(mean_bytes, 1), 1))


def cut(lane: Lane, first: int, end: int, rows: int, where: Callable[[Lane, int], Where] | None = None) -> list[Range]:
    """Records `first` to `end` of a stream in ranges of about the same size, none larger than `rows`."""
    total = end - first
    if total <= 0:
        return []
    pieces = -(-total // max(rows, 1))
    if pieces > _MAX_RANGES:
        raise BadRequest(f"{lane.name}: {pieces} ranges are too many: take more rows for each")
    ends = [first + total * number // pieces for number in range(pieces + 1)]
    ranges = []
    for begin, stop in zip(ends, ends[1:], strict=False):  # noqa: RUF007
        segment, position = where(lane, begin) if where is not None else Where()
        ranges.append(
            Range(
                *(lane.stream, lane.topic, lane.lane, lane.group, begin, stop),
                *(lane.broker, segment, position, lane.node),
            )
        )
    return ranges


def resolve(place: Survey, lane: Lane, position: Position) -> int:
    """A position as a record's number, within the stream's bounds."""
    match position.what:
        case "earliest":
            return lane.first
        case "latest":
            return lane.end
        case "time":
            number = place.locate(lane, position.number)
        case "seq":
            number = position.number
        case "lanes":
            lanes = dict(position.lanes)
            number = lanes.get(lane.name, lanes.get(lane.plain, lane.first))
    return min(max(number, lane.first), lane.end)


def parse_position(text: str, option: str) -> Position:
    """`earliest`, `latest`, a number, a time (ISO 8601, in UTC if it names no zone), or JSON of numbers by lane."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Position(text)  # type: ignore[arg-type]  # one of them
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Position("seq", int(text))
    if text.startswith("{"):
        try:
            lanes = msgspec.json.decode(text, type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise BadRequest(f"option {option}: not JSON of numbers by lane: {error}") from None
        return Position("lanes", 0, tuple(sorted(lanes.items())))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            f"option {option}={text[:100]!r}: give earliest, latest, a number, a time such as "
            '2026-05-01T12:00:00, or numbers by lane such as {"orders/middle": 17}'
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return Position("time", max(0, round(time.timestamp() * 1_000_000)))


def encode_ranges(ranges: Sequence[Range]) -> str:
    return msgspec.json.encode(ranges).decode()


def decode_ranges(text: str) -> list[Range]:
    return msgspec.json.decode(text, type=list[Range])


def check_known(selection: Selection, topics: Iterable[str], where: str) -> None:
    """`NotFound` for the first topic that is named exactly and is not among these."""
    known = set(topics)
    for name in selection.exact:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3) or sorted(known)[:10]
            raise NotFound(f"there is no topic {name} {where}; there are: {', '.join(near) or 'none at all'}")


def check_chosen(
    selection: Selection,
    begin: Position,
    stop: Position,
    place: Survey,
    *,
    streaming: bool = False,
) -> None:
    """A name that does not exist is an error: it would choose nothing, or everything. A stream may wait for topics to
    come."""
    named = {"from": dict(begin.lanes), "to": dict(stop.lanes)}
    prefixes = [name for name in selection.topics if name.endswith("*") and name != "*" and not streaming]
    if not (prefixes or selection.lanes or selection.groups or any(named.values()) or begin.what == "seq"):
        return
    lanes = place.lanes(selection)
    known = {name: one for name, one in place.catalogue().items() if selection.wants_topic(name)}
    topics = known.keys() | {lane.topic for lane in lanes}
    for prefix in prefixes:
        if not any(topic.startswith(prefix[:-1]) for topic in topics):
            raise NotFound(f"option topic: there is no topic whose name begins with {prefix[:-1]}")
    for lane in selection.lanes if topics else ():
        if not any(one.has_lane(lane) for one in known.values()) and lane not in {one.lane for one in lanes}:
            raise NotFound(f"option lane: there is no lane {lane}; there are: {_lanes_of(known.values())}")
    groups = {group for one in known.values() for group in one.groups} | {one.group for one in lanes} - {""}
    for group in selection.groups:
        _check_named("option group: there is no group", group, groups)
    names = {name for lane in lanes for name in (lane.name, lane.plain)}
    for option, places in named.items():
        for name in places:
            if not _is_empty_lane(selection, name, known):
                _check_named(f"option {option}: there is no lane", name, names)
    _check_reached(begin, lanes)


def _check_named(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 3) or sorted(known)[:10]
        raise NotFound(f"{what} {name[:150]} among what is read; there are: {', '.join(near) or 'none at all'}")


def _check_reached(begin: Position, lanes: Sequence[Lane]) -> None:
    """Behind the end of a lane there is nothing: it is the number of another lane, broker or time."""
    ends = {name: lane.end for lane in lanes for name in (lane.plain, lane.name)}
    longest = max(lanes, key=lambda one: one.end, default=None)
    if begin.what == "seq" and longest is not None and begin.number > longest.end:
        raise BadRequest(f"option from={begin.number}: no lane has come so far; {longest.name} ends at {longest.end}")
    for name, number in begin.lanes:
        if number > ends.get(name, number):
            raise BadRequest(f"option from: {name} ends at {ends[name]}, which is before {number}")


def _is_empty_lane(selection: Selection, name: str, known: Mapping[str, Catalogued]) -> bool:
    """Whether it is a lane of the folder of a store in which there is no message yet."""
    topic, _, lane = name.partition("/")
    return selection.wants(f"lane/{name}") and topic in known and known[topic].has_lane(lane)


def _lanes_of(topics: Iterable[Catalogued]) -> str:
    counts = {one.shards for one in topics}
    found = [*(LANES if 0 in counts else ()), *(f"0 to {count - 1}" for count in sorted(counts) if count)]
    return ", ".join(found) or "none at all"


def offsets_of(lanes: Iterable[Lane]) -> Mapping[str, int]:
    return {lane.name: lane.end for lane in lanes}


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
