"""What a broker writes by itself and the database does not take is neither lost nor ends the broker: it stays where it
is, is told of, and goes on when the database takes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.eventually import eventually_done
from tests.inside.broker import Broker, Member, halves
from tests.inside.delivery import Run
from tests.inside.frame import Frame, encode
from tests.inside.ground import SystemClock
from tests.inside.protocol import (
    ACK,
    DEAD,
    Act,
    AskSink,
    Attach,
    Browse,
    CancelDelayed,
    Decide,
    FrameHead,
    GroupState,
    HandBack,
    ListDelayed,
    ListTransactions,
    MoveDelayed,
    Publish,
    Pull,
    Resend,
    ReviseDead,
    Seek,
    Stage,
)
from tests.store.sql.server import mariadb
from tests.store.sql.test_too_large import HOUR_US, LARGE, opened, prepare, send
from towline.errors import TooLarge
from towline.model import DIED_AT, DIED_ATTEMPT, DIED_ORIGIN, DIED_REASON, Durability, GroupConfig

LETTERS = "mq_dead_letter"
LANE = "msg_p_orders_middle"
LIMIT = "so it is"
DAY_S = 86_400.0


class LaterClock(SystemClock):
    """A clock whose steady time may be set ahead."""

    ahead_s = 0.0

    def steady_s(self) -> float:
        return super().steady_s() + self.ahead_s


def refuse(url: str, table: str, what: str = f"LENGTH(NEW.body) >= {LARGE}") -> None:
    """From now on the server does not take such a row."""
    mariadb().sql(
        f"DELIMITER //\nCREATE TRIGGER t_{table} BEFORE INSERT ON {table} FOR EACH ROW IF {what} THEN "
        f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 8025, MESSAGE_TEXT = '{LIMIT}'; END IF//\nDELIMITER ;\n",
        url.rpartition("/")[2],
    )


def allow(url: str, table: str) -> None:
    """Somebody has raised the limit."""
    mariadb().sql(f"DROP TRIGGER t_{table}", url.rpartition("/")[2])


async def attached(broker: Broker) -> Member:
    return await broker.consumers.attach(
        Attach("orders", "billing", "c", GroupConfig("orders", "billing", start="earliest"))
    )


async def give_up(broker: Broker, reason: str = "poison") -> None:
    """All that is there dies."""
    member = await attached(broker)
    pulled, _ = await broker.consumers.pull(member, Pull(0, 100, 1 << 24, 30_000))
    assert pulled.parts
    await broker.consumers.settle(member, [Act(DEAD, pulled.pull, reason=reason)])


async def consumed(broker: Broker, count: int) -> int:
    """How many messages come and are done with, when so many are waited for."""
    member, got = await attached(broker), 0
    while got < count:
        pulled, _ = await broker.consumers.pull(member, Pull(0, 100, 1 << 24, 30_000))
        assert pulled.parts
        got += sum(part.count for part in pulled.parts)
        await broker.consumers.settle(member, [Act(ACK, pulled.pull)])
    return got


async def soon(is_so: Callable[[], object]) -> None:
    """As soon as it is so: it may be so for a moment only."""
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0)


async def dead_letters(broker: Broker) -> list[tuple[bytes, str | None, dict[str, str]]]:
    """Body, key and headers of each."""
    browsed, buffers = await broker.browsing.browse(Browse("orders", group="billing", max_bytes=1 << 26))
    data, at, letters = b"".join(buffers), 0, []
    for part in browsed.parts:
        frame = Frame(data[at : at + part.length])
        at += part.length
        stop = part.start + part.count
        keys = frame.keys(part.start, stop) or [None] * part.count
        headers = frame.headers(part.start, stop) or [{}] * part.count
        letters += list(zip(frame.bodies(part.start, stop), keys, headers, strict=True))
    assert len(letters) == browsed.end - browsed.first, "no number is empty"
    return letters


def state(broker: Broker) -> GroupState:
    return broker.group_state("orders", "billing")


async def crash(broker: Broker) -> None:
    """Nothing more is saved."""
    await broker.store.close()


async def bodies_of(broker: Broker, stream: str = "lane/orders/middle") -> list[bytes]:
    """The messages of a lane, without those that were refused."""
    read = await broker.store.read(stream, 0, 1_000, 1 << 26)
    return [body for chunk in read.chunks for body in Frame(chunk.frame).bodies()]


# Dead letters


async def test_a_letter_that_is_too_large_because_of_its_reason_goes_without_it(url: str) -> None:
    async with opened(url) as broker:
        frame = encode([b"y" * LARGE], keys=["k"], headers=[{"mine": "too"}])
        await broker.send([("orders", 1, frame)])
        refuse(url, LETTERS, f"LENGTH(NEW.body) + LENGTH(NEW.reason) >= {LARGE + 500}")
        await give_up(broker, "why " * 200)
        [(body, key, headers)] = await dead_letters(broker)
        assert (body, key) == (b"y" * LARGE, "k")
        assert headers.keys() == {"mine", DIED_ORIGIN, DIED_ATTEMPT, DIED_AT}
        assert (await broker.dead_letters.resend(Resend("orders", "billing"))).count == 1
        assert await consumed(broker, 1) == 1


async def test_a_letter_that_has_room_for_nothing_else_is_the_bare_message(url: str) -> None:
    async with opened(url) as broker:
        await broker.send([("orders", 1, encode([b"y" * LARGE], keys=["k"], headers=[{"mine": "too"}]))])
        refuse(url, LETTERS, f"LENGTH(NEW.body) + LENGTH(NEW.headers) >= {LARGE + 50}")
        await give_up(broker)
        assert await dead_letters(broker) == [(b"y" * LARGE, "k", {"mine": "too"})]


@pytest.mark.parametrize("end", ["in order", "by a crash", "by a crash behind a snapshot"])
async def test_a_dying_message_that_no_letter_holds_goes_on_dying(
    url: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LaterClock()
    async with opened(url, clock) as broker:
        await send(broker, "orders", b"first", b"y" * LARGE, b"third")
        refuse(url, LETTERS)
        await give_up(broker)
        assert sorted(body for body, _, _ in await dead_letters(broker)) == [b"first", b"third"]
        assert (state(broker).dying, state(broker).dead) == (1, 2)
        told = [one for one in caplog.messages if "too large for the dead letters" in one]
        assert len(told) == 1
        assert all(part in told[0] for part in ("orders/middle/1", "group billing on topic orders", LIMIT, "in 10 s"))
        assert (await consumed_now(broker), state(broker).dying) == (0, 1), "it is not delivered again"
        for _ in range(3 if end != "by a crash" else 0):
            await broker.maintain()
            await broker.groups.buried("orders", "billing")
        if end != "in order":
            await crash(broker)
    async with opened(url, clock) as broker:
        await broker.groups.buried("orders", "billing")
        assert (state(broker).dying, state(broker).dead) == (1, 2)
        before = broker.store.figures()["transactions"]  # type: ignore[attr-defined]
        allow(url, LETTERS)
        await broker.maintain()
        await broker.groups.buried("orders", "billing")
        assert state(broker).dying == 1, "it is tried ever more rarely"
        assert broker.store.figures()["transactions"] < before + 20  # type: ignore[attr-defined]
        clock.ahead_s += DAY_S
        await broker.maintain()
        letters = await dead_letters(broker)
        assert sorted(body for body, _, _ in letters) == sorted([b"first", b"third", b"y" * LARGE])
        assert {headers[DIED_REASON] for _, _, headers in letters} == {"poison"}
        assert (await broker.dead_letters.resend(Resend("orders", "billing"))).count == 3


async def consumed_now(broker: Broker) -> int:
    pulled, _ = await broker.consumers.pull(await attached(broker), Pull(0, 100, 1 << 24, 0))
    return sum(part.count for part in pulled.parts)


async def test_a_snapshot_that_is_saved_meanwhile_does_not_speak_of_a_letter_that_is_refused(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"y" * LARGE)
        refuse(url, LETTERS)
        await give_up(broker)
        dispatcher = broker.groups.named("orders", "billing")
        await eventually_done(lambda: not broker.groups.burying)
        dispatcher.refusals.keep(())
        broker.groups.bury_rest()
        await soon(lambda: dispatcher.copying)
        assert state(broker).dying == 0, "for the moment it is not known"
        assert dispatcher.pins() == {1: 0}, "retention leaves it"
        await broker._save_snapshots()
        await crash(broker)
    async with opened(url) as broker:
        await broker.groups.buried("orders", "billing")
        assert state(broker).dying == 1


async def test_a_group_is_moved_past_a_message_whose_letter_is_refused_meanwhile(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"y" * LARGE)
        refuse(url, LETTERS)
        await give_up(broker)
        dispatcher = broker.groups.named("orders", "billing")
        await eventually_done(lambda: not broker.groups.burying)
        dispatcher.refusals.keep(())
        broker.groups.bury_rest()
        await soon(lambda: dispatcher.copying)
        await broker.groups.seek(Seek("orders", "billing", "latest"))
        await eventually_done(lambda: not broker.groups.burying)
        assert (state(broker).dying, state(broker).lag) == (0, 0)
        await crash(broker)
    async with opened(url) as broker:
        assert (state(broker).dying, state(broker).lag) == (0, 0)


async def test_a_dead_letter_that_is_refused_when_it_is_sent_again_stays_one(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first", b"y" * LARGE, b"third")
        await give_up(broker)
        assert len(await dead_letters(broker)) == 3
        refuse(url, "mq_frame", f"LENGTH(NEW.frame) >= {LARGE}")
        with pytest.raises(TooLarge, match=f"dead letter 1 of .* stays where it is, 2 of 3 were.*{LIMIT}"):
            await broker.dead_letters.resend(Resend("orders", "billing"))
        with pytest.raises(TooLarge):
            await broker.dead_letters.revise(ReviseDead("orders", "billing", 1, os.urandom(LARGE)))
        assert state(broker).dead == 1
        assert await consumed(broker, 2) == 2
        await crash(broker)
    allow(url, "mq_frame")
    async with opened(url) as broker:
        assert state(broker).dead == 1
        assert (await broker.dead_letters.resend(Resend("orders", "billing"))).count == 1
        assert await consumed(broker, 1) == 1


# Delayed messages


async def delay(broker: Broker, *bodies: bytes, at_us: int = -1, **columns: object) -> list[int]:
    """Send them; their ids."""
    frame = encode(list(bodies), deliver_at_us=[at_us] * len(bodies), **columns)  # type: ignore[arg-type]
    sent = await broker.send([("orders", 1, frame)])
    return list(range(sent.firsts[0], sent.firsts[0] + len(bodies)))


async def all_delivered(broker: Broker) -> None:
    await eventually_done(lambda: not broker.scheduler.schedule.counts)
    await broker.scheduler.settle()


async def waiting(broker: Broker) -> list[int]:
    """The ids of delayed messages."""
    return [one.id for one in (await broker.delayed.list(ListDelayed("orders"))).messages]


async def tried_again(broker: Broker, clock: LaterClock) -> None:
    clock.ahead_s += DAY_S
    await broker.maintain()
    await broker.scheduler.settle()


@pytest.mark.parametrize("end", ["in order", "by a crash", "by a crash behind a snapshot"])
async def test_of_messages_that_are_due_the_one_that_is_too_large_waits(
    url: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Compressed, it was small enough to wait."""
    clock = LaterClock()
    async with opened(url, clock) as broker:
        await send(broker, "orders", b"first")
        refuse(url, LANE)
        ids = await delay(broker, b"before", b"y" * LARGE, b"after", compress=True)
        assert await consumed(broker, 3) == 3
        await broker.scheduler.settle()
        told = [one for one in caplog.messages if "is kept where it is" in one]
        assert len(told) == 1
        assert all(part in told[0] for part in (f"orders/delay/{ids[1]}", "is due", LIMIT, "in 10 s"))
        assert await waiting(broker) == [ids[1]]
        assert broker.scheduler.figures()["delayed"] == 1
        await delay(broker, b"later")
        assert await consumed(broker, 1) == 1, "what comes behind it goes on"
        if end.endswith("snapshot"):
            await broker.maintain()
        if end != "in order":
            await crash(broker)
    async with opened(url, clock) as broker:
        await broker.scheduler.settle()
        assert await waiting(broker) == [ids[1]]
        allow(url, LANE)
        await broker.maintain()
        await broker.scheduler.settle()
        assert await waiting(broker) == [ids[1]], "it is tried ever more rarely"
        await tried_again(broker, clock)
        assert await waiting(broker) == []
        assert broker.scheduler.figures()["delayed"] == 0
        assert sorted(await bodies_of(broker)) == sorted([b"first", b"before", b"after", b"later", b"y" * LARGE])
        request = ListDelayed("orders", ids=ids, arrived=True)
        arrived = {one.id: one.seq for one in (await broker.delayed.list(request)).arrived}
        read = await broker.store.read("lane/orders/middle", arrived[ids[1]], 1, 1)
        assert Frame(read.chunks[0].frame).bodies() == [b"y" * LARGE]
        await crash(broker)
    async with opened(url, clock) as broker:
        assert (await waiting(broker), len(await bodies_of(broker))) == ([], 5), "each arrives once"


