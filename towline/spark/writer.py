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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from towline.client.blocking import Client
from towline.client.outgoing import as_durability
from towline.client.publishing import Addressed, Publisher
from towline.errors import TowlineError, Unavailable
from towline.spark.encoding import Encoder, Numbers
from towline.spark.options import WriteOptions
from towline.spark.plainly import plainly

__all__ = ["BatchWriter", "StreamWriter", "Written"]

RECORD_BYTES: Final = 8 << 20
"""Frames are staged and sent about so much at a time."""
HEAD_ROOM: Final = 64 << 10
FRAMES_PER_ID: Final = 128
"""A broker remembers the last 256 frames of a producer: no id is used for more than half as many."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    sink: str
    epoch: int
    rows: int = 0
    records: list[int] = field(default_factory=list)
    repeated: bool = False
    """The epoch had been published before: nothing was written."""


def _publisher(client: Client, options: WriteOptions) -> Publisher:
    return Publisher(client, as_durability(options.durability or None))


def _write(options: WriteOptions, sink: str, epoch: int, batches: Iterator[pa.RecordBatch]) -> Written:
    """The work of one task."""
    with options.door.connect() as client:
        publisher = _publisher(client, options)
        if publisher.epoch(sink) >= epoch:
            for _ in batches:
                pass
            return Written(sink, epoch, repeated=True)
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        numbering = _Numbering(f"{sink}/{epoch}/{partition}") if options.mode == "direct" else Numbers
        limit = publisher.max_request_bytes - HEAD_ROOM
        encoder = Encoder(
            options.topic,
            options.priority,
            options.door.token,
            publisher.shards,
            compress=options.compress,
            max_frame_bytes=limit // 2,
            frame_rows=options.frame_rows,
        )
        written = Written(sink, epoch)
        parcel = _Parcel(publisher, direct=options.mode == "direct", limit=min(RECORD_BYTES, limit))
        for batch in batches:
            written.rows += batch.num_rows
            for frame in encoder.frames(batch, numbering, time.time_ns() // 1_000):
                parcel.add(frame)
        parcel.flush()
        publisher.settle()
        written.records = publisher.records
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


class _Parcel:
    """Collects frames until they make a request."""

    def __init__(self, publisher: Publisher, *, direct: bool, limit: int) -> None:
        self._publisher = publisher
        self._direct = direct
        self._limit = limit
        self._frames: list[Addressed] = []
        self._bytes = 0

    def add(self, frame: Addressed) -> None:
        size = len(frame.frame)
        if self._frames and (self._bytes + size > self._limit or len(self._frames) >= 500):
            self.flush()
        self._frames.append(frame)
        self._bytes += size
        if self._direct:
            # Alone: which frames go together depends on where a task ends, and one that fails may end anywhere.
            self.flush()

    def flush(self) -> None:
        if self._frames:
            (self._publisher.send if self._direct else self._publisher.stage)(self._frames)
            self._frames, self._bytes = [], 0


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    if not written or all(one.repeated for one in written):
        return
    records = [record for one in written for record in one.records]
    with options.door.connect() as client:
        _publisher(client, options).publish(written[0].sink, written[0].epoch, records)


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop what was staged, as well as can be: what nobody publishes the broker drops after a day."""
    records = [record for message in messages if isinstance(message, Written) for record in message.records]
    if not records:
        return
    try:
        with options.door.connect() as client:
            _publisher(client, options).unstage(records)
    except TowlineError:
        pass


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made on the driver, so that all tasks of a job and their retries have the same.
        self._sink = f"spark-batch:{options.txn_id or uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with plainly():
            return _write(self._options, self._sink, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with plainly():
            _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with plainly():
            query, batch = _ids_of_batch()
            return _write(self._options, f"spark-stream:{query}", batch, iterator)

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
