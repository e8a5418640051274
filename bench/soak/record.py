"""What happened during a soak, and the figures that it comes down to: of the whole run, and by tenths of it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bench.figures import Figure, shown
from bench.soak.gauges import Reading
from bench.soak.task import Note, Span

__all__ = ["PARTS", "Record", "Turn", "kinds_of", "slope_per_min"]

PARTS: Final = 10
LIMITS_MS: Final = (20, 50, 100)
PROBES: Final = ("bystander", "durable bystander")
MACHINE: Final = ("sleep", "disk")
LONGEST: Final = 10
"""Stalls that are told one by one."""
STALL_MS: Final = 100.0
STEP_MS: Final = 20.0
FLAT_MB_PER_MIN: Final = 0.1

_STAMP = re.compile(r"^\S+Z (\w+) (\S+): ")
_STEP = re.compile(r'^towline_background_step_seconds\{work="([^"]*)"\} (\S+)$', re.MULTILINE)
_VARIABLE = re.compile(r"[\w.~@:/+,-]*\d[\w.~@:/+,-]*")


class Turn(NamedTuple):
    """A tenth of the run."""

    end_min: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    stalls: tuple[int, ...]
    """Longer than each of the limits, and the broker's."""
    machine_ms: float
    """How late the machine was at worst, for a process that only sleeps."""
    disk_ms: float
    messages_per_s: float
    cpu: float
    rss_mb: float
    files: int
    disk_mb: float


