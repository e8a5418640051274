"""Tables with a limit of their own, each filled beyond it: those that more than a loop is needed to fill."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

from tests.broker.conftest import Bench, World
from tests.broker.raw_client import RawClient
from tests.broker.schedule.test_clock import TwoClocks
from tests.eventually import eventually, eventually_done
from tests.inside.alarms import Alarm, AlarmRule, Change, Notice
from tests.inside.broker import (
    AccountStore,
    Broker,
    Server,
    Topics,
    account_store,
    alarms,
    group_expiry,
    prefix_subscription,
    queries,
    session,
)
from tests.inside.console import Callers, Pulls, client_pool, held_leases
from tests.inside.delivery import Cancelled, Due, Publications, Schedule, StagedHead, publications, schedule
from tests.inside.ground import SYSTEM
from tests.inside.protocol import Attach, CancelDelayed, CreateTopic, Done, Rule
from tests.inside.sql import database, tables
from tests.inside.sql import range_reader as sql_reading
from tests.inside.store import DiskIo, KeyBuilder, MemoryStore, StreamReader, Wanted, key_search, range_reader
from towline.errors import QueueFull, TooMany
from towline.model import TopicConfig

MOST = 5
MANY = 20


def test_staged_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "STAGED_MAX", MOST)
    found = Publications()
    for number in range(MOST):
        found.admit()
        found.staged_at(number, StagedHead(1, b"", b"", []))
    with pytest.raises(QueueFull, match="5 staged records wait"):
        found.admit()


def test_answers_to_those_who_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ANSWERS_MAX", MOST)
    found = Schedule()
    for number in range(MANY):
        found.apply(Cancelled(0, 1, "orders", 0, [], f"request {number}", number))
    assert list(found.answers.values()) == list(range(MANY - MOST, MANY)), "the oldest go"


def test_how_often_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ERAS_MAX", MOST)
    found = Schedule()
    for number in range(MANY):
        found.apply(Due(10**9 - number, 1, era=found.era, floors=found.floors))
        if (back := found.new_era(10**6 - number)) is not None:
            found.apply(back)
    assert 0 < len(found.floors) <= MOST


def test_cancelled_messages(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "CANCELLED_MAX", MOST)

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"x" for _ in range(MANY)), deliver_at_us=[-3600 * 10**6] * MANY)
        for number in range(1, MOST + 1):
            await bench.broker.delayed.cancel(CancelDelayed("orders", [number]))
        with pytest.raises(TooMany, match="5 cancelled messages still wait"):
            await bench.broker.delayed.cancel(CancelDelayed("orders", [MOST + 1]))
        assert bench.broker.scheduler.schedule.cancelled == MOST

    disk.run(scenario)


async def test_rules_of_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_store, "RULES_MAX", MOST)

    book = AccountStore(MemoryStore(), SYSTEM)
    rule = Rule(0, "alice", "allow", "send", "topic", "a")
    for _ in range(MOST):
        await book.add_rule(rule)
    with pytest.raises(TooMany, match="5 rules are the limits"):
        await book.add_rule(rule)
    assert len(book.rules) == MOST


def test_notices_of_alarms(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for more of their kind, those that wait to be sent, for the same people and for others, and those
    that were."""
    for name, most in (("NOTICES_MAX", 12), ("ADDRESSEES_MAX", 3), ("WAITING_MAX", 4), ("TOLD_MAX", MOST)):
        monkeypatch.setattr(alarms, name, most)
    go_on = asyncio.Event()

    async def blocked(*_: object) -> None:
        await go_on.wait()

    def to(number: int) -> Notice:
        return Notice((f"{number}@example.com",), (), ())

    async def scenario(bench: Bench) -> None:
        desk: Any = bench.broker.outlook.alarms
        for number in range(MANY):
            desk._take([to(number)])
        assert len(desk._waiting) == 12
        send, desk._send_stubbornly = desk._send_stubbornly, blocked
        desk._due_s = 0.0
        desk._take([])
        assert desk._waiting == []
        await eventually_done(lambda: len(desk._under_way) == 3)
        for number in range(MANY):
            desk._notices.extend([to(0), to(number)])
            assert len(desk._notices) <= 12
            desk._more.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(desk._under_way) == 3
            assert max(map(len, desk._under_way.values())) <= 4
        desk._send_stubbornly = send
        for _ in range(MANY):
            change = Change("begun", AlarmRule("r", "age", 1), Alarm("r", "orders", "g", 1.0, 1))
            await desk._send(Notice((), (), (change,)))
        assert len(desk._told) == MOST
        go_on.set()

    disk.run(scenario, alarm_wait_s=3600.0)


async def test_groups_that_expired(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_expiry, "REMEMBERED_MAX", MOST)

    clock = TwoClocks()
    async with disk.open(clock) as bench:
        for number in range(MANY):
            await bench.broker.consumers.detach(await bench.attach(group=f"~pod{number}", start="latest"))
        for _ in range(34):
            clock.advance(86400 / 4)
            await bench.broker.group_expiry.look()
        assert bench.broker.topics["orders"].groups == {}
        assert len(bench.broker.group_expiry._removed) == MOST
        await bench.broker.group_expiry.save()
    async with disk.open(clock) as bench:
        assert len(bench.broker.group_expiry._removed) == MOST