@pytest.mark.parametrize("saved", [False, True], ids=["", "with a snapshot that was saved meanwhile"])
async def test_a_crash_right_behind_a_refusal_loses_nothing_that_was_due_with_it(
    url: str, monkeypatch: pytest.MonkeyPatch, *, saved: bool
) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        refuse(url, LANE)
        refused = list[Run]()
        monkeypatch.setattr(broker.scheduler.held, "refused", refused.extend)
        ids = await delay(broker, b"before", b"y" * LARGE, b"after", compress=True)
        await soon(lambda: broker.scheduler.delivered)
        if saved:
            await broker._save_snapshots()
        await eventually_done(lambda: len(refused) == 1)
        await crash(broker)
    async with opened(url) as broker:
        await broker.scheduler.settle()
        assert await waiting(broker) == [ids[1]]
        assert sorted(await bodies_of(broker)) == [b"after", b"before", b"first"]


async def test_a_message_that_is_held_can_be_cancelled_and_moved(url: str) -> None:
    clock = LaterClock()
    async with opened(url, clock) as broker:
        await send(broker, "orders", b"first")
        refuse(url, LANE)
        one, other = await delay(broker, b"y" * LARGE, b"z" * LARGE, compress=True)
        await eventually_done(lambda: sum(len(slot.held) for slot in broker.scheduler.schedule.slots.values()) == 1)
        await broker.scheduler.settle()
        assert await waiting(broker) == [one, other]
        assert (await broker.delayed.cancel(CancelDelayed("orders", [one]))).count == 1
        assert (await broker.delayed.move(MoveDelayed("orders", [other], "", -HOUR_US))).count == 1
        assert await waiting(broker) == [other]
        await crash(broker)
    allow(url, LANE)
    async with opened(url, clock) as broker:
        await tried_again(broker, clock)
        assert await waiting(broker) == [other]
        assert await bodies_of(broker) == [b"first"]
        assert not any(slot.held for slot in broker.scheduler.schedule.slots.values())
        assert (await broker.delayed.move(MoveDelayed("orders", [other], "", 1))).count == 1
        await all_delivered(broker)
        assert await bodies_of(broker) == [b"first", b"z" * LARGE]


