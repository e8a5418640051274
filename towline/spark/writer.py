"""`df.write.format("towline")` and `df.writeStream.format("towline")`: every row becomes a message, exactly once.

*staged* (the default): each attempt of a task stages its rows at the broker, out of sight; the driver's commit
publishes the rows of the successful attempts, as one epoch of a sink. The broker remembers the sink's epochs, so that a
batch that is run again, in whatever order its rows come then, changes nothing.

*direct*: rows are sent as they come, each frame under a number made of query, batch, partition, its place and its
checksum; the broker recognises a frame that is sent again. That is faster, and visible at once, but it requires that a
task that is run again yields the same rows in the same order, and that the broker still remembers: its last 100,000
frames of all producers.

A batch is the same as one before if it has the same number and the same rows. Spark tells a sink nothing else about it,
and the number alone comes again with other rows when a checkpoint is restored from a backup, or copied.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from towline.client.produce.encode import as_durability
from towline.errors import Conflict, TowlineError, Unavailable
from towline.spark.arrow.row_digest import RowDigest
from towline.spark.arrow.to_frames import Encoder, Numbering, unnumbered
from towline.spark.options import WriteOptions
from towline.spark.short_errors import short_errors
from towline.spark.sink_routing import Records, SinkRouting, members_of, publish, unstage

__all__ = ["BatchWriter", "StreamWriter", "Written"]

_RECOMPUTED: Final = (
    "If the rows are the same ones, with values that are others whenever they are computed (uuid(), rand()), "
    "set rerun=trust to leave them out"
)
OTHER_JOB: Final = (
    f"Nothing was written. A job that has other rows needs another txnId, so that they are written. {_RECOMPUTED}"
)
OTHER_CHECKPOINT: Final = (
    "Nothing was written. The checkpoint was restored from a backup, or copied. To write these rows all the same (what "
    "was written since the backup then comes twice), give the option txnId a name of your own; to write only what is "
    f"new, begin a new query, with a new checkpointLocation, where it shall go on. {_RECOMPUTED}"
)


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    sink: str
    epoch: int
    digest: RowDigest | None = None
    """Of its rows, if it matters what they are."""
    records: list[Records] = field(default_factory=list)
    spread: list[str] = field(default_factory=list)


class _Sink(NamedTuple):
    name: str
    lasting: bool
    """Its epochs may come again."""
    remedy: str
    """What to do about an epoch that was another one before."""

    @contextmanager
    def advising(self) -> Iterator[None]:
        try:
            yield
        except Conflict as error:
            raise Conflict(f"{error}. {self.remedy}") from None


def _write(
    options: WriteOptions, sink: _Sink, epoch: int, members: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Written:
    """The work of one task."""
    durability, direct = as_durability(options.durability or None), options.mode == "direct"
    with options.door.connect() as client:
        topic = options.topic if sink.lasting else ""
        outlets = SinkRouting(client, durability, sink.name, epoch, direct, members, topic=topic)
        digest = RowDigest() if sink.lasting and options.rerun == "check" else None
        with sink.advising():
            done = outlets.done
        if done:
            for batch in batches:
                if digest is not None:
                    digest.add(batch)
            return Written(outlets.sink, epoch, digest, outlets.settle())
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        numbering = Numbering(f"{outlets.sink}/{epoch}/{partition}") if direct else unnumbered
        encoder = Encoder(
            options.topic,
            options.priority,
            options.door.token,
            outlets.shards,
            compress=options.compress,
            max_frame_bytes=outlets.max_request_bytes // 2,
            frame_rows=options.frame_rows,
        )
        for batch in batches:
            if digest is not None:
                digest.add(batch)
            dedup = "dedup_id" in batch.schema.names
            for frame in encoder.frames(batch, numbering, time.time_ns() // 1_000):
                outlets.add(frame, dedup=dedup)
                if direct:
                    # Alone: the frames that go together depend on where a task ends, and one that fails may end
                    # anywhere.
                    outlets.flush()
        return Written(outlets.sink, epoch, digest, outlets.settle(), outlets.spread)


def _members(options: WriteOptions) -> list[str]:
    """Asked for on the driver, so that all tasks know the same."""
    with options.door.connect() as client:
        return members_of(client)


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None], sink: _Sink) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        return
    first, digests = written[0], [one.digest for one in written if one.digest is not None]
    spreads = [one.spread for one in written if one.spread]
    if any(spread != spreads[0] for spread in spreads):
        raise Unavailable("another attempt at this batch is being published: run it again")
    records = [some for one in written for some in one.records]
    digest = bytes(sum(digests, RowDigest())) if digests else b""
    with options.door.connect() as client, sink.advising():
        durability = as_durability(options.durability or None)
        publish(client, durability, first.sink, first.epoch, records, digest, spreads[0] if spreads else ())


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop staged records, as well as possible: the broker drops unpublished ones after a day."""
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
        self._sink = _Sink(f"spark-batch:{options.txn_id or uuid.uuid4().hex}", bool(options.txn_id), OTHER_JOB)
        self._members = _members(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with short_errors():
            return _write(self._options, self._sink, 0, self._members, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with short_errors():
            _commit(self._options, messages, self._sink)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._members = _members(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with short_errors():
            query, batch = _ids_of_batch()
            return _write(self._options, self._sink(query), batch, self._members, iterator)

    def _sink(self, query: str) -> _Sink:
        words = ["spark-stream", query, self._options.txn_id]
        return _Sink(":".join(filter(None, words)), True, OTHER_CHECKPOINT)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        del batchId
        with short_errors():
            _commit(self._options, messages, self._sink(""))

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
