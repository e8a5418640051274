"""Records of delivered messages: which ids became which numbers of a lane. Until it is due, a message has an id of its
own.

Records are MessagePack arrays; a field may be added at the end with a default. Ids that count up, as those of a frame
with one delay for all do, take no room.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from towline.delivery.schedule.record import counts_up, packed
from towline.frame import encode_events

__all__ = ["Arrival", "arrival", "decode_arrival", "encode_arrivals"]


class Arrival(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Messages that came to a lane together, from number `first` on."""

    lane: int
    first: int
    count: int
    first_id: int
    ids: bytes = b""
    """Their ids until then, as 64-bit numbers, where they do not simply count up from `first_id`."""

    @property
    def end(self) -> int:
        return self.first + self.count

    def number_of(self, message_id: int) -> int | None:
        """The number in its lane of the message that had this id; None if it is not among them."""
        if not self.ids:
            at = message_id - self.first_id
            return self.first + at if 0 <= at < self.count else None
        sought, at = packed([message_id]), -1
        size = array("Q").itemsize
        while (at := self.ids.find(sought, at + 1)) >= 0:
            if at % size == 0:
                return self.first + at // size
        return None


def arrival(lane: int, first: int, ids: Sequence[int]) -> Arrival:
    return Arrival(lane, first, len(ids), ids[0], b"" if counts_up(ids) else packed(ids))


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(Arrival)


def encode_arrivals(arrivals: Sequence[Arrival]) -> bytes:
    return encode_events([_ENCODE(one) for one in arrivals])


def decode_arrival(record: bytes) -> Arrival:
    """Raises `msgspec.MsgspecError` if it is none."""
    return _DECODER.decode(record)
