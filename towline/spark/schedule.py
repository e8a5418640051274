"""Delayed messages as rows: what a broker's schedule holds now, soonest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from towline.client.blocking import Client
from towline.client.delays import DelayedEntry
from towline.spark.arrow import TIME

__all__ = ["SCHEDULE", "schedule_batches"]

SCHEDULE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("lane", pa.string()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("deliver_at", TIME),
        ("produced_at", TIME),
        ("size_bytes", pa.int64()),
        ("broker", pa.string()),
    ]
)
"""By `id` a message is cancelled or rescheduled; its body is in its topic once it is due."""

PAGE: Final = 10_000


def schedule_batches(
    client: Client, topic: str, broker: str, columns: pa.Schema, key: str | None
) -> Iterator[pa.RecordBatch]:
    """All that waits for a topic now. What becomes due meanwhile may or may not be among it."""
    last: DelayedEntry | None = None
    while page := client.delayed(topic, after=last, max_messages=PAGE):
        last = page[-1]
        entries = [one for one in page if key is None or one.key == key]
        values = {
            "topic": [topic] * len(entries),
            "lane": [one.priority for one in entries],
            "id": [one.id for one in entries],
            "key": [one.key or None for one in entries],
            "deliver_at": [one.deliver_at_us for one in entries],
            "produced_at": [one.produced_at_us for one in entries],
            "size_bytes": [one.size_bytes for one in entries],
            "broker": [broker or None] * len(entries),
        }
        arrays = [
            pa.array(values[field.name], pa.int64()).view(TIME)
            if field.type == TIME
            else pa.array(values[field.name], field.type)
            for field in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)
