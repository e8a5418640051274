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
    from towline.client._sync.client import Client, connect
    from towline.client._sync.consumer import Consumer
    from towline.client._sync.producer import Producer
    from towline.client._sync.transaction import Checker, PreparedTransaction, Transaction
    from towline.client.admin.delayed import DelayedEntry
    from towline.client.app.app import App
    from towline.client.consume.batch import Batch
    from towline.client.consume.lease import LostLease
    from towline.client.consume.message import DeadLetter, Message
    from towline.client.consume.outcome import Reject, Retry
    from towline.client.produce.batch import Pending
    from towline.client.produce.receipts import Receipts
    from towline.client.results import Page
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
    "App": "towline.client.app.app",
    "Batch": "towline.client.consume.batch",
    "Check": "towline.protocol.transactions",
    "Checker": "towline.client._sync.transaction",
    "Client": "towline.client._sync.client",
    "Consumer": "towline.client._sync.consumer",
    "DeadLetter": "towline.client.consume.message",
    "DelayedEntry": "towline.client.admin.delayed",
    "Durability": "towline.model",
    "GroupConfig": "towline.model",
    "GroupState": "towline.protocol.messages",
    "LaneState": "towline.protocol.messages",
    "LostLease": "towline.client.consume.lease",
    "MemberState": "towline.protocol.messages",
    "Message": "towline.client.consume.message",
    "Page": "towline.client.results",
    "Pending": "towline.client.produce.batch",
    "PreparedTransaction": "towline.client._sync.transaction",
    "Priority": "towline.model",
    "Producer": "towline.client._sync.producer",
    "Receipt": "towline.model",
    "Receipts": "towline.client.produce.receipts",
    "Reject": "towline.client.consume.outcome",
    "Retry": "towline.client.consume.outcome",
    "RetryPolicy": "towline.model",
    "TopicConfig": "towline.model",
    "TopicState": "towline.protocol.messages",
    "Transaction": "towline.client._sync.transaction",
    "TransactionState": "towline.protocol.transactions",
    "connect": "towline.client._sync.client",
}
"""Module of each public name, imported on first use: a program that imports us may not need it yet."""


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
