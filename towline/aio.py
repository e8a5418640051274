"""Towline for asyncio: the names of `towline`, awaited.

async with towline.aio.connect("memory:") as mq:
    await mq.send("orders", b"...")
    async with mq.consumer("orders", group="billing") as consumer:
        async for message in consumer:
            with message:
                await handle(message.body)
"""

from towline.client.aio import Batch, Client, Consumer, Pending, Producer, connect

__all__ = ["Batch", "Client", "Consumer", "Pending", "Producer", "connect"]
