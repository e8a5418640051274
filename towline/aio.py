"""Towline for asyncio: the names of `towline`, awaited.

async with towline.aio.connect("memory:") as mq:
    await mq.send("orders", b"...")
    async with mq.consumer("orders", group="billing") as consumer:
        async for message in consumer:
            with message:
                await handle(message.body)
"""

from towline.client._async.client import (
    Batch,
    Checker,
    Client,
    Consumer,
    Pending,
    PreparedTransaction,
    Producer,
    Transaction,
    connect,
)

__all__ = [
    "Batch",
    "Checker",
    "Client",
    "Consumer",
    "Pending",
    "PreparedTransaction",
    "Producer",
    "Transaction",
    "connect",
]
