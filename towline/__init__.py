"""Towline: a pull-based message queue.

    import towline

    with towline.connect("memory:") as mq:
        mq.send("orders", b"...", key="order-4423")
        with mq.consumer("orders", group="billing") as consumer:
            for message in consumer.pull():
                with message:
                    print(message.body)

`towline.aio` holds the same for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from towline.errors import (
    BadFrame,
    BadName,
    BadRequest,
    Closed,
    Conflict,
    DiskFull,
    LeaseLost,
    NotFound,
    ProtocolError,
    QueueFull,
    Refused,
    StoreDamaged,
    StoreFailed,
    StoreLocked,
    Timeout,
    TooLarge,
    TooMany,
    TooManyConnections,
    TowlineError,
    Unavailable,
    Unreadable,
)
from towline.version import __version__ as __version__

if TYPE_CHECKING:
    from towline import aio
    from towline.client.app import App
    from towline.client.batch import Batch
    from towline.client.blocking import Client, connect
    from towline.client.consumer import Consumer
    from towline.client.delays import DelayedEntry
    from towline.client.lease import LostLease
    from towline.client.message import DeadLetter, Message
    from towline.client.page import Page
    from towline.client.parcel import Pending
    from towline.client.producer import Producer
    from towline.client.receipts import Receipts
    from towline.client.transaction import Checker, PreparedTransaction, Transaction
    from towline.client.verdict import Reject, Retry
    from towline.model import Durability, GroupConfig, Priority, Receipt, RetryPolicy, TopicConfig
    from towline.protocol.messages import GroupState, LaneState, MemberState, TopicState
    from towline.protocol.transactions import Check, TransactionState

__all__ = [
    "App",
    "BadFrame",
    "BadName",
    "BadRequest",
    "Batch",
    "Check",
    "Checker",
    "Client",
    "Closed",
    "Conflict",
    "Consumer",
    "DeadLetter",
    "DelayedEntry",
    "DiskFull",
    "Durability",
    "GroupConfig",
    "GroupState",
    "LaneState",
    "LeaseLost",
    "LostLease",
    "MemberState",
    "Message",
    "NotFound",
    "Page",
    "Pending",
    "PreparedTransaction",
    "Priority",
    "Producer",
    "ProtocolError",
    "QueueFull",
    "Receipt",
    "Receipts",
    "Refused",
    "Reject",
    "Retry",
    "RetryPolicy",
    "StoreDamaged",
    "StoreFailed",
    "StoreLocked",
    "Timeout",
    "TooLarge",
    "TooMany",
    "TooManyConnections",
    "TopicConfig",
    "TopicState",
    "TowlineError",
    "Transaction",
    "TransactionState",
    "Unavailable",
    "Unreadable",
    "aio",
    "connect",
]

_HOMES: dict[str, str] = {
    "App": "towline.client.app",
    "Batch": "towline.client.batch",
    "Check": "towline.protocol.transactions",
    "Checker": "towline.client.transaction",
    "Client": "towline.client.blocking",
    "Consumer": "towline.client.consumer",
    "DeadLetter": "towline.client.message",
    "DelayedEntry": "towline.client.delays",
    "Durability": "towline.model",
    "GroupConfig": "towline.model",
    "GroupState": "towline.protocol.messages",
    "LaneState": "towline.protocol.messages",
    "LostLease": "towline.client.lease",
    "MemberState": "towline.protocol.messages",
    "Message": "towline.client.message",
    "Page": "towline.client.page",
    "Pending": "towline.client.parcel",
    "PreparedTransaction": "towline.client.transaction",
    "Priority": "towline.model",
    "Producer": "towline.client.producer",
    "Receipt": "towline.model",
    "Receipts": "towline.client.receipts",
    "Reject": "towline.client.verdict",
    "Retry": "towline.client.verdict",
    "RetryPolicy": "towline.model",
    "TopicConfig": "towline.model",
    "TopicState": "towline.protocol.messages",
    "Transaction": "towline.client.transaction",
    "TransactionState": "towline.protocol.transactions",
    "connect": "towline.client.blocking",
}
"""Where names come from that are loaded when somebody asks for them: a program that imports us may not need us yet."""


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("towline.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