@pytest.mark.parametrize("end", ["in order", "by a crash"])
async def test_a_message_that_is_too_large_for_another_slot_stays_in_its_own(url: str, end: str) -> None:
    """Slots that come near are moved; and old ones are written anew."""
    clock = LaterClock()
    async with opened(url, clock) as broker:
        await send(broker, "orders", b"first")
        [large] = await delay(broker, os.urandom(LARGE), at_us=-HOUR_US)
        [small] = await delay(broker, b"small", at_us=-HOUR_US)
        refuse(url, "mq_schedule", f"LENGTH(NEW.frame) >= {LARGE}")
        place = next(iter(broker.scheduler.schedule.slots))
        broker.scheduler.rewrite_older(broker.clock.now_us() + 1)
        await eventually_done(lambda: any(slot.held for slot in broker.scheduler.schedule.slots.values()))
        await broker.scheduler.settle()
        assert sorted(await waiting(broker)) == [large, small]
        slot = broker.scheduler.schedule.slots[place]
        assert [len(places) for places in slot.held.values()] == [1], "the other one has moved"
        for _ in range(3 if end != "by a crash" else 0):
            await broker.maintain()
        if end == "by a crash":
            await crash(broker)
    allow(url, "mq_schedule")
    async with opened(url, clock) as broker:
        await broker.scheduler.settle()
        assert sorted(await waiting(broker)) == [large, small]
        await tried_again(broker, clock)
        assert not any(slot.held for slot in broker.scheduler.schedule.slots.values())
        assert sorted(await waiting(broker)) == [large, small]
        assert (await broker.delayed.move(MoveDelayed("orders", [large, small], "", 1))).count == 2
        await all_delivered(broker)
        assert sorted(map(len, await bodies_of(broker))) == [5, 5, LARGE]


