"""The tables of the broker at their bounds: each is filled beyond it, and holds no more than it may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sized
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.eventually import eventually_done
from tests.inside.alarms import AlarmRule, Reading, RuleBook, Watch, book, watch
from tests.inside.broker import (
    RECENT_FRAMES,
    TABLE,
    Access,
    AccountStore,
    AuditLog,
    Dispatcher,
    Gossip,
    Guard,
    LoginAttempts,
    Membership,
    Passwords,
    Principal,
    Secret,
    ShardHomes,
    TimeSeries,
    Token,
    audit,
    authorization,
    backup,
    login_attempts,
    membership,
    passwords,
    prefix_subscription,
    pull_log,
    shard_homes,
    time_series,
    topics,
)
from tests.inside.console import Limiter, sessions
from tests.inside.delivery import (
    Acked,
    Decided,
    Group,
    Part,
    Prepared,
    Publications,
    Pulled,
    RolledBack,
    Started,
    Transactions,
    lease,
    publications,
    transactions,
)
from tests.inside.ground import SYSTEM, BrokerSettings
from tests.inside.protocol import (
    BROKERS_MAX,
    Attach,
    Backlog,
    BrokerState,
    FrameHead,
    Measure,
    PurgeDead,
    Quota,
    Resend,
)
from tests.inside.sql import Projection
from tests.inside.store import MemoryStore
from towline.errors import NotLetIn, QueueFull, TooMany
from towline.model import GroupConfig, TopicConfig

MOST = 10
MANY = 50


def _alarm_rules() -> Sized:
    rules = RuleBook()
    for number in range(MANY):
        try:
            rules.put(AlarmRule(f"r{number}", "age", 1), number)
        except TooMany:
            break
    return rules.rules


def _dropped_rules() -> Sized:
    rules = RuleBook()
    for number in range(MANY):
        rules.put(AlarmRule(f"r{number}", "age", 1), number)
        rules.drop(f"r{number}", number)
    return rules.changes


def _alarms() -> Sized:
    found = Watch()
    readings = [Reading("age", 9.0, "orders", f"g{number}") for number in range(MANY)]
    found.look({"r": AlarmRule("r", "age", 1)}, readings, 1)
    return found.active


def _tries_by_name() -> Sized:
    found = LoginAttempts(SYSTEM)
    for number in range(MANY):
        found.count(f"10.0.0.{number}", "alice")
    return found._by_name


def _tries_by_origin() -> Sized:
    found = LoginAttempts(SYSTEM)
    for number in range(MANY):
        found.count(f"10.0.0.{number}", f"user{number}")
    return found._by_origin


def _console_logins() -> Sized:
    found = Limiter(SYSTEM)
    for number in range(MANY):
        found.failed(f"10.0.0.{number}", f"user{number}")
    return found._failed


def _right_passwords() -> Sized:
    found = Passwords(SYSTEM)

    async def main() -> None:
        hashed = await found.hash("correct horse battery", "10.0.0.1")
        for number in range(3):
            # Another hash of the same password is another proof.
            assert await found.verify("alice", hashed, "correct horse battery", "10.0.0.1")
            hashed = await found.hash("correct horse battery", f"10.0.0.{number}")

    asyncio.run(main())
    return found._right


def _charts() -> Sized:
    found = TimeSeries()
    for number in range(MANY):
        facts: Any = SimpleNamespace(
            topic="orders", group=f"g{number}", lag=1, out_per_s=0.0, failed=0, in_flight=0, retrying=0
        )
        found.note_group(1, facts)
    return found._groups


def _audit_lines() -> Sized:
    found = AuditLog(None, SYSTEM)
    for number in range(MANY):
        found.note("alice", "", "PutTopic", f"topic {number}")
    return found._recent or ()


def _decisions() -> Sized:
    async def main() -> Sized:
        access = Access(book=AccountStore(MemoryStore(), SYSTEM), clock=SYSTEM)
        context: Any = None
        found = Guard(access, Principal("alice"), TABLE, context, address="", holds=lambda: 0, origin="")
        for number in range(MANY):
            found.may("send", "topic", f"t{number}")
        return found._decided

    return asyncio.run(main())


def _brokers() -> Sized:
    found = Membership(MemoryStore(), BrokerSettings(store="memory:"), SYSTEM)
    states = [BrokerState(f"b{n}", f"b{n}", f"10.0.0.1:{n + 1}", 1, "alive", 0.0, "file") for n in range(MANY)]
    with pytest.raises(TooMany, match="brokers besides this one"):
        found.told(states)
    return found.nodes


def _ranks() -> Sized:
    registry = Membership(MemoryStore(), BrokerSettings(store="memory:"), SYSTEM)
    none: Any = {}
    found = ShardHomes(registry, none, SYSTEM)
    for number in range(MANY):
        found._above(f"t{number}", 1, "b1")
    return found._lower


def _sinks() -> Sized:
    found = Publications()
    for number in range(MANY):
        found.apply(Decided(number, f"sink{number}", 0, []))
    assert not found.running
    return found.sinks


def _transactions(decide: bool) -> Transactions:
    found = Transactions(15)
    for number in range(MANY):
        name = f"t{number}"
        if not found.admit(name):
            continue
        found.prepared(
            Prepared(number, name, "producers", name, b"", b"", 10**12, [("orders", 1, 1)], 10), number, number
        )
        if decide:
            found.apply(RolledBack(number, name, ""), number)
    return found


def _open_transactions() -> Sized:
    with pytest.raises(QueueFull, match="wait to be decided"):
        _transactions(decide=False)
    return [None] * MOST


def _settled_pulls() -> Sized:
    group = Group(GroupConfig("orders", "billing"))
    group.apply(Started(0, (0,) * 6, ()))
    group.observe(1, 0, MANY, 10)
    for number in range(MANY):
        part = Part(1, number, 1, 1)
        group.apply(Pulled(number, number + 1, "c", 10**12 + number, (part,)))
        group.apply(Acked(number, number + 1, (part,)))
    assert not group.leases
    assert not group.in_flight
    assert len(group._deadlines) <= 64
    return group.settled


@pytest.mark.parametrize(
    ("module", "limit", "fill"),
    [
        (book, "RULES_MAX", _alarm_rules),
        (book, "DROPPED_MAX", _dropped_rules),
        (watch, "ACTIVE_MAX", _alarms),
        (login_attempts, "KNOWN_MAX", _tries_by_name),
        (login_attempts, "KNOWN_MAX", _tries_by_origin),
        (sessions, "TRIES_KNOWN", _console_logins),
        (time_series, "GROUPS_MAX", _charts),
        (audit, "KEPT", _audit_lines),
        (authorization, "REMEMBERED_MAX", _decisions),
        (shard_homes, "LOWER_MAX", _ranks),
        (publications, "SINKS_MAX", _sinks),
        (transactions, "FINISHED_MAX", lambda: _transactions(decide=True).finished),
        (transactions, "DUE_SPARE", lambda: _transactions(decide=True)._due),
        (transactions, "OPEN_MAX", _open_transactions),
        (lease, "SETTLED_MAX", _settled_pulls),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_table_holds_no_more_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, fill: Callable[[], Sized]
) -> None:
    monkeypatch.setattr(module, limit, MOST)
    assert 0 < len(fill()) <= MOST


def test_right_passwords_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "REMEMBER_MAX", 2)
    assert len(_right_passwords()) == 2


def test_a_cluster_knows_a_limited_number_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BROKERS_MAX == 100
    monkeypatch.setattr(membership, "BROKERS_MAX", MOST)
    assert len(_brokers()) == MOST


def test_somebody_who_tries_many_names_is_turned_away_before_the_table_is_full() -> None:
    found = LoginAttempts(SYSTEM)
    for number in range(login_attempts.TRIES_OF_ORIGIN):
        found.count("192.0.2.1", f"user{number}")
    with pytest.raises(NotLetIn):
        found.count("192.0.2.1", "another")
    assert (len(found._by_origin), len(found._by_name)) == (1, login_attempts.TRIES_OF_ORIGIN)


async def test_what_is_known_of_secrets_and_quotas_goes_with_their_tokens() -> None:
    access = Access(book=AccountStore(MemoryStore(), SYSTEM), clock=SYSTEM)
    assert access.book is not None
    for number in range(MANY):
        name = f"t{number}"
        await access.book.create_token(Token(name, secrets=[Secret(f"s{number}", "", 1)], quota=Quota(bytes_per_s=100)))
        access.last_used_us[f"s{number}"] = 1
        access.meter(Principal(name, "token")).take(1, SYSTEM.steady_s())
    indebted = access.meter(Principal("t0", "token"))
    indebted.take(1_000_000, SYSTEM.steady_s())
    for number in range(MANY):
        await access.book.revoke(f"t{number}", "")
    access.changed()
    assert access.last_used_us == {}
    assert list(access._meters.values()) == [indebted], "whoever owes something does not get away by reconnecting"


def test_what_is_known_of_brokers_goes_with_them(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        found = Gossip(bench.broker)
        for number in range(MANY):
            address = f"10.0.0.{number}:7400"
            found._aliases[address] = found._said[address] = "x"  # type: ignore[assignment]
            found._caught_up.add((f"b{number}", 1))
            found._seen_alarms[f"b{number}"] = "digest"
            found._talks[address] = asyncio.create_task(asyncio.sleep(0))
        await asyncio.wait(found._talks.values())
        registry = bench.broker.registry
        registry.told([BrokerState("b1", "b1", "10.0.0.1:7400", 1, "alive", 0.0, "file")])
        found._forget()
        kept = ["10.0.0.1:7400"]
        assert (list(found._aliases), list(found._said), list(found._talks)) == (kept, kept, kept)
        assert (found._caught_up, list(found._seen_alarms)) == ({("b1", 1)}, ["b1"])
        for number in range(MANY):
            bench.broker.homes._reports[f"b{number}"] = shard_homes._Report(0.0, [Backlog("orders", [], [], {})])
        await bench.broker.homes.review()
        assert list(bench.broker.homes._reports) == ["b1"]

    disk.run(scenario)


def test_topics_that_no_broker_has_are_not_remembered_for_ever(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", MOST)

    async def scenario(bench: Bench) -> None:
        async def nobody(topic: str) -> None:
            pass

        bench.broker.topics.ask_around = nobody
        for number in range(MANY):
            look = bench.broker.topics.look_first([FrameHead(f"t{number}", 1, 1)])
            assert look is not None
            await look()
        assert len(bench.broker.topics._asked) <= MOST

    disk.run(scenario)


def test_backups_at_a_time_are_limited(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(backup.HELD_MAX):
            await bench.broker.begin_backup()
        with pytest.raises(QueueFull, match="are being made already"):
            await bench.broker.begin_backup()
        assert len(bench.broker.backups._held) == backup.HELD_MAX

    disk.run(scenario)


def test_consumers_that_are_gone_leave_nothing_in_tables(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        await bench.send("orders", *(b"%d" % number for number in range(MANY)))
        for number in range(MANY):
            member = await bench.attach(group=f"~g{number}", consumer=f"c{number}", ephemeral=True)
            other = await bench.attach(consumer=f"c{number}")
            by_prefix = await broker.consumers.fan(Attach("ord*", "audit", f"c{number}"), may=lambda _: True)
            await bench.act(other, ACK, await bench.pull(other, 1))
            await bench.pull(member, 1)
            for one in (member, other, by_prefix):
                await broker.consumers.detach(one)
        consumers = broker.consumers
        await eventually_done(lambda: len(broker.topics["orders"].groups) == 2)
        group: Dispatcher = broker.groups.named("orders", "billing")
        assert (consumers._deserted, consumers._orphans, consumers._subscriptions._subscriptions) == ({}, {}, set())
        assert (group.members, list(group._waiters), group._watching, group.copying) == ({}, [], [], {})
        assert (group.group.leases, group.group.in_flight, group._limits._pulls) == ({}, {}, {})
        assert {len(lane._watchers) for lane in broker.topics["orders"].lanes} == {2}
        assert set(broker._catalog.groups) == {("orders", "billing"), ("orders", "audit")}
        await bench.flush()
        assert not group.log._late

    disk.run(scenario)


def test_pulls_of_a_prefix_and_consumers_that_may_come_back_are_limited(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_subscription, "PULLS_MAX", MOST)
    monkeypatch.setattr(prefix_subscription, "AWAY_MAX", MOST)

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % number for number in range(MANY)))
        by_prefix = await bench.broker.consumers.fan(Attach("ord*", "audit", "c"), may=lambda _: True)
        for _ in range(MANY):
            await bench.act(by_prefix, ACK, await bench.pull(by_prefix, 1))  # type: ignore[arg-type]
        assert len(by_prefix._pulls) <= MOST
        for number in range(2 * MOST):
            config = GroupConfig("orders", f"~e{number}", ephemeral=True)
            one = await bench.broker.consumers.fan(Attach("ord*", config.name, "c", config), may=lambda _: True)
            bench.broker.consumers.disconnected(one)
        assert len(bench.broker.consumers._subscriptions._away) <= MOST

    disk.run(scenario)


def test_frames_at_hand_are_let_go_of_by_and_by(disk: World) -> None:
    """Else ten thousand topics that get a message now and then would have four of them in memory each."""

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"1")
        lane = bench.broker.topics["orders"].lanes[1]
        assert lane.recent(0, 1) is not None
        await bench.broker.maintain()
        assert lane.recent(0, 1) is None
        assert (await bench.pull(await bench.attach())).bodies == [b"1"]

    disk.run(scenario)


def test_frames_at_hand_and_events_that_are_late_are_few(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(MANY):
            await bench.send("orders", b"%d" % number)
        lane = bench.broker.topics["orders"].lanes[1]
        assert (len(lane._recent or ()), len(lane._pending)) == (RECENT_FRAMES, 0)
        member = await bench.attach(max_in_flight=10_000)
        group = bench.broker.groups.named("orders", "billing")
        for _ in range(MANY):
            await bench.pull(member, 1)
            assert len(group.log._late) <= pull_log.LATE_MAX

    disk.run(scenario)


def test_dead_letters_that_were_sent_again_are_forgotten_when_they_are_gone(disk: World) -> None:
    """Of each second one a range of its own is remembered: for as long as it is stored."""

    async def fill(bench: Bench) -> Dispatcher:
        await bench.send("orders", *(b"%d" % number for number in range(MANY)))
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member, MANY))
        group = await bench.broker.groups.buried("orders", "billing")
        for number in range(0, MANY, 2):
            await bench.broker.dead_letters.resend(Resend("orders", "billing", [number]))
        return group

    async def main() -> None:
        async with disk.open() as bench:
            group = (await fill(bench)).group
            assert len(group.resent) == MANY // 2
            await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 40))
            await bench.broker.outlook.census.refresh()
            assert len(group.resent) == 5, "the census looks every few seconds"
            assert group.resent_count == 5
            await bench.broker.maintain()
        async with disk.open() as bench:
            group = bench.broker.groups.named("orders", "billing").group
            assert group.resent == [(number, 1) for number in range(40, MANY, 2)]
            assert bench.broker._snapshots.groups == {}, "what a start began with is let go of"

    asyncio.run(main())


class Walked(list[tuple[int, int]]):
    """Counts how often somebody goes through it."""

    walks = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.walks += 1
        return super().__iter__()


def test_figures_do_not_go_through_all_dead_letters_that_were_sent_again(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % number for number in range(MANY)))
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member, MANY))
        group = (await bench.broker.groups.buried("orders", "billing")).group
        await bench.broker.dead_letters.resend(Resend("orders", "billing", list(range(0, MANY, 2))))
        group.resent = walked = Walked(group.resent)
        assert len(walked) == MANY // 2
        (figures,) = (await bench.broker.measure(Measure())).groups
        await bench.broker.outlook.census.refresh()
        assert figures.dead == bench.broker.outlook.census.topics["orders"].groups["billing"].dead == MANY // 2
        assert walked.walks == 0
        assert group.resent is walked

    disk.run(scenario)


def test_what_tables_show_of_a_group_is_forgotten_with_it() -> None:
    found = Projection(1, 1)
    config = {"topic": "orders", "name": "billing"}
    progress = {"topic": "orders", "group": "billing", "offsets": {"high": 0, "middle": 7, "low": 0}}

    def follow(name: str, **document: Any) -> list[bytes]:
        return found.follow(name, msgspec.json.encode(document))[0]

    follow("topics.json", topics=[{"name": "orders"}])
    follow("subscriptionGroup.json", groups=[config])
    assert follow("consumerOffset.json", groups=[progress])
    follow("subscriptionGroup.json", groups=[])
    assert found._offsets == {}
    follow("subscriptionGroup.json", groups=[config])
    assert follow("consumerOffset.json", groups=[progress]), "its rows are written again for a group that is made anew"


def test_topics_that_are_deleted_leave_nothing_in_tables(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        for number in range(MOST):
            await broker.topics.create(TopicConfig(f"t{number}"))
            await bench.attach(f"t{number}")
            await bench.send(f"t{number}", b"x")
        await broker.outlook.census.refresh()
        await broker.maintain()
        for number in range(MOST):
            await broker.delete_topic(f"t{number}")
        await broker.outlook.census.refresh()
        await broker.maintain()
        assert (len(broker.topics), broker._catalog.topics, broker._catalog.groups) == (0, {}, {})
        assert (broker.outlook.census.topics, broker._snapshots._written, broker.groups.burying) == ({}, {}, {})

    disk.run(scenario)
