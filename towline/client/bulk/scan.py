"""Reading whole streams of a broker, for bulk readers (the Spark connector)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from towline.client.bulk.nodes import Node
from towline.client.link.connection import Call
from towline.errors import ProtocolError
from towline.protocol import split_attachments
from towline.protocol.messages import Part
from towline.protocol.scan import LocatedIn, LocateIn, Scan, Scanned, Streams, StreamState, Survey

__all__ = ["Missing", "Piece", "StreamReader"]

SCAN_BYTES: Final = 4 << 20


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Some consecutive records of one frame: `count` of them, the first has number `first` and is number `start` within
    the frame."""

    first: int
    count: int
    start: int
    frame: memoryview
    appended_at_us: int
    source: bytes


class Missing(NamedTuple):
    """Records that cannot be read."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    reason: str


class StreamReader:
    """Reads the streams of one broker."""

    def __init__(self, node: Node) -> None:
        self._link = node.link

    def survey(self, prefix: str) -> list[StreamState]:
        """The streams with this prefix."""
        states: list[StreamState] = []
        while True:
            answer = self._ask(Call(Survey(prefix, states[-1].name if states else "")), Streams)
            states += answer.streams
            if not answer.more:
                return states

    def locate(self, stream: str, time_us: int) -> int:
        """The first record that was appended at this time or later; the end if there is none."""
        seq: int = self._ask(Call(LocateIn(stream, max(time_us, 0))), LocatedIn).seq
        return seq

    def scan(self, stream: str, first: int, end: int, max_bytes: int = SCAN_BYTES) -> Iterator[Piece | Missing]:
        """Records `first` to `end`, in order and without a gap; it ends early if the stream does. While the caller
        works on a part, the next is in flight."""
        call = self._start(stream, first, end, max_bytes) if first < end else None
        while call is not None:
            answer = self._ask(call, Scanned)
            attachments = call.attachments
            assert attachments is not None, "an answered call has its attachments, maybe empty"
            going_on = first < answer.next < end
            first = answer.next
            call = self._start(stream, first, end, max_bytes) if going_on else None
            yield from _in_order(answer, split_attachments(attachments, [part.length for part in answer.parts]))

    def _start(self, stream: str, first: int, end: int, max_bytes: int) -> Call:
        call = Call(Scan(stream, first, end, max_bytes))
        self._link.start(call)
        return call

    def _ask(self, call: Call, expected: type[Any]) -> Any:
        answer = self._link.ask(call)
        if not isinstance(answer, expected):
            raise ProtocolError(f"{type(call.request).__name__} was answered by {type(answer).__name__}")
        return answer


def _in_order(answer: Scanned, frames: list[memoryview]) -> Iterator[Piece | Missing]:
    pieces: list[Piece | Missing] = [_piece(part, data) for part, data in zip(answer.parts, frames, strict=True)]
    if not answer.lost:
        return iter(pieces)
    pieces += [Missing(*one) for one in answer.lost]
    return iter(sorted(pieces, key=lambda piece: piece.first))


def _piece(part: Part, data: memoryview) -> Piece:
    return Piece(part.first, part.count, part.start, data, part.appended_at_us, part.source)
