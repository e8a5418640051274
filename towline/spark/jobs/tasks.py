"""Parallel work on Spark, of which only descriptions cross the JVM: tasks get and return small documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from towline.errors import TowlineError, from_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["in_tasks", "last_word", "pack"]

T = TypeVar("T")
R = TypeVar("R")


class _Done(msgspec.Struct):
    result: Any = None
    code: str = ""
    message: str = ""


def in_tasks(spark: SparkSession, work: Callable[[T], R], pieces: Sequence[T], kind: Any, title: str) -> list[R]:
    """`work(piece)` for each, one Spark task a piece, in any order. The results of `work` are of the type `kind`, which
    msgspec can encode; pieces are whatever Python can send to a task. Our own errors come back as such."""
    if not pieces:
        return []
    context = spark.sparkContext
    context.setJobDescription(title)
    # Not mapInArrow, which wants pandas; the data that crosses the JVM is small either way.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
    from pyspark.errors import PySparkException

    try:
        answers = context.parallelize(list(pieces), len(pieces)).map(lambda piece: _guarded(work, piece)).collect()
    except (PySparkException, Py4JError) as error:
        said = last_word(error)
        if "No module named 'towline" in said:
            said += ": install it where the executors run (PYSPARK_PYTHON), or ship it (spark-submit --py-files)"
        raise TowlineError(f"{title}: a task failed: {said}") from error
    results: list[R] = []
    for answer in answers:
        done = msgspec.msgpack.decode(answer, type=_Done)
        if done.code:
            raise from_code(done.code, done.message)
        results.append(msgspec.convert(done.result, kind))
    return results


def _guarded(work: Callable[[Any], Any], piece: Any) -> bytes:
    """The result or the error. An error that trying again may mend is Spark's to retry; one that it cannot is a
    result."""
    try:
        return msgspec.msgpack.encode(_Done(work(piece)))
    except TowlineError as error:
        if error.retriable:
            raise
        return msgspec.msgpack.encode(_Done(code=error.code, message=str(error)))


def last_word(error: Exception) -> str:
    """The error in a trace of two languages: the line that Python's own trace ends with."""
    lines = str(error).splitlines()
    at = max((number for number, line in enumerate(lines) if line.startswith("Traceback")), default=-1)
    said = [line for line in lines[at + 1 :] if line and not line[0].isspace()]
    return said[0] if said else str(error)


def pack(pieces: Iterable[T], weight: Callable[[T], int], enough: int) -> list[list[T]]:
    """Neighbours together, until they weigh enough to be worth a task."""
    packed: list[list[T]] = []
    room = 0
    for piece in pieces:
        if room <= 0:
            packed.append([])
            room = enough
        packed[-1].append(piece)
        room -= weight(piece)
    return packed
