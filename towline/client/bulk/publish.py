"""Bulk writing through a broker, exactly once, and progress of readers: for the Spark connector."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from towline.client import requests
from towline.client.link.connection import Call
from towline.errors import ProtocolError, QueueFull, Timeout
from towline.model import LANES
from towline.protocol.messages import Done, FrameHead, Send, Sent
from towline.protocol.publications import (
    AskSink,
    MoveHold,
    Publish,
    Published,
    Report,
    SinkState,
    Stage,
    Staged,
    Unstage,
)
from towline.protocol.topics import ShardCount, Sharded

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.client.link.blocking import Link

__all__ = ["Addressed", "Publisher"]

AHEAD: Final = 4
"""Requests in flight at a time."""
PATIENCE_S: Final = 1800.0
"""How long publishing may take on top of a client's timeout: it moves all staged frames."""


class Addressed(NamedTuple):
    """A frame and its destination."""

    topic: str
    lane: int
    shards: int
    frame: bytes

    def head(self) -> FrameHead:
        return FrameHead(self.topic, self.lane, len(self.frame), self.shards)


class Publisher:
    """Stages frames, or sends them, several requests at a time; publishes staged frames."""

    def __init__(self, client: Client, durability: int = -1, link: Link | None = None, topic: str = "") -> None:
        """Over the client's own link, or another one; `topic` determines the broker, where brokers share a store."""
        self._link = link or client._link
        self._durability = durability
        self._topic = topic
        self._under_way: deque[Call] = deque()
        self._shards: dict[str, int] = {}
        self.records: list[int] = []
        """The staged records, in order; complete once `settle` has returned."""

    @property
    def max_request_bytes(self) -> int:
        if self._link.connection.welcome is None:
            self._link.run(requests.brokers())
        welcome = self._link.connection.welcome
        assert welcome is not None, "it has answered"
        return welcome.max_request_bytes

    def shards(self, topic: str) -> int:
        """The number of shards of a topic: 0 for a shared one, or one that does not exist."""
        known = self._shards.get(topic)
        if known is None:
            known = self._shards[topic] = self._ask(Call(ShardCount(topic)), Sharded).shards
        return known

    def stage(self, frames: Sequence[Addressed]) -> None:
        self._start(Call(Stage([one.head() for one in frames], self._durability), [one.frame for one in frames]))

    def send(self, frames: Sequence[Addressed]) -> None:
        self._start(Call(Send([one.head() for one in frames], self._durability), [one.frame for one in frames]))

    def _start(self, call: Call) -> None:
        while len(self._under_way) >= AHEAD:
            self._finish(self._under_way.popleft())
        self._link.start(call)
        self._under_way.append(call)

    def settle(self) -> None:
        """Wait until all of it is durable."""
        while self._under_way:
            self._finish(self._under_way.popleft())

    def _finish(self, call: Call) -> None:
        answer = self._ask(call, (Staged, Sent))
        if isinstance(answer, Staged):
            self.records.append(answer.record)

    def sink(self, sink: str) -> SinkState:
        """The last epoch that a sink has published, or is publishing; -1 if there is none."""
        state: SinkState = self._ask(Call(AskSink(sink, self._topic)), SinkState)
        return state

    def publish(
        self, sink: str, epoch: int, records: Sequence[int], digest: bytes = b"", members: Sequence[str] = ()
    ) -> Published:
        """Publish an epoch of a sink. Waits for a store that is full, or an answer that is late."""
        for again in (True, True, False):
            request = Publish(sink, epoch, list(records), self._durability, self._topic, digest, list(members))
            call = Call(request)
            call.patience_s = PATIENCE_S
            try:
                published: Published = self._ask(call, Published)
                return published
            except (QueueFull, Timeout):
                if not again:
                    raise
        raise AssertionError("the third time is the last")

    def unstage(self, records: Sequence[int]) -> None:
        if records:
            self._ask(Call(Unstage(list(records), self._topic)), Done)

    def report(self, topic: str, group: str, positions: Mapping[str, int]) -> None:
        """Report the progress of a reader that keeps its own, by lane."""
        places = [(LANES.index(lane) if lane in LANES else int(lane), seq) for lane, seq in positions.items()]
        self._ask(Call(Report(topic, group, places)), Done)

    def move_hold(self, name: str, positions: Mapping[str, int]) -> None:
        """Report the progress of a hold, by stream."""
        self._ask(Call(MoveHold(name, dict(positions))), Done)

    def _ask(self, call: Call, expected: Any) -> Any:
        answer = self._link.ask(call)
        if not isinstance(answer, expected):
            raise ProtocolError(f"{type(call.request).__name__} was answered by {type(answer).__name__}")
        return answer
