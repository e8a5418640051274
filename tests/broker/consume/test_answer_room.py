"""Pulls for whose answers there is no room, because clients have left too many: they hold nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.broker.conftest import ACK, Bench, Got, World
from tests.broker.topics.test_catalog import fan
from tests.eventually import eventually_done
from tests.inside.broker import PULLS, AnswerBudget, Buffers, Dispatcher, Member, PrefixSubscription, State, pulls
from tests.inside.protocol import Act, Pull, Pulled, Seek
from towline.errors import QueueFull
from towline.model import TopicConfig

MB = 1 << 20
FAR = 60_000
"""Milliseconds: longer than any of this takes."""
BODY = bytes(5_000)
"""Too large to be kept at hand: it has to be read."""


class Client:
    """What pulls need of a session, on a budget that is full until `leave_room`."""

    def __init__(self, bench: Bench, *, full: bool = True) -> None:
        self.bench = bench
        self.state = State.OPEN
        self.is_held = False
        self.answers: dict[int, Any] = {}
        self.budget = AnswerBudget(8 * MB)
        self.share = self.budget.share(lambda: 0, str, 4 * MB)
        self.pulls = pulls.Pulls(asyncio.get_running_loop(), 8 * MB)
        self._left = 0
        self._other = self.budget.share(lambda: self._left, str, MB)
        if full:
            self.fill()

    def fill(self) -> None:
        self._left = self.budget.limit_bytes
        self._other.wrote(self._left)

    def leave_room(self) -> None:
        self._left = 0
        self._other.count()
        self.budget.freed()

    def pull(self, member: Member | PrefixSubscription, number: int = 1, wait_ms: int = 0, **fields: Any) -> None:
        request = Pull(fields.pop("subscription", 0), 10, MB, wait_ms, **fields)
        self.pulls.start(self, number, member, request, None)  # type: ignore[arg-type]

    def answer(self, number: int, pulled: Pulled, buffers: Buffers) -> None:
        self.answers[number] = Got(pulled, b"".join(buffers))

    def fail(self, number: int, error: BaseException, kind: int) -> None:
        self.answers[number] = error

    def finish(self) -> None:
        """It goes on."""

    async def answered(self, number: int = 1) -> Any:
        return await eventually_done(lambda: self.answers.get(number))

    async def until_it_waits_for_room(self) -> None:
        await eventually_done(lambda: any(self.budget._waiting))

    def holds_nothing(self) -> bool:
        return (self.budget.used_bytes, self.budget.reads[PULLS], any(self.budget._waiting)) == (0, 0, False)


@contextmanager
def reads_stopped(bench: Bench) -> Iterator[tuple[asyncio.Event, list[object]]]:
    """Reads end when the event is set; gives a list that grows with them."""
    read, go, begun = bench.store.read, asyncio.Event(), list[object]()

    async def late(*asked: Any) -> Any:
        begun.append(asked)
        await go.wait()
        return await read(*asked)

    bench.store.read = late  # type: ignore[assignment, method-assign]
    try:
        yield go, begun
    finally:
        bench.store.read = read  # type: ignore[method-assign]


def wait_for_room_at_most(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that does not wait for messages."""
    monkeypatch.setattr("tests.inside.broker.prefix_subscription.ROOM_S", seconds)
    defaults = Dispatcher.pull.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "room_s", seconds)


def in_flight(bench: Bench, topics: Sequence[str] = ("orders",), group: str = "billing") -> int:
    return sum(bench.broker.group_state(topic, group).in_flight for topic in topics)


