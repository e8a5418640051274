"""The job of a worker, and its report: one line of JSON each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

__all__ = ["Job", "Percentiles", "Report", "Tally", "percentiles"]

Role = Literal["frames", "producer", "single", "consume", "paced", "handle"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's work.

    `frames`: `send_many` of `batch` messages, with `in_flight` of these calls under way at a time.
    `producer`: single `send` calls through the batching producer.
    `single`: confirmed `send` calls, one after the other.
    `consume`: pull `batch` messages, go through them one by one, acknowledge the batch.
    `paced`: `rate` messages a second, each with the time of its sending in its body.
    `handle`: consume those as a handler would, one by one, and see how long each was on its way.
    """

    role: Role
    topics: tuple[str, ...]
    url: str = ""
    token: str = ""
    secret: str = ""
    ca_file: str | None = None
    count: int = 0
    """Messages in all; 0 is without end, where `seconds` sets one."""
    seconds: float = 0.0
    size: Annotated[int, msgspec.Meta(ge=0)] = 100
    batch: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 4
    rate: float = 0.0
    """Messages a second; 0 is as fast as it goes."""
    durability: Literal["fsync", "os", "received"] | None = None
    group: str | None = None
    idle_s: float = 10.0
    """A consumer that gets nothing for this long is done."""


class Percentiles(msgspec.Struct, frozen=True):
    """Of times, in milliseconds."""

    p50: float
    p99: float
    p999: float = msgspec.field(name="p99.9")
    max: float


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a worker. Times are of the steady clock, which all processes of a machine share."""

    messages: int
    bytes: int
    begin_ns: int
    end_ns: int
    latency: Percentiles | None = None
    """Of each call, or for `handle` from send to handler."""

    @property
    def seconds(self) -> float:
        return max(1, self.end_ns - self.begin_ns) / 1e9

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def bytes_rate(self) -> float:
        return self.bytes / self.seconds


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line from a worker: ready, progress, done, or failed."""

    ready: bool = False
    done: int = 0
    tally: Tally | None = None
    error: str = ""


def percentiles(times_ns: Sequence[int]) -> Percentiles | None:
    if not times_ns:
        return None
    ranked = sorted(times_ns)

    def at(share: float) -> float:
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] / 1e6

    return Percentiles(at(0.5), at(0.99), at(0.999), ranked[-1] / 1e6)
