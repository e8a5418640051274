"""Random appends, reads, trims, retains and restarts, on every store beside a model too simple to be wrong."""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
import warnings
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.inside.frame import Frame
from tests.inside.ground import SECOND_US
from tests.inside.store import Append, MemoryStore, Store
from tests.store.contract.stores import KINDS, MemoryStores, Stores, bodies_of, frame_of, make_stores
from towline.errors import QueueFull
from towline.model import Durability

T = TypeVar("T")

NAMES = st.sampled_from(["a", "lane/c/low", "pull/c/x", "pull/c/y"])


class Record(NamedTuple):
    body: bytes
    at_us: int
    frame: int
    """Counts the frames of all streams: the oldest has the lowest."""
    frame_bytes: int


NEVER = Record(b"", 0, 0, 0)


class StoreBesideModel(RuleBasedStateMachine):
    kind: str
    folder: Path
    """Of the test. Each machine has one of its own in it."""
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = self.folder / str(next(self.numbers))
        self.stores: Stores = make_stores(self.kind, self.place)
        try:
            self.store: Store = self.run(self.stores.make())
        except BaseException:
            self.runner.close()
            raise
        self.records: dict[str, list[Record]] = {}
        """Of each stream that is there, from number 0 on: what is before its first one never was."""
        self.first: dict[str, int] = {}
        self.floors: dict[str, int] = {}
        self.documents: dict[str, bytes] = {}
        self.frames = 0

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.runner.run(wait())

    def teardown(self) -> None:
        try:
            self.run(self.store.close())
        finally:
            self.runner.close()
            shutil.rmtree(self.place, ignore_errors=True)

    @rule(
        parts=st.lists(st.tuples(NAMES, st.integers(1, 5), st.sampled_from([10, 300, 4000, 20_000])), max_size=4),
        durability=st.sampled_from(Durability),
    )
    def append(self, parts: list[tuple[str, int, int]], durability: Durability) -> None:
        frames = [frame_of(count, size, f"{self.frames}+{index}") for index, (_, count, size) in enumerate(parts)]
        unit = [Append(name, frame, count) for (name, count, _), frame in zip(parts, frames, strict=True)]
        expected, ends = [], {name: len(records) for name, records in self.records.items()}
        for name, count, _ in parts:
            expected.append(ends.get(name, self.floor(name)))
            ends[name] = expected[-1] + count

        async def append() -> tuple[tuple[int, ...], int]:
            appended = self.store.append(unit, durability)
            # The model knows nothing of what is not written yet, so it waits also where the sender need not.
            barrier = self.store.append([], Durability.OS)
            await appended.done
            await barrier.done
            return appended.firsts, appended.at_us

        try:
            firsts, at_us = self.run(append())
        except QueueFull:
            return
        assert firsts == tuple(expected)
        for (name, _, _), frame in zip(parts, frames, strict=True):
            self.frames += 1
            self.first.setdefault(name, self.floor(name))
            records = self.records.setdefault(name, [NEVER] * self.floor(name))
            records += [Record(body, at_us, self.frames, len(frame)) for body in Frame(frame).bodies()]

    @rule(name=NAMES, first=st.integers(0, 80), max_count=st.integers(1, 30), max_bytes=st.integers(0, 100_000))
    def read(self, name: str, first: int, max_count: int, max_bytes: int) -> None:
        read = self.run(self.store.read(name, first, max_count, max_bytes))
        records = self.records.get(name, [NEVER] * self.floor(name))
        begin = max(first, self.first[name]) if name in self.first and first < len(records) else first
        begin = begin if name in self.first else max(begin, self.floor(name))
        expected = self.readable(records, begin, max_count, max_bytes)
        assert not read.lost
        assert bodies_of(read.chunks) == [record.body for record in expected]
        assert read.next == begin + len(expected)
        times = [chunk.appended_at_us for chunk in read.chunks for _ in range(chunk.count)]
        assert times == [record.at_us for record in expected]

    @staticmethod
    def readable(records: list[Record], begin: int, max_count: int, max_bytes: int) -> list[Record]:
        found: list[Record] = []
        for record in records[begin : begin + max_count]:
            if found and record.frame != found[-1].frame:
                frames = {known.frame: known.frame_bytes for known in [*found, record]}
                if sum(frames.values()) > max_bytes:
                    break
            found.append(record)
        return found

    @rule(name=NAMES, before=st.integers(0, 80))
    def trim(self, name: str, before: int) -> None:
        self.run(self.store.trim(name, before))
        if name in self.records:
            self.first[name] = max(self.first[name], min(before, len(self.records[name])))

    @rule(name=NAMES, before=st.integers(0, 80))
    def forget(self, name: str, before: int) -> None:
        self.run(self.store.trim(name, before, forget=True))
        if name in self.records:
            end = len(self.records[name])
            self.first[name] = max(self.first[name], min(before, end))
            if "/" in name and self.first[name] == end:
                self.floors[name.split("/", maxsplit=1)[0]] = max(self.floor(name), end)
                del self.records[name], self.first[name]

    def floor(self, name: str) -> int:
        return self.floors.get(name.split("/", maxsplit=1)[0], 0)

    @rule(name=NAMES, back_s=st.integers(-2, 40))
    def locate(self, name: str, back_s: int) -> None:
        time_us = self.stores.clock.now_us() - back_s * SECOND_US
        records = self.records.get(name, [NEVER] * self.floor(name))
        first = self.first.get(name, self.floor(name))
        expected = next((seq for seq in range(first, len(records)) if records[seq].at_us >= time_us), len(records))
        assert self.run(self.store.locate(name, time_us)) == expected

    @rule(seconds=st.integers(0, 20))
    def wait(self, seconds: int) -> None:
        self.stores.clock.advance(seconds)

    @rule(
        max_age_s=st.just(0) | st.integers(1, 40),
        max_bytes=st.just(0) | st.integers(1, 400_000),
        pinned=st.dictionaries(NAMES, st.integers(0, 80), max_size=2),
    )
    def retain(self, max_age_s: int, max_bytes: int, pinned: dict[str, int]) -> None:
        expected = self.retained(max_age_s, max_bytes, pinned)
        self.run(self.store.retain(max_age_s * SECOND_US, max_bytes, pinned))
        oldest_us = self.stores.clock.now_us() - max_age_s * SECOND_US
        for name, first in self.first.items():
            now_first = self.store.bounds(name).first
            dropped = self.records[name][first:now_first]
            assert now_first >= first
            assert now_first == first or now_first <= pinned.get(name, now_first), "a pin holds"
            assert max_bytes or all(max_age_s and record.at_us < oldest_us for record in dropped)
            if not self.stores.coarseness_bytes:
                assert now_first == expected[name]
            # A store of files may keep more than it was asked to, and the model follows it.
            self.first[name] = now_first

    def retained(self, max_age_s: int, max_bytes: int, pinned: dict[str, int]) -> dict[str, int]:
        """The first records after `retain` by a store without coarseness: whole frames go, the oldest first."""
        first = dict(self.first)
        frames = sorted(
            {
                (record.frame, name, record.at_us, record.frame_bytes)
                for name, records in self.records.items()
                for record in records[first[name] :]
            }
        )
        size = sum(frame_bytes for *_, frame_bytes in frames)
        oldest_us = self.stores.clock.now_us() - max_age_s * SECOND_US
        for frame, name, at_us, frame_bytes in frames:
            end = 1 + max(seq for seq, record in enumerate(self.records[name]) if record.frame == frame)
            asked = (max_age_s and at_us < oldest_us) or (max_bytes and size > max_bytes)
            if asked and end <= pinned.get(name, end):
                first[name] = end
                size -= frame_bytes
        return first

    @rule(name=st.sampled_from(["x.json", "y"]), document=st.binary(max_size=50))
    def save(self, name: str, document: bytes) -> None:
        self.run(self.store.save(name, document))
        self.documents[name] = document

    @precondition(lambda self: self.stores.durable)
    @rule()
    def reopen(self) -> None:
        self.run(self.store.close())
        self.store = self.run(self.stores.make())

    @invariant()
    def bounds_and_documents_are_as_in_the_model(self) -> None:
        assert self.store.streams() == sorted(self.records)
        for name, records in self.records.items():
            first, end, size_bytes = self.store.bounds(name)
            assert (first, end) == (self.first[name], len(records))
            assert (size_bytes == 0) == (first == end)
        for name in {"lane/c/low", "pull/c/x", "pull/c/y"} - self.records.keys():
            assert self.store.bounds(name) == (self.floor(name), self.floor(name), 0)
        for name in ("x.json", "y"):
            assert self.run(self.store.load(name)) == self.documents.get(name)


@pytest.mark.parametrize("broken", ["make", "close"])
def test_a_machine_whose_store_fails_leaves_nothing_to_be_collected_in_another_test(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise OSError("gone")

    machine: Any = type("Machine", (StoreBesideModel,), {"kind": "memory", "folder": tmp_path})
    monkeypatch.setattr(MemoryStores if broken == "make" else MemoryStore, broken, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(OSError, match="gone"):
            machine().teardown()
        gc.collect()
    assert [str(one.message) for one in caught] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_does_what_the_model_does(kind: str, tmp_path: Path) -> None:
    machine: Any = type("Machine", (StoreBesideModel,), {"kind": kind, "folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 if kind == "memory" else 25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
