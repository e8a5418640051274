"""Messages that are delivered again with others between them that are not."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, Bench, Got, World
from tests.inside.broker import fetch
from tests.inside.client import Lease
from tests.inside.protocol import Act, Pull
from tests.inside.store import Read

COUNT = 400


async def scattered(bench: Bench, monkeypatch: pytest.MonkeyPatch, frames: int, **columns: Any) -> list[int]:
    """Every second message is acked, and the others come again. From then on, the bytes of each read."""
    each = COUNT // frames
    for number in range(frames):
        bodies = [b"%05d" % (number * each + index) + b"x" * 95 for index in range(each)]
        await bench.send("orders", *bodies, **columns)
    member = await bench.attach()
    got = await bench.pull(member, COUNT)
    await bench.act(member, ACK, got, *[(1, seq, 1) for seq in range(0, COUNT, 2)])
    await bench.act(member, GIVE_BACK, got)
    reads: list[int] = []
    read = bench.store.read

    async def counted(stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        found = await read(stream, first, max_count, max_bytes)
        reads.append(sum(len(chunk.frame) for chunk in found.chunks))
        return found

    monkeypatch.setattr(bench.store, "read", counted)
    return reads


def odd_bodies() -> list[bytes]:
    return [b"%05d" % seq + b"x" * 95 for seq in range(1, COUNT, 2)]


@pytest.mark.parametrize("understood", [True, False], ids=["with runs", "an older client"])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("frames", [1, 4, COUNT])
async def test_neighbouring_fragments_are_read_together(
    world: World, monkeypatch: pytest.MonkeyPatch, frames: int, compress: bool, understood: bool
) -> None:
    async with world.open() as bench:
        reads = await scattered(bench, monkeypatch, frames, compress=compress)
        member = await bench.attach()
        request = Pull(0, COUNT, 64 << 20, scattered=understood)
        answer, buffers = await bench.broker.consumers.pull(member, request)
        assert len(reads) <= 3
        assert sum(part.count for part in answer.parts) == COUNT // 2
        if understood:
            assert len(answer.parts) <= (frames if frames < COUNT else COUNT // 2)
            lease = opened(answer.pull, answer.parts, b"".join(buffers))
            assert [message.body for message in lease.messages()] == odd_bodies()
            assert [message.seq for message in lease.messages()] == list(range(1, COUNT, 2))
        else:
            assert all(not part.runs for part in answer.parts)
            assert Got(answer, b"".join(buffers)).bodies == odd_bodies()


def opened(pull: int, parts: list[Any], data: bytes) -> Lease:
    raw, at = [], 0
    for part in parts:
        raw.append((part, memoryview(data)[at : at + part.length]))
        at += part.length
    nacks: deque[Act] = deque()
    lease = Lease(pull, raw, nacks, deque())
    lease.open()
    return lease


async def test_a_pull_of_fragments_is_bounded_by_what_it_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is given back, and comes with the next pulls."""

    async with world.open() as bench:
        reads = await scattered(bench, monkeypatch, 20)
        monkeypatch.setattr(fetch, "GAP_BYTES", 0)
        monkeypatch.setattr(fetch, "READ_BYTES_MAX", 6_000)
        member, found, pulls = await bench.attach(), list[bytes](), 0
        while len(found) < COUNT // 2:
            reads.clear()
            answer, buffers = await bench.broker.consumers.pull(member, Pull(0, COUNT, 64 << 20, scattered=True))
            lease = opened(answer.pull, answer.parts, b"".join(buffers))
            found += lease.bodies()
            pulls += 1
            assert sum(reads) < 6_000 + 3_000
        assert sorted(found) == odd_bodies()
        assert pulls > 5


async def test_others_have_their_turn_while_fragments_are_read(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with disk.open() as bench:
        await scattered(bench, monkeypatch, 4)
        monkeypatch.setattr(fetch, "PAUSE_PARTS", 10)
        member, turns = await bench.attach(), 0
        pulling = asyncio.ensure_future(bench.pull(member, COUNT))
        while not pulling.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= COUNT // 2 // 10
