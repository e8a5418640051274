"""`df.write.format("towline")` and `df.writeStream.format("towline")`: every row becomes a message, exactly once.

*staged* (the default): each attempt of a task stages its rows at the broker, out of sight; the driver's commit
publishes what the successful attempts have staged, as one epoch of a sink. The broker remembers how far the sink has
come, so that a batch that is run again, in whatever order its rows come then, changes nothing.

*direct*: rows are sent as they come, each frame under a number made of query, batch, partition and its place; the
broker recognises what is sent again. That is faster, and seen at once, but it takes that a task that is run again
yields the same rows in the same order, and that the broker still remembers: its last 100,000 frames of all producers.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from towline.client.outgoing import as_durability
from towline.errors import TowlineError, Unavailable
from towline.spark.encoding import Encoder, Numbers
from towline.spark.options import WriteOptions
from towline.spark.outlets import Outlets, Records, members_of, publish, unstage
from towline.spark.plainly import plainly

__all__ = ["BatchWriter", "StreamWriter", "Written"]

FRAMES_PER_ID: Final = 128
"""A broker remembers the last 256 frames of a producer: no id is used for more than half as many."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    sink: str
    epoch: int
    rows: int = 0
    records: list[Records] = field(default_factory=list)
    repeated: bool = False
    """The epoch had been published before: nothing was written."""


def _write(
    options: WriteOptions, sink: str, epoch: int, members: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Written:
    """The work of one task."""
    durability, direct = as_durability(options.durability or None), options.mode == "direct"
    with options.door.connect() as client:
        outlets = Outlets(client, durability, sink, epoch, direct, members)
        if outlets.done:
            for _ in batches:
                pass
            return Written(sink, epoch, repeated=True)
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        numbering = _Numbering(f"{sink}/{epoch}/{partition}") if direct else Numbers
        encoder = Encoder(
            options.topic,
            options.priority,
            options.door.token,
            outlets.shards,
            compress=options.compress,
            max_frame_bytes=outlets.max_request_bytes // 2,
            frame_rows=options.frame_rows,
        )
        written = Written(sink, epoch)
        for batch in batches:
            written.rows += batch.num_rows
            dedup = "dedup_id" in batch.schema.names
            for frame in encoder.frames(batch, numbering, time.time_ns() // 1_000):
                outlets.add(frame, dedup=dedup)
                if direct:
                    # Alone: which frames go together depends on where a task ends, and one that fails may end anywhere.
                    outlets.flush()
        written.records = outlets.settle()
        return written


class _Numbering:
    """Numbers for frames that are the same whenever the same task is run again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def __call__(self) -> Numbers:
        block, place = divmod(self._count, FRAMES_PER_ID)
        self._count += 1
        digest = hashlib.blake2b(f"{self._name}/{block}".encode(), digest_size=8).digest()
        return Numbers(int.from_bytes(digest, "big") >> 1 or 1, place + 1)


def _members(options: WriteOptions) -> list[str]:
    """Asked for on the driver, so that all tasks know the same."""
    with options.door.connect() as client:
        return members_of(client)


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    if not written or all(one.repeated for one in written):
        return
    records = [some for one in written for some in one.records]
    with options.door.connect() as client:
        durability = as_durability(options.durability or None)
        publish(client, durability, written[0].sink, written[0].epoch, records)


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop what was staged, as well as can be: what nobody publishes the broker drops after a day."""
    records = [some for message in messages if isinstance(message, Written) for some in message.records]
    if not records:
        return
    try:
        with options.door.connect() as client:
            unstage(client, records)
    except TowlineError:
        pass


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made on the driver, so that all tasks of a job and their retries have the same.
        self._sink = f"spark-batch:{options.txn_id or uuid.uuid4().hex}"
        self._members = _members(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with plainly():
            return _write(self._options, self._sink, 0, self._members, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with plainly():
            _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._members = _members(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with plainly():
            query, batch = _ids_of_batch()
            return _write(self._options, f"spark-stream:{query}", batch, self._members, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        del batchId
        with plainly():
            _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        del batchId
        _abort(self._options, messages)


def _ids_of_batch() -> tuple[str, int]:
    """Of the query, as in its checkpoint, and of the batch: both outlive task, driver and cluster."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if not query or batch is None:
        raise Unavailable("Spark does not say which query and batch this task belongs to")
    return query, int(batch)
