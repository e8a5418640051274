"""Dead letters: sent again changed, purged, expired."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.broker import EVERY_S, DeadLetterLog, dead_letters
from tests.inside.frame import Frame
from tests.inside.ground import ManualClock
from tests.inside.protocol import Act, Browse, Pull, PurgeDead, Resend, Resent, ReviseDead
from tests.inside.store import Lost, Read
from towline.errors import Conflict, NotFound, Unavailable
from towline.model import LANES


async def die(bench: Bench, count: int = 3, **config: Any) -> None:
    await bench.send("orders", *(b"%d" % n for n in range(count)), keys=[f"k{n}" for n in range(count)])
    member = await bench.attach(**config)
    await bench.act(member, DEAD, await bench.pull(member), reason="never")
    await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == count)
    await bench.flush()


def test_who_gave_a_message_up_finds_it_among_the_dead_letters(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        for number in range(20):
            await bench.send("orders", b"%d" % number)
            await bench.act(member, DEAD, await bench.pull(member), reason="never")
            found, _ = await bench.broker.browsing.browse(Browse("orders", 0, "billing", number))
            assert (found.end, len(found.parts)) == (number + 1, 1)

    world.run(scenario)


async def test_a_letter_and_the_event_that_says_so_are_one_unit(disk: World, tmp_path: Path) -> None:
    """The log is cut within the event, which is behind its letter, and at its beginning: neither is there then."""

    async with disk.open() as bench:
        await die(bench, 1)
        await eventually_done(lambda: not bench.broker.groups.burying)
        crash(disk, tmp_path / "crash")
    [segment] = [path for path in (tmp_path / "crash" / "data").rglob("*") if b"dead/orders" in _bytes(path)]
    whole = segment.read_bytes()
    event = whole.rindex(b"pull/orders/billing")
    assert whole.rindex(b"dead/orders/billing") < event
    for cut in (event - 1, event, event + 30):
        again = World("log", tmp_path / str(cut))
        shutil.copytree(tmp_path / "crash", tmp_path / str(cut))
        path = tmp_path / str(cut) / segment.relative_to(tmp_path / "crash")
        path.write_bytes(whole[:cut])
        async with again.open() as bench:
            await _one_letter(bench)


async def _one_letter(bench: Bench) -> None:
    await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
    found, _ = await bench.broker.browsing.browse(Browse("orders", 0, "billing"))
    assert (found.first, found.end) == (0, 1)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_a_letter_is_sent_again_changed(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench)
        revised = ReviseDead("orders", "billing", 1, b"mended", "new", {"a": "b"})
        assert (await bench.broker.dead_letters.revise(revised)).count == 1
        with pytest.raises(Conflict):
            await bench.broker.dead_letters.revise(revised)
        with pytest.raises(NotFound):
            await bench.broker.dead_letters.revise(ReviseDead("orders", "billing", 9, b"mended"))
        await bench.broker.dead_letters.revise(ReviseDead("orders", "billing", 2, key=""))
        member = await bench.attach(consumer="c2")
        answer, buffers = await bench.broker.consumers.pull(member, _pull())
        at, seen = 0, []
        data = b"".join(buffers)
        for part in answer.parts:
            frame = Frame(data[at : at + part.length])
            at += part.length
            keys = frame.keys(part.start, part.start + part.count) or [None] * part.count
            heads = frame.headers(part.start, part.start + part.count) or []
            seen += list(zip(frame.bodies(part.start, part.start + part.count), keys, heads, strict=True))
        assert seen[0] == (b"mended", "new", {"a": "b", "towline-origin": "orders/middle/1"})
        assert seen[1][:2] == (b"2", None)
        assert bench.broker.group_state("orders", "billing").dead == 1

    world.run(scenario)


def _pull() -> Pull:
    return Pull(0, 100, 1 << 20)


def test_letters_are_purged_from_the_oldest_on(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench)
        assert (await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 2))).count == 2
        assert bench.broker.group_state("orders", "billing").dead == 1
        browsed, _ = await bench.broker.browsing.browse(Browse("orders", 0, "billing"))
        assert (browsed.first, browsed.end) == (2, 3)
        assert (await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 1 << 40))).count == 1
        assert (await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 1 << 40))).count == 0

    world.run(scenario)


def test_letters_that_were_sent_again_and_are_gone_are_remembered_no_longer(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench, 40)
        group = bench.broker.groups.named("orders", "billing").group
        await bench.broker.dead_letters.resend(Resend("orders", "billing", list(range(0, 40, 2))))
        assert len(group.resent) == 20
        await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 31))
        assert bench.broker.group_state("orders", "billing").dead == 5
        assert group.resent == [(number, 1) for number in range(32, 40, 2)]
        await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 1 << 40))
        assert (bench.broker.group_state("orders", "billing").dead, group.resent) == (0, [])

    world.run(scenario)


def test_letters_expire_when_their_group_says_so(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench, dead_retention_s=3600.0)
        await bench.broker.maintain()
        assert bench.broker.group_state("orders", "billing").dead == 3
        dispatcher = bench.broker.groups.named("orders", "billing")
        config = dispatcher.group.config
        dispatcher.group.config = type(config)(config.topic, config.name, dead_retention_s=1e-6)
        await bench.broker.maintain()
        assert bench.broker.group_state("orders", "billing").dead == 0

    world.run(scenario)


async def test_letters_outlive_the_retention_of_messages_when_their_group_says_so(disk: World) -> None:
    async with disk.open(segment_bytes=1 << 16, retention_bytes=1) as bench:
        await die(bench, dead_retention_s=3600.0)
        member = await bench.attach()
        for _ in range(10):
            await bench.send("orders", bytes(30_000))
            await bench.act(member, ACK, await bench.pull(member))
        for _ in range(3):
            await bench.broker.maintain()
        assert bench.broker.group_state("orders", "billing").dead == 3


def test_letters_that_died_of_different_reasons_keep_their_own(world: World) -> None:
    count = 700  # more than are copied at a time

    async def scenario(bench: Bench) -> None:
        for lane in (1, 0):
            await bench.send("orders", *(b"%d" % n for n in range(count)), lane=lane)
        member = await bench.attach(delays_s=(0.0,))
        got = await bench.pull(member, 2 * count)
        await bench.act(member, NACK, got, (1, 3, 2), reason="once more")
        again = await bench.pull(member, 2)
        await bench.act(member, DEAD, again, reason="the second time")
        acts = [
            Act(DEAD, got.pull, [(lane, n, 1)], reason=f"{'even' if n % 2 == 0 else 'odd'} {lane}")
            for n in range(count)
            for lane in (1, 0)
            if (lane, n) not in ((1, 3), (1, 4))
        ]
        await bench.broker.consumers.settle(member, acts)
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2 * count)
        found: dict[str, tuple[bytes, str, str]] = {}
        at = 0
        while len(found) < 2 * count:
            browsed, buffers = await bench.broker.browsing.browse(Browse("orders", 0, "billing", at))
            data, place = b"".join(buffers), 0
            for part in browsed.parts:
                frame = Frame(data[place : place + part.length])
                place += part.length
                heads = frame.headers(part.start, part.start + part.count) or []
                for body, head in zip(frame.bodies(part.start, part.start + part.count), heads, strict=True):
                    found[head["towline-origin"]] = (body, head["towline-attempt"], head["towline-reason"])
            at = browsed.next
        expected = {
            f"orders/{LANES[lane]}/{n}": (b"%d" % n, "1", f"{'even' if n % 2 == 0 else 'odd'} {lane}")
            for n in range(count)
            for lane in (1, 0)
        }
        expected |= {f"orders/middle/{n}": (b"%d" % n, "2", "the second time") for n in (3, 4)}
        assert found == expected

    world.run(scenario)


async def test_the_log_tells_of_many_deaths_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def lines() -> list[str]:
        said = [record.getMessage().partition(": ")[2] for record in caplog.records]
        caplog.clear()
        return said

    obituary = DeadLetterLog("group billing", clock)
    obituary.note(3, "at first")
    assert lines() == ["3 message(s) went to the dead letters, the last because of: at first"]
    for number in range(1000):
        obituary.note(500, f"reason {number}")
    assert lines() == []
    obituary.tell()
    assert lines() == ["500000 message(s) went to the dead letters, the last because of: reason 999"]
    obituary.tell()
    assert lines() == []
    clock.advance(EVERY_S)
    obituary.note(1, "")
    assert lines() == ["1 message(s) went to the dead letters, the last because of: (no reason given)"]


@pytest.mark.parametrize("large", ["bodies", "headers"])
def test_letters_that_would_not_fit_into_one_frame_are_buried_and_sent_again(
    disk: World, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    """Compressed they came as small frames."""
    bodies = [b"%d" % n + bytes(400_000 if large == "bodies" else 0) for n in range(4)]
    headers = [{"h": "x" * 400_000} if large == "headers" else {} for _ in range(4)]

    async def scenario(bench: Bench) -> None:
        for body, head in zip(bodies, headers, strict=True):
            await bench.send("orders", body, headers=[head], compress=True)
        monkeypatch.setattr(sys.modules["towline.frame.encode"], "FRAME_MAX", 1 << 20)
        monkeypatch.setattr(dead_letters, "LETTERS_BYTES", 1 << 19, raising=False)
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member, max_bytes=1 << 23), reason="never")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 4)
        assert await bench.broker.dead_letters.resend(Resend("orders", "billing")) == Resent(4, 0)
        assert (await bench.pull(member, max_bytes=1 << 23)).bodies == bodies

    disk.run(scenario)


def test_of_letters_that_take_several_frames_none_is_sent_if_one_was_sent_before(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench, 3)
        monkeypatch.setattr(dead_letters, "LETTERS_BYTES", 1)
        assert (await bench.broker.dead_letters.resend(Resend("orders", "billing", [2]))).count == 1
        with pytest.raises(Conflict, match="dead letter 2 was sent again already"):
            await bench.broker.dead_letters.resend(Resend("orders", "billing", [0, 1, 2]))
        assert await bench.broker.dead_letters.resend(Resend("orders", "billing")) == Resent(2, 0)

    disk.run(scenario)


def test_letters_before_one_that_cannot_be_read_are_sent(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench, 3)
        read = bench.store.read

        async def damaged(stream: str, first: int, max_count: int, max_bytes: int) -> Read:
            if stream.startswith("dead/") and first + max_count > 2:
                if first == 2:
                    return Read((), (Lost(2, 1, "damaged"),), 3)
                max_count = 2 - first
            return await read(stream, first, max_count, max_bytes)

        bench.store.read = damaged  # type: ignore[method-assign]
        with pytest.raises(NotFound, match=r"dead letter 2 .* cannot be read: damaged\. Name others"):
            await bench.broker.dead_letters.resend(Resend("orders", "billing"))
        bench.store.read = read  # type: ignore[method-assign]
        assert (await bench.pull(await bench.attach())).bodies == [b"0", b"1"]

    disk.run(scenario)


def test_a_message_that_fills_a_frame_by_itself_can_die(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", bytes(100_000), b"small")
        monkeypatch.setattr(sys.modules["towline.frame.encode"], "FRAME_MAX", 100_200)
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member), reason="never " * 100)
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)

    disk.run(scenario)


def test_what_could_not_be_buried_is_tried_again(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", bytes(5_000))
        member = await bench.attach()
        got = await bench.pull(member)
        read = bench.store.read

        async def fail(*_: Any) -> Any:
            raise Unavailable("not now")

        bench.store.read = fail  # type: ignore[assignment, method-assign]
        await bench.act(member, DEAD, got)
        await eventually_done(lambda: not bench.broker.groups.burying)
        bench.store.read = read  # type: ignore[method-assign]
        assert bench.broker.group_state("orders", "billing").dead == 0
        await bench.broker.maintain()
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)

    disk.run(scenario)