def test_news_of_a_prefix(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more are told at a time; all that wait are topics of the prefix."""
    monkeypatch.setattr(prefix_subscription, "NEWS_MAX", MOST)

    async def scenario(bench: Bench) -> None:
        for number in range(MANY):
            await bench.send(f"t{number}", b"x")
            await bench.attach(f"t{number}", "audit", max_attempts=7)
        one = await bench.broker.consumers.fan(Attach("t*", "audit", "c"), may=lambda _: True)
        await eventually_done(lambda: len(one._members) == MANY)
        assert len(one._news) == MANY
        told = [len(one.take_news("t3")) for _ in range(MANY // MOST)]
        assert told == [MOST] * (MANY // MOST)
        assert one._news == {}

    disk.run(scenario)


def test_key_files_to_be_made(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "_WAITING_MAX", MOST)
    go_on = threading.Event()
    builder = KeyBuilder(disk.folder, DiskIo())
    builder._executor.submit(go_on.wait)
    for number in range(MANY):
        builder.build_soon(number)
    assert len(builder._waiting) == MOST
    go_on.set()
    asyncio.run(builder.drain())
    assert builder._waiting == set()
    builder.close()


def test_lost_records_that_were_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(range_reader, "_REPORTED_MAX", MOST)
    none: Any = None
    reader = StreamReader(none, none, none, SimpleNamespace(lost_ranges=0), none)  # type: ignore[arg-type]
    stream: Any = SimpleNamespace(name="lane/orders/middle")
    for number in range(MANY):
        reader._report(stream, Wanted(1, 0, 1, number, number, 1, 0))
    assert len(reader._reported) == len(caplog.records) == MOST


def test_statements_that_were_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of tables that there are, which come and go with topics."""
    monkeypatch.setattr(database, "_COMPILED", {})
    monkeypatch.setattr(database, "_COMPILED_MAX", MOST)
    for number in range(MANY):
        assert f"t{number}" in database._compiled(sqlalchemy.text(f"SELECT * FROM t{number}")).text
        assert len(database._COMPILED) <= MOST


def test_queries_of_tables_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_reading, "_QUERIES", {})
    monkeypatch.setattr(sql_reading, "_QUERIES_MAX", MOST)
    for number in range(MANY):
        stream: Any = SimpleNamespace(
            frames=tables.frame.to_metadata(sqlalchemy.MetaData(), name=f"t{number}"), messages=None
        )
        sql_reading._queries(stream)
        assert len(sql_reading._QUERIES) <= MOST


def test_requests_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RUNNING_MAX", MOST)
    go_on = threading.Event()
    running: list[int] = []
    counts: list[int] = []

    async def slowly(_topics: Topics, config: TopicConfig) -> None:
        running.append(1)
        counts.append(len(running))
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        running.pop()

    monkeypatch.setattr(Topics, "create", slowly)

    async def main() -> None:
        broker = await Broker.open(MemoryStore(), World("memory", None).settings())  # type: ignore[arg-type]
        server = await Server.start(broker, "127.0.0.1", 0)
        try:
            await asyncio.to_thread(ask, server.port)
        finally:
            await server.drain_and_close()
            await broker.close()

    def ask(port: int) -> None:
        with RawClient.hello(port) as client:
            for number in range(MANY):
                client.post(CreateTopic(TopicConfig(f"t{number}")))
            eventually(lambda: len(running) >= MOST)
            go_on.set()
            for _ in range(MANY):
                found = client.read()
                assert found is not None
                assert isinstance(found[1], Done)

    asyncio.run(main())
    assert max(counts) == MOST


async def test_callers_of_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_pool, "CALLERS_MAX", MOST)
    closed: list[str] = []

    async def opened(_: Callers, name: str, *_rest: str) -> Any:
        async def close() -> None:
            closed.append(name)

        return SimpleNamespace(close=close)

    monkeypatch.setattr(Callers, "_open", opened)

    found = Callers("towline://nowhere", {})
    for number in range(MANY):
        await found.of(f"Bearer t{number}.secret", "10.0.0.1")
        await found.tidy(set())
        assert len(found._callers) <= MOST
    assert closed == [f"t{number}" for number in range(MANY - MOST)], "the longest unused"


async def test_pulls_of_a_caller_and_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all of them come at once, before the first has its consumer."""
    monkeypatch.setattr(held_leases, "CONSUMERS_MAX", MOST)

    go_on = asyncio.Event()

    async def pull(*_: object, **__: object) -> list[object]:
        await go_on.wait()
        return []

    async def consumer(*_: object, **__: object) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(closed=False, pull=pull)

    caller: Any = SimpleNamespace(key="alice", client=SimpleNamespace(consumer=consumer))
    found = Pulls()
    asked = [
        asyncio.ensure_future(found.pull(caller, "orders", "g", max_messages=1, wait_s=1, lease_s=1))
        for _ in range(MANY)
    ]
    await eventually_done(lambda: sum(one.done() for one in asked) == MANY - MOST)
    assert [len(seats) for seats in found._seats.values()] == [MOST]
    go_on.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in answers].count(QueueFull) == MANY - MOST