def test_a_pull_whose_messages_were_taken_away_while_it_read_reads_again(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, client = await bench.attach(), Client(bench, full=False)
        await bench.send("orders", BODY)
        with reads_stopped(bench) as (go, begun):
            client.pull(member, wait_ms=FAR)
            await eventually_done(lambda: begun)
            await bench.broker.groups.seek(Seek("orders", "billing", "earliest"))
            go.set()
            got = await client.answered()
        assert (got.bodies, got.attempts) == ([BODY], [1])
        assert client.holds_nothing()

    disk.run(scenario)


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("came", ["before", "while it waits"])
def test_nothing_is_held_while_there_is_no_room(disk: World, came: str, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        member, other = await bench.attach(mode=mode), await bench.attach(consumer="c2", mode=mode)
        client = Client(bench)
        if came == "before":
            await bench.send("orders", BODY, BODY)
        client.pull(member, wait_ms=FAR)
        if came != "before":
            await eventually_done(lambda: member.waiting)
            await bench.send("orders", BODY, BODY)
        await client.until_it_waits_for_room()
        assert in_flight(bench) == 0
        got = await bench.pull(other)
        assert (got.bodies, got.attempts) == ([BODY, BODY], [1, 1]), "others have them, and nobody has failed"
        await bench.act(other, ACK, got)
        client.leave_room()
        await eventually_done(lambda: member.waiting)
        assert client.holds_nothing(), "nobody waits for messages holding room"
        await bench.send("orders", BODY)
        assert (await client.answered()).bodies == [BODY]
        assert client.holds_nothing()

    disk.run(scenario)


def test_messages_that_were_left_for_lack_of_room_wake_who_waits_for_them(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, other = await bench.attach(), await bench.attach(consumer="c2")
        client = Client(bench)
        client.pull(member, wait_ms=FAR)
        await eventually_done(lambda: member.waiting)
        waiting = asyncio.create_task(bench.pull(other, wait_ms=FAR))
        await eventually_done(lambda: other.waiting)
        await bench.send("orders", BODY)
        assert (await waiting).bodies == [BODY]
        await client.until_it_waits_for_room()
        client.pulls.cancel_all()

    disk.run(scenario)


def test_those_without_room_do_not_pass_messages_to_and_fro(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        client, members = Client(bench), [await bench.attach(consumer=f"c{number}") for number in range(5)]
        for number, member in enumerate(members):
            client.pull(member, number, FAR, subscription=number)
        await eventually_done(lambda: all(member.waiting for member in members))
        dispatcher = members[0].dispatcher
        before = dispatcher.log.count
        await bench.send("orders", BODY)
        await eventually_done(lambda: not any(member.waiting for member in members))
        await client.until_it_waits_for_room()
        assert dispatcher.log.count - before == 2 * len(members), "each had it once, and left it"
        client.leave_room()
        await eventually_done(lambda: client.answers)
        await eventually_done(lambda: sum(member.waiting for member in members) == len(members) - 1)
        assert client.holds_nothing()
        client.pulls.cancel_all()

    disk.run(scenario)


def test_a_pull_waits_no_longer_for_room_than_for_messages(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_room_at_most(FAR, monkeypatch)

    async def scenario(bench: Bench) -> None:
        member, client = await bench.attach(), Client(bench)
        await bench.send("orders", BODY)
        client.pull(member, wait_ms=20)
        got = await client.answered()
        assert (got.pull, got.bodies) == (0, [])
        assert in_flight(bench) == 0
        client.leave_room()
        assert client.holds_nothing()

    disk.run(scenario)


@pytest.mark.parametrize("by_prefix", [False, True])
def test_a_pull_that_does_not_wait_fails_and_says_what_is_full(
    disk: World, by_prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_room_at_most(0.02, monkeypatch)

    async def scenario(bench: Bench) -> None:
        one = await bench.attach()
        member = await fan(bench, "ord*") if by_prefix else one
        group = "g" if by_prefix else "billing"
        client = Client(bench)
        await bench.send("orders", BODY, BODY)
        client.pull(member)
        error = await client.answered()
        assert isinstance(error, QueueFull)
        assert "max_unread_total_bytes" in str(error)
        assert in_flight(bench, group=group) == 0
        # One that settles is answered: its acts were carried out.
        held, _ = await bench.broker.consumers.pull(member, Pull(0, 1, 100))
        client.pull(member, 2, acts=[Act(ACK, held.pull, [])])
        got = await client.answered(2)
        assert (got.pull, got.answer.refused) == (0, [])
        assert bench.broker.group_state("orders", group).lag == 1
        client.leave_room()
        assert client.holds_nothing()

    disk.run(scenario)


def test_a_standing_pull_that_waits_for_room_ends_when_the_client_pulls_again(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, client = await bench.attach(), Client(bench)
        await bench.send("orders", BODY)
        client.pull(member, 1, FAR, answers=10)
        await client.until_it_waits_for_room()
        client.pull(member, 2, FAR)
        got = await client.answered(1)
        assert (got.pull, got.answer.more) == (0, False)
        await client.until_it_waits_for_room()
        client.leave_room()
        assert (await client.answered(2)).bodies == [BODY]
        assert client.holds_nothing()

    disk.run(scenario)


@pytest.mark.parametrize("turns", range(4))
def test_a_pull_that_is_broken_off_leaves_its_room(disk: World, turns: int) -> None:
    async def scenario(bench: Bench) -> None:
        member, client = await bench.attach(), Client(bench)
        await bench.send("orders", BODY)
        with reads_stopped(bench) as (go, _):
            client.pull(member, wait_ms=FAR)
            await client.until_it_waits_for_room()
            client.leave_room()
            for _ in range(turns):  # it waits, was given room, knows it, reads
                await asyncio.sleep(0)
            client.pulls.cancel_all()
            go.set()
        await eventually_done(client.holds_nothing)

    disk.run(scenario)


def test_a_shard_keeps_its_order_when_there_is_no_room(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.broker.topics.create(TopicConfig("orders", shards=1))
        member, client = await bench.attach(), Client(bench)
        for number in range(3):
            await bench.send("orders", b"%d" % number + BODY, lane=0)
        client.pull(member, 1, FAR)
        await client.until_it_waits_for_room()
        client.leave_room()
        got = await client.answered()
        assert [body[:1] for body in got.bodies] == [b"0", b"1", b"2"]
        assert got.attempts == [1, 1, 1]

    disk.run(scenario)


@pytest.mark.parametrize("wait_ms", [20, FAR])
def test_a_subscription_by_prefix_waits_once_for_all_its_topics(
    disk: World, wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = AnswerBudget.wait

    async def count(*asked: Any) -> int:
        nonlocal waits
        waits += 1
        return await wait(*asked)

    monkeypatch.setattr(AnswerBudget, "wait", count)

    async def scenario(bench: Bench) -> None:
        names = [f"many.{number}" for number in range(5)]
        for name in names:
            await bench.send(name, BODY)
        member, client = await fan(bench, "many.*"), Client(bench)
        client.pull(member, 0, wait_ms)
        await client.until_it_waits_for_room()
        assert in_flight(bench, names, "g") == 0
        if wait_ms != FAR:
            assert (await client.answered(0)).pull == 0
            client.answers.clear()
            client.pull(member, 0, FAR)
            await client.until_it_waits_for_room()
        assert waits == (1 if wait_ms == FAR else 2)
        client.leave_room()
        seen = []
        for number in range(5):
            if number:
                client.pull(member, number, FAR)
            seen.append((await client.answered(number)).answer.topic)
        assert seen == names, "none of them lost its place"
        client.pull(member, 5, FAR)
        await eventually_done(lambda: member.waiting)
        assert client.holds_nothing()
        client.pulls.cancel_all()

    disk.run(scenario)
