"""Sources: a broker, or all brokers of a cluster, over the network; and the folder of a log store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from towline.client import requests
from towline.client._sync.client import Client, connect
from towline.client.admin.delayed import DelayedEntry, delayed
from towline.client.bulk.nodes import Node, is_shared, node_of, nodes_of
from towline.client.bulk.scan import Missing, StreamReader
from towline.errors import BadRequest, NewerFormat, Unavailable
from towline.format import instead_of
from towline.model import PRIVATE
from towline.spark.arrow.from_events import begins_group
from towline.spark.catalog import FolderCatalog
from towline.spark.delayed_rows import Delayed, FolderSchedule
from towline.spark.plan import Catalogued, Lane, Range, Selection, Where, check_known
from towline.store.log.format.folder import writer_of
from towline.store.log.offline.streams import Lost, OfflineStreams, Place, read_range

__all__ = ["BrokerSource", "FolderSource", "ReadSource", "open_place", "why_gap"]

_log = logging.getLogger("towline.spark")

PAGE = 10_000


class ReadSource(NamedTuple):
    """The place to read and its credentials: a broker's `url` or a store's `path`. The secret is shown nowhere."""

    url: str = ""
    path: str = ""
    token: str = ""
    secret: str = ""
    secret_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 30.0
    brokers: tuple[str, ...] = ()
    """Of a cluster, only these: names, ids or addresses; empty is all."""

    def __repr__(self) -> str:
        return f"<ReadSource {self.name}>"

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


class BrokerSource:
    """A broker, or the brokers of a cluster. Of those that have stores of their own, each is read."""

    def __init__(self, door: ReadSource) -> None:
        self._client = door.connect()
        self._wanted = door.brokers
        self._name = door.url
        self.writer = ""

    def close(self) -> None:
        self._client.close()

    def lanes(self, selection: Selection, *, absent: bool = False) -> list[Lane]:
        """The streams of all brokers. One that cannot be reached is an error, unless it may be `absent`: then those of
        others are returned, with a warning."""
        lanes: list[Lane] = []
        for node in nodes_of(self._client, self._wanted):
            try:
                if absent and not node.alive:
                    raise Unavailable("it is not there")
                lanes += self._lanes_of(node, selection)
            except Unavailable as error:
                if not node.id:
                    raise
                what = f"broker {node.name} of the cluster cannot be read, so that its messages are missing: {error}"
                if not absent:
                    raise Unavailable(
                        f"{what}. Start it; or name the brokers to read (option broker, --broker); or, if it is gone "
                        "for good, forget it (towline brokers forget)"
                    ) from None
                _log.warning("%s", what)
        if set(selection.exact) <= {lane.topic for lane in lanes}:
            return lanes
        known = {one.config.name for one in self._client.topics()}
        check_known(selection, known | {lane.topic for lane in lanes}, f"at {self._name}")
        return lanes

    def _lanes_of(self, node: Node, selection: Selection) -> list[Lane]:
        if selection.kind == "schedule":
            return [
                Lane(f"schedule/{one.config.name}", one.config.name, "", "", 0, one.delayed, 0, node.name, node.id)
                for one in sorted(node.link.run(requests.topics()), key=lambda one: one.config.name)
                if selection.wants_topic(one.config.name)
            ]
        reader = StreamReader(node)
        found = {
            state.name: state
            for prefix in self._prefixes(selection)
            for state in reader.survey(prefix)
            if selection.wants(state.name)
        }
        states = [found[name] for name in sorted(found)]
        return [
            selection.lane_of(one.name, one.first, one.end, one.size_bytes, broker=node.name, node=node.id)
            for one in states
        ]

    def catalogue(self) -> dict[str, Catalogued]:
        return {one.config.name: Catalogued(one.config.shards, frozenset(one.groups)) for one in self._client.topics()}

    def _prefixes(self, selection: Selection) -> list[str]:
        """Where brokers share a store, the topic determines the broker: so every topic is asked for."""
        if not is_shared(self._client) or len(selection.exact) == len(selection.topics):
            return selection.prefixes()
        known = [one.config.name for one in self._client.topics()]
        return selection._replace(topics=tuple(filter(selection.wants_topic, known))).prefixes()

    def _reader(self, node: str) -> StreamReader:
        return StreamReader(node_of(self._client, node))

    def locate(self, lane: Lane, time_us: int) -> int:
        return self._reader(lane.node).locate(lane.stream, time_us)

    def where(self, lane: Lane, seq: int) -> Where:
        del lane, seq
        return Where()

    def shards(self, span: Range) -> int:
        return node_of(self._client, span.node).link.run(requests.topic(span.topic)).config.shards

    def records(self, span: Range) -> Iterator[Any]:
        return self._reader(span.node).scan(span.stream, span.first, span.end)

    def waiting(self, span: Range) -> Iterator[list[Delayed]]:
        """Delayed messages of a topic, page by page. Those that become due meanwhile may or may not be among them."""
        link = node_of(self._client, span.node).link
        last: DelayedEntry | None = None
        while page := link.run(delayed(span.topic, last, PAGE)):
            last = page[-1]
            yield [
                Delayed(one.lane, one.id, one.key, one.deliver_at_us, one.produced_at_us, one.size_bytes)
                for one in page
            ]


class FolderSource:
    """The folder of a log store, whether a broker has it open or not."""

    def __init__(self, door: ReadSource) -> None:
        self._path = Path(door.path)
        self._catalog = FolderCatalog(self._path)
        self._outside: OfflineStreams | None = None
        self._selection: Selection | None = None

    @property
    def writer(self) -> str:
        """The version of Towline that wrote to it last, if that is known."""
        return writer_of(self._path)

    def close(self) -> None:
        self._outside = None

    def lanes(self, selection: Selection, *, absent: bool = False) -> list[Lane]:
        del absent
        if selection.kind == "schedule":
            return self._schedules(selection)
        if self._outside is None or self._selection != selection:
            self._outside, self._selection = OfflineStreams(self._path, selection.wants), selection
        streams = self._outside.look()
        self._check(selection, {name.split("/")[1] for name in streams})
        return [
            selection.lane_of(name, seen.first, seen.end, seen.frame_bytes) for name, seen in sorted(streams.items())
        ]

    def _schedules(self, selection: Selection) -> list[Lane]:
        counts = FolderSchedule(self._path).counts()
        self._check(selection, set(counts))
        chosen = sorted(name for name in counts if selection.wants_topic(name))
        return [Lane(f"schedule/{name}", name, "", "", 0, counts[name], 0) for name in chosen]

    def _check(self, selection: Selection, seen: set[str]) -> None:
        if not seen >= set(selection.exact):
            check_known(selection, {*seen, *self._catalog.topics()}, f"in {self._path}")

    def locate(self, lane: Lane, time_us: int) -> int:
        assert self._outside is not None, "a lane is found by looking"
        return self._outside.locate(lane.stream, time_us)

    def where(self, lane: Lane, seq: int) -> Where:
        if lane.stream.startswith("schedule/"):
            return Where()  # it is no stream
        assert self._outside is not None, "a lane is found by looking"
        return Where(*self._outside.place_of(lane.stream, seq))

    def catalogue(self) -> dict[str, Catalogued]:
        groups = self._catalog.groups()
        return {
            topic: Catalogued(shards, frozenset(groups.get(topic, ())))
            for topic, shards in self._catalog.topics().items()
        }

    def shards(self, span: Range) -> int:
        return self._catalog.topics().get(span.topic, 0)

    def records(self, span: Range) -> Iterator[Any]:
        return read_range(self._path, span.stream, span.first, span.end, Place(span.segment, span.position))

    def waiting(self, span: Range) -> Iterator[list[Delayed]]:
        return FolderSchedule(self._path).waiting(span.topic, self.shards(span))


@contextmanager
def open_place(door: ReadSource) -> Iterator[BrokerSource | FolderSource]:
    place = BrokerSource(door) if door.url else FolderSource(door)
    try:
        yield place
    except NewerFormat as error:
        raise NewerFormat(f"{error}: {instead_of(place.writer)}") from None
    finally:
        place.close()


def why_gap(place: BrokerSource | FolderSource, lane: Lane) -> str:
    """Why there is a gap before a pull log, or before the dead letters of a consumer without a group, though it need
    not have been dropped: a group that is made anew counts on behind all that were forgotten (`store/spi.py`). Empty if
    retention dropped it. A pull log says itself that it begins; dead letters do not."""
    kind = lane.stream.partition("/")[0]
    if kind == "dead" and lane.group.startswith(PRIVATE):
        return "retention dropped it, or the consumer was made anew, and counts on from there"
    if kind != "pull" or lane.first >= lane.end:
        return ""
    first = lane.first
    span = Range(
        *(lane.stream, lane.topic, lane.lane, lane.group, first, first + 1),
        *(lane.broker, *place.where(lane, first), lane.node),
    )
    anew = any(begins_group(one) for one in place.records(span) if not isinstance(one, Lost | Missing))
    return "the group was made anew, and counts on from there" if anew else ""