class Record:
    def __init__(self, begin_s: float, end_s: float) -> None:
        self.begin_s = begin_s
        self.end_s = end_s
        self.readings: list[Reading] = []
        self.spans: dict[str, list[Span]] = {role: [] for role in (*PROBES, *MACHINE)}
        self.done: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self._done_at: list[tuple[float, int]] = []
        self.steps_s: dict[str, float] = {}
        """By the name of the broker's background work, the processor time of its longest step."""

    def note_metrics(self, text: str) -> None:
        for work, seconds in _STEP.findall(text):
            self.steps_s[work] = max(float(seconds), self.steps_s.get(work, 0.0))

    def note(self, note: Note, now_s: float) -> None:
        if now_s < self.begin_s or now_s > self.end_s:
            return
        self.done[note.role] += note.done
        for error, times in note.failures.items():
            self.failures[note.role, error] += times
        if note.role in self.spans:
            self.spans[note.role] += note.spans
        else:
            self._done_at.append((now_s, note.done))

    # Stalls

    def stalls(self, role: str, least_ms: float = LIMITS_MS[0]) -> list[Span]:
        return [span for span in self.spans[role] if span.ms > least_ms]

    def is_the_machines(self, span: Span) -> bool:
        """Whether for half of it the broker or its client got no processor, or the disk did not answer. Not if the
        broker's loop was busy for half of it."""
        machine_ms = max(span.waited_ms, self._overlap_ms("sleep", span), self._overlap_ms("disk", span))
        return span.ran_ms < span.ms / 2 <= machine_ms

    def _overlap_ms(self, role: str, span: Span) -> float:
        spans = self.spans[role]
        total, at = 0.0, bisect_left(spans, span.begin_s, key=lambda one: one.end_s)
        while at < len(spans) and spans[at].begin_s < span.end_s:
            total += min(span.end_s, spans[at].end_s) - max(span.begin_s, spans[at].begin_s)
            at += 1
        return total * 1e3

    # Figures

    def turns(self) -> list[Turn]:
        length_s = (self.end_s - self.begin_s) / PARTS
        return [
            self._turn(self.begin_s + part * length_s, self.begin_s + (part + 1) * length_s) for part in range(PARTS)
        ]

    def _turn(self, begin_s: float, end_s: float) -> Turn:
        def within(role: str) -> list[Span]:
            return [span for span in self.spans[role] if begin_s <= span.begin_s < end_s]

        sends = within(PROBES[0])
        stalls = [span for span in sends if span.ms > LIMITS_MS[0] and not self.is_the_machines(span)]
        readings = [reading for reading in self.readings if begin_s <= reading.at_s < end_s] or self.readings[-1:]
        first, last = readings[0], readings[-1]
        return Turn(
            (end_s - self.begin_s) / 60,
            percentile(sends, 0.5),
            percentile(sends, 0.99),
            percentile(sends, 0.999),
            percentile(sends, 1.0),
            tuple(sum(span.ms > limit for span in stalls) for limit in LIMITS_MS),
            percentile(within("sleep"), 1.0),
            percentile(within("disk"), 1.0),
            sum(done for at_s, done in self._done_at if begin_s <= at_s < end_s) / (end_s - begin_s),
            (last.cpu_s - first.cpu_s) / max(0.001, last.at_s - first.at_s),
            last.rss_bytes / 1e6,
            last.files,
            max(reading.disk_bytes for reading in readings) / 1e6,
        )

    def figures(self, log: str) -> Iterator[Figure]:
        turns = self.turns()
        for role in PROBES:
            yield from self._sends(role)
        for role, name in (("sleep", "a process that only sleeps, late by at most"), ("disk", "a synced 4 KiB write")):
            yield _figure(name, percentile(self.spans[role], 1.0), "ms", note="the machine's own")
        rss = [(one.at_s, one.rss_bytes / 1e6) for one in self.readings]
        anonymous = [(one.at_s, one.anonymous_bytes / 1e6) for one in self.readings]
        disk = [(one.at_s, one.disk_bytes / 1e6) for one in self.readings]
        yield _figure("memory at the end", rss[-1][1], "MB", turns=[turn.rss_mb for turn in turns])
        note = f"straight line through the second half; without files' pages {slope_per_min(anonymous):.2f}"
        yield _figure("memory grows by", slope_per_min(rss), "MB/min", target=FLAT_MB_PER_MIN, note=note)
        yield _figure("disk at the end", disk[-1][1], "MB", turns=[turn.disk_mb for turn in turns])
        note = "straight line through the second half"
        yield _figure("disk grows by", slope_per_min(disk), "MB/min", target=FLAT_MB_PER_MIN, note=note)
        first, last = self.readings[0], self.readings[-1]
        spent = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
        yield _figure("processor time of the broker", spent, "cores", turns=[turn.cpu for turn in turns])
        stolen = (last.stolen_s - first.stolen_s) / (last.at_s - first.at_s)
        yield _figure("processor time that the host took away", stolen, "cores")
        yield _figure("open files at the end", last.files, "", turns=[float(turn.files) for turn in turns])
        handled = sum(done for _, done in self._done_at) / (self.end_s - self.begin_s)
        yield _figure("load", handled, "msg/s", turns=[turn.messages_per_s for turn in turns])
        for work, seconds in sorted(self.steps_s.items(), key=lambda one: -one[1])[:LONGEST]:
            note = "processor time of its longest step, as the broker says"
            yield _figure(f"background: {work}", seconds * 1e3, "ms", target=STEP_MS, note=note)
        for (role, error), times in self.failures.most_common(20):
            yield _figure(f"failures of {role}", times, "", note=error)
        for (level, kind), times in kinds_of(log).most_common(20):
            yield _figure(f"{level.lower()} lines in the log", times, "", note=kind)

    def _sends(self, role: str) -> Iterator[Figure]:
        spans = self.spans[role]
        ours = [span for span in self.stalls(role, 5) if not self.is_the_machines(span)]
        slowest = sorted(ours, key=lambda span: -span.ms)[:LONGEST]
        yield _figure(
            f"{role}: longest send",
            slowest[0].ms if slowest else 5.0,
            "ms",
            target=STALL_MS,
            note=f"of the broker's; with the machine's stalls {shown(percentile(spans, 1.0))} ms; the longest, and how "
            "long the loop worked meanwhile: "
            + ", ".join(
                f"{(span.begin_s - self.begin_s) / 60:.2f} min {span.ms:.0f} ms (loop {span.ran_ms:.0f})"
                for span in slowest
            ),
        )
        busy = [span.ms for span in spans if span.ran_ms * 2 >= span.ms]
        note = "the rest of the broker's waited for a thread of it, or for the disk"
        yield _figure(f"{role}: longest with the loop at work for half", max(busy, default=0.0), "ms", STALL_MS, note)
        quantiles = [percentile(spans, share) for share in (0.5, 0.99, 0.999)]
        for name, value in zip(("p50", "p99", "p99.9"), quantiles, strict=True):
            yield _figure(f"{role}: {name}", value, "ms", note=f"of {len(spans):,} sends")
        for limit in LIMITS_MS:
            stalls = self.stalls(role, limit)
            machines = sum(map(self.is_the_machines, stalls))
            note = f"and {machines} of the machine's"
            yield _figure(f"{role}: stalls over {limit} ms", len(stalls) - machines, "", note=note)


def _figure(
    name: str, value: float, unit: str, target: float | None = None, note: str = "", turns: Sequence[float] = ()
) -> Figure:
    return Figure(
        scenario="soak",
        name=name,
        value=value,
        unit=unit,
        target=target,
        less_is_better=True,
        note=note,
        turns=tuple(turns),
    )


def percentile(spans: Sequence[Span], share: float) -> float:
    ranked = sorted(span.ms for span in spans)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def slope_per_min(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through the second half of them."""
    half = points[len(points) // 2 :]
    if len(half) < 2:
        return 0.0
    middle_s = sum(at_s for at_s, _ in half) / len(half)
    middle = sum(value for _, value in half) / len(half)
    spread = sum((at_s - middle_s) ** 2 for at_s, _ in half)
    return 60 * sum((at_s - middle_s) * (value - middle) for at_s, value in half) / spread if spread else 0.0


def kinds_of(log: str) -> Counter[tuple[str, str]]:
    """Lines of a broker's log by level and kind: what differs from line to line is left out."""
    found: Counter[tuple[str, str]] = Counter()
    for line in log.splitlines():
        match = _STAMP.match(line)
        if match is not None:
            found[match[1], _VARIABLE.sub("#", line[match.end() :])[:120]] += 1
    return found
