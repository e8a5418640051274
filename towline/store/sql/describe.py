"""What people read beside a frame: the events of a pull log, and what a frame of the schedule holds.

The store knows nothing of delivery. It shows records as what they are on the outside, MessagePack, in JSON; a broker,
which knows more, may give the store a better `Describe`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from towline.frame import Frame
from towline.store.sql.rows import NULL, literal_json

__all__ = ["Describe", "describe"]

Describe = Callable[[str, Frame], Sequence[bytes]]
"""From a stream and a frame to the columns that its table has beside the frame, as SQL."""

_SHORT = 200


def describe(stream: str, frame: Frame) -> Sequence[bytes]:
    if stream.startswith("pull/"):
        return (literal_json([_shown(record) for record in frame.bodies()]),)
    if stream.startswith("delay/"):
        return _parcels(frame)
    return ()


def _shown(record: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _parcels(frame: Frame) -> Sequence[bytes]:
    """Parcels are arrays: topic, lane, slot, first and last time, first id, number of messages, and more."""
    shown: list[dict[str, Any]] = []
    due: list[int] = []
    for record in frame.bodies():
        parcel = _shown(record)
        if isinstance(parcel, list) and len(parcel) > 6 and isinstance(parcel[0], str) and isinstance(parcel[3], int):
            shown.append({"topic": parcel[0], "lane": parcel[1], "messages": parcel[6], "until_us": parcel[4]})
            due.append(parcel[3])
    if not due:
        return NULL, NULL
    return b"%d" % min(due), literal_json(shown)
