"""Readable columns beside a frame: the events of a pull log, and the contents of a frame of the schedule.

The store knows nothing of delivery. It shows records as MessagePack, in JSON.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from towline.frame import Frame
from towline.store.sql.write.rows import Row

__all__ = ["COLUMNS", "describe"]

COLUMNS: Final = {"mq_pull_log": ("events",), "mq_schedule": ("due_us", "parcels")}
"""The columns that a table of frames has beside the frame."""


def describe(table: str, frame: Frame) -> Row:
    """The values of these columns."""
    if table == "mq_pull_log":
        return (_json([_shown(record) for record in frame.bodies()]),)
    if table == "mq_schedule":
        return _parcels(frame)
    return ()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shown(record: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _parcels(frame: Frame) -> Row:
    """Records of the schedule are arrays: topic, lane, slot, first and last time, first id, number of messages, and
    more."""
    shown: list[dict[str, Any]] = []
    due: list[int] = []
    for record in frame.bodies():
        parcel = _shown(record)
        if isinstance(parcel, list) and len(parcel) > 6 and isinstance(parcel[0], str) and isinstance(parcel[3], int):
            shown.append({"topic": parcel[0], "lane": parcel[1], "messages": parcel[6], "until_us": parcel[4]})
            due.append(parcel[3])
    return min(due, default=0), _json(shown)