async def test_a_message_that_is_refused_when_somebody_moves_it_stays_where_it_is(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        [large] = await delay(broker, os.urandom(LARGE), at_us=-HOUR_US)
        refuse(url, "mq_schedule", f"LENGTH(NEW.frame) >= {LARGE}")
        for _ in range(2):
            moved, _ = await asyncio.gather(
                broker.delayed.move(MoveDelayed("orders", [large], "", -2 * HOUR_US)),
                broker._save_snapshots(),
                return_exceptions=True,
            )
            assert isinstance(moved, TooLarge)
            assert await waiting(broker) == [large]
        assert broker.scheduler.schedule.cancelled == 0
        await crash(broker)
    allow(url, "mq_schedule")
    async with opened(url) as broker:
        assert await waiting(broker) == [large]
        assert (await broker.delayed.move(MoveDelayed("orders", [large], "", 1))).count == 1
        await all_delivered(broker)
        assert list(map(len, await bodies_of(broker))) == [5, LARGE]


async def test_a_message_that_becomes_due_while_somebody_moves_it_in_vain_is_delivered(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        [large] = await delay(broker, os.urandom(LARGE), at_us=-2_000_000)
        schedule = broker.scheduler.schedule
        await eventually_done(lambda: len(schedule.near) == 1)
        due_us = schedule.near.next_us
        assert due_us is not None
        refuse(url, "mq_schedule", f"LENGTH(NEW.frame) >= {LARGE}")
        moving = asyncio.ensure_future(broker.delayed.move(MoveDelayed("orders", [large], "", -HOUR_US)))
        await soon(lambda: schedule.cancelled)
        assert broker.scheduler.journal.limit_us(due_us) < due_us, "nothing passes it over meanwhile"
        with pytest.raises(TooLarge):
            await moving
        assert broker.scheduler.journal.limit_us(due_us) == due_us
        await all_delivered(broker)
        assert list(map(len, await bodies_of(broker))) == [5, LARGE]


def test_halves_are_the_same_messages() -> None:
    runs = [Run(0, 7, 0, 2, 5), Run(0, 7, 1, 0, 1), Run(1, 2, 9, 4, 5)]
    first, second = halves(runs)
    assert (first, second) == ([Run(0, 7, 0, 2, 4)], [Run(0, 7, 0, 4, 5), *runs[1:]])
    assert halves([Run(0, 7, 0, 0, 2)]) == ([Run(0, 7, 0, 0, 1)], [Run(0, 7, 0, 1, 2)])


# Sinks


async def stage(broker: Broker, *bodies: bytes) -> int:
    """Compressed, a large one is small enough to be staged."""
    frame = encode(list(bodies), compress=True)
    return (await broker.staging.stage(Stage([FrameHead("orders", 1, len(frame))]), [frame])).record


@pytest.mark.parametrize("end", ["in order", "by a crash", "by a crash behind a snapshot"])
async def test_a_record_of_a_sink_that_is_too_large_is_published_when_it_fits(
    url: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LaterClock()
    async with opened(url, clock) as broker:
        await send(broker, "orders", b"first")
        refuse(url, LANE)
        records = [await stage(broker, body) for body in (b"a", b"y" * LARGE, b"c", b"d", b"e", b"f")]
        later = await stage(broker, b"next epoch")
        publish = broker.staging.publish(Publish("s", 0, records))
        if end.endswith("snapshot"):
            refused, saved = await asyncio.gather(publish, broker._save_snapshots(), return_exceptions=True)
            assert saved is None
        else:
            [refused] = await asyncio.gather(publish, return_exceptions=True)
        assert isinstance(refused, TooLarge)
        assert "1 of 6 records of epoch 0 of sink s wait" in str(refused)
        with pytest.raises(TooLarge, match="epoch 0 of sink s"):
            await broker.staging.publish(Publish("s", 1, [later]))
        other = await stage(broker, b"other sink")
        assert (await broker.staging.publish(Publish("other", 0, [other]))).messages == 1
        assert sorted(await bodies_of(broker)) == [b"a", b"c", b"d", b"e", b"f", b"first", b"other sink"]
        if end != "in order":
            await crash(broker)
    async with opened(url, clock) as broker:
        await eventually_done(lambda: "what sink s staged" in caplog.text)
        await broker.store.append([], Durability.OS).done
        ends = broker.store.bounds("lane/orders/middle").end
        for _ in range(3):
            await broker.maintain()
        assert broker.store.bounds("lane/orders/middle").end == ends, "it is tried ever more rarely"
        assert broker.staging.sink(AskSink("s")).epoch == 0
        allow(url, LANE)
        clock.ahead_s += DAY_S
        await broker.maintain()
        assert (await broker.staging.publish(Publish("s", 0, records))).duplicate
        assert (await broker.staging.publish(Publish("s", 1, [later]))).messages == 1
        await crash(broker)
    async with opened(url, clock) as broker:
        bodies = [b"a", b"c", b"d", b"e", b"f", b"first", b"next epoch", b"other sink", b"y" * LARGE]
        assert sorted(await bodies_of(broker)) == bodies, "each once"
        assert broker.staging.sink(AskSink("s")).epoch == 1


async def test_an_epoch_that_nobody_waits_for_any_more_is_published_once(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        records = [await stage(broker, b"%d" % number) for number in range(6)]
        publish = asyncio.ensure_future(broker.staging.publish(Publish("s", 0, records)))
        await soon(lambda: broker.staging._coming)
        publish.cancel()
        await broker.staging.go_on()
        assert sorted(await bodies_of(broker)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"first"]


# Commits and hand-overs


@pytest.mark.parametrize("saved", [False, True], ids=["", "with a snapshot that was saved meanwhile"])
async def test_a_crash_right_behind_a_commit_that_is_refused_leaves_it_undone(url: str, *, saved: bool) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        refuse(url, LANE)
        await prepare(broker, "t1", encode([b"y" * LARGE], compress=True))
        commit = asyncio.ensure_future(broker.transactions.decide(Decide("t1", commit=True)))
        await soon(lambda: not len(broker.transactions))
        if saved:
            await broker._save_snapshots()
        with pytest.raises(TooLarge):
            await commit
        await crash(broker)
        records = mariadb().sql(
            "SELECT SUM(records) FROM mq_frame f JOIN mq_stream s ON s.id = f.stream_id WHERE s.name = 'tx/marks'",
            url.rpartition("/")[2],
        )
        assert records == [["1"]], "the mark of the commit itself says so"
    async with opened(url) as broker:
        [found] = broker.transactions.states(ListTransactions("t1")).transactions
        assert found.state == "rolled back"


async def test_a_message_that_is_handed_over_and_too_large_stays_with_its_consumer(url: str) -> None:
    handed = HandBack("orders", "billing", None, 1, 1, "it failed", 0.0)
    frame = encode([os.urandom(LARGE)], producer_id=7, producer_seq=1)
    async with opened(url) as broker:
        await attached(broker)
        refuse(url, "mq_frame", f"LENGTH(NEW.frame) >= {LARGE}")
        for _ in range(2):
            with pytest.raises(TooLarge):
                await broker.hand_back(handed, frame)
        assert state(broker).retrying == 0
        allow(url, "mq_frame")
        assert not (await broker.hand_back(handed, frame)).repeated
        assert await consumed(broker, 1) == 1


# What is refused when it is sent


@contextmanager
def packets_of(size: int) -> Iterator[None]:
    server = mariadb()
    [[before]] = server.sql("SELECT @@GLOBAL.max_allowed_packet")
    server.sql(f"SET GLOBAL max_allowed_packet = {size}")
    try:
        yield
    finally:
        server.sql(f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.parametrize("byte", [b"y", b"'"], ids=["plain", "that is escaped"])
async def test_the_largest_message_that_may_be_sent_can_die_of_a_long_reason(url: str, byte: bytes) -> None:
    with packets_of(4 << 20):
        async with opened(url) as broker:
            largest = broker.store.max_message_bytes  # type: ignore[attr-defined]
            await broker.send([("orders", 1, encode([byte * largest], compress=True))])
            with pytest.raises(TooLarge, match="with room for why it failed"):
                await broker.send([("orders", 1, encode([b"y" * (largest + 1)]))])
            reason = "\U0001f4a5" * 1_000
            await give_up(broker, reason)
            [(body, _, headers)] = await dead_letters(broker)
            assert len(body) == largest
            assert headers[DIED_REASON] == reason


async def test_what_is_too_large_since_the_limit_was_lowered_waits_until_it_is_raised(url: str) -> None:
    clock = LaterClock()
    large = [os.urandom(700_000) for _ in range(3)]
    async with opened(url, clock) as broker:
        await send(broker, "orders", large[0])
        delayed = [*await delay(broker, large[1], at_us=-HOUR_US), *await delay(broker, b"small", at_us=-HOUR_US)]
        staged = [await stage(broker, body) for body in (large[2], b"staged")]
    with packets_of(1 << 20):
        async with opened(url, clock) as broker:
            await give_up(broker)
            await broker.groups.buried("orders", "billing")
            assert (state(broker).dying, state(broker).dead) == (1, 0)
            with pytest.raises(TooLarge, match="1 of 2 records"):
                await broker.staging.publish(Publish("s", 0, staged))
            broker.scheduler.rewrite_older(broker.clock.now_us() + 1)
            await eventually_done(lambda: any(slot.held for slot in broker.scheduler.schedule.slots.values()))
            await broker.scheduler.settle()
            assert sorted(await waiting(broker)) == delayed
            with pytest.raises(TooLarge):
                await broker.delayed.move(MoveDelayed("orders", delayed[:1], "", 1))
            await broker.delayed.move(MoveDelayed("orders", delayed[1:], "", 1))
            await eventually_done(lambda: broker.scheduler.schedule.counts == {"orders": 1})
            assert await consumed(broker, 2) == 2, "all that is not too large"
            await broker.maintain()
    async with opened(url, clock) as broker:
        clock.ahead_s += DAY_S
        await broker.maintain()
        assert [body for body, _, _ in await dead_letters(broker)] == large[:1]
        assert (await broker.staging.publish(Publish("s", 0, staged))).duplicate
        await broker.delayed.move(MoveDelayed("orders", delayed[:1], "", 1))
        await all_delivered(broker)
        assert await consumed(broker, 2) == 2
        assert sorted(await bodies_of(broker)) == sorted([*large, b"small", b"staged"])


async def test_what_would_be_too_large_later_is_refused_although_it_is_small_as_it_comes(url: str) -> None:
    with packets_of(4 << 20):
        async with opened(url) as broker:
            await send(broker, "orders", b"first")
            largest = broker.store.max_message_bytes  # type: ignore[attr-defined]
            several = encode([b"x" * (largest // 2)] * 6, compress=True)
            await broker.send([("orders", 1, several)])
            large = encode([b"x", b"y" * (largest + 1)], compress=True)
            with pytest.raises(TooLarge):
                await broker.staging.stage(Stage([FrameHead("orders", 1, len(large))]), [large])
            with pytest.raises(TooLarge):
                await prepare(broker, "t1", large)
            with pytest.raises(TooLarge):
                await delay(broker, b"y" * (largest + 1), at_us=-HOUR_US, compress=True)
