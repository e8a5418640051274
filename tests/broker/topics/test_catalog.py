"""Topics and groups are kept as changes: each is durable by itself, and the files for people are written behind."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.test_recovery import crash
from tests.inside.broker import Broker, PrefixSubscription, open_store
from tests.inside.delivery import GROUP_CHANGES, TOPIC_CHANGES
from tests.inside.protocol import Attach, Pause, Pull, PutTopic
from tests.inside.store import Append, Appended, Store
from towline.errors import NotFound, TooMany, Unavailable
from towline.model import GroupConfig, RetryPolicy, TopicConfig

FILES = ("topics.json", "subscriptionGroup.json")


def config(world: World, name: str) -> Path:
    return Path(world.store_url.removeprefix("file:")) / "config" / name


def document(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config(world, name).read_text())
    return found


@pytest.fixture(params=["log", "sql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A store that outlives its broker."""
    return World(request.param, tmp_path)


@asynccontextmanager
async def cut_short(world: World, **given: Any) -> AsyncIterator[Bench]:
    """A broker that ends without a last word: nothing is written that it did not write before."""
    settings = world.settings(**given)
    store = await open_store(settings)
    broker = await Broker.open(store, settings)
    yield Bench(broker, store)
    await broker._stop()
    await store.close()


class Counted:
    """What goes into a store from now on."""

    def __init__(self, store: Store) -> None:
        self.appends = 0
        self.saved_bytes = 0
        append, save = store.append, store.save

        def counting_append(unit: Sequence[Append], *rest: Any) -> Appended:
            self.appends += bool(unit)
            return append(unit, *rest)

        async def counting_save(name: str, content: bytes) -> None:
            self.saved_bytes += len(content)
            await save(name, content)

        setattr(store, "append", counting_append)  # noqa: B010 - it is no method of the kind
        setattr(store, "save", counting_save)  # noqa: B010


async def fan(bench: Bench, pattern: str, consumer: str = "c", **settings: Any) -> PrefixSubscription:
    asked = GroupConfig("any", "g", **settings)
    found = await bench.broker.consumers.fan(
        Attach(pattern, "g", consumer, asked), address="test", may=lambda topic: True
    )
    found.broker = bench.broker
    return found


async def topics(bench: Bench, count: int, prefix: str = "many") -> list[str]:
    names = [f"{prefix}.{number:05}" for number in range(count)]
    for name in names:
        await bench.send(name, b"one")
    return names


# What was answered is there


async def test_what_was_made_and_changed_is_there_after_a_broker_that_ended_at_once(kept: World) -> None:
    async with cut_short(kept) as bench:
        await bench.broker.topics.create(TopicConfig("ledger", shards=5, author="ann"))
        await bench.send("sent", b"one")
        await bench.broker.groups.put(GroupConfig("ledger", "audit", retry=RetryPolicy(7, (1.5,))))
        await bench.broker.groups.put(GroupConfig("ledger", "gone"))
        await bench.broker.groups.pause(Pause("ledger", "audit", True, "rest"))
        await bench.attach("sent", "billing", max_attempts=9, mode="at-most-once")
        await bench.broker.put_topic(PutTopic(TopicConfig("sent", retention_s=60.0)))
        await bench.broker.put_topic(PutTopic(TopicConfig("any", author="bob"), template=True))
        await bench.broker.groups.delete("ledger", "gone")
        await bench.broker.topics.create(TopicConfig("dropped", shards=2))
        await bench.broker.delete_topic("dropped")
    for _ in range(2):  # as well if that one says nothing either
        async with cut_short(kept) as bench:
            states = {one.config.name: one.config for one in await bench.broker.topic_states()}
            assert set(states) == {"ledger", "sent"}
            assert (states["ledger"].shards, states["ledger"].author) == (5, "ann")
            assert states["sent"].retention_s == 60.0
            groups = {(one.config.topic, one.config.name): one.config for one in await bench.broker.group_states()}
            assert set(groups) == {("ledger", "audit"), ("sent", "billing")}
            audit, billing = groups["ledger", "audit"], groups["sent", "billing"]
            assert (audit.retry, audit.paused, audit.pause_reason) == (RetryPolicy(7, (1.5,)), True, "rest")
            assert (billing.retry.max_attempts, billing.mode) == (9, "at-most-once")
            assert bench.broker.template().config.author == "bob"


async def test_a_torn_tail_takes_no_group_that_was_answered_before(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.attach("orders", "first", max_attempts=9)
        after = crash(disk, tmp_path / "crashed")
        await bench.attach("orders", "second", max_attempts=9)
        torn = crash(disk, tmp_path / "torn")
    [segment] = (tmp_path / "torn" / "data" / "log").glob("*.log")
    [whole] = (tmp_path / "crashed" / "data" / "log").glob("*.log")
    before, now = whole.read_bytes(), bytearray(segment.read_bytes())
    begin = next(at for at in range(0, len(before), 8) if before[at : at + 8] != now[at : at + 8])
    now[begin + 80 :] = bytes(len(now) - begin - 80)  # the unit of the second one came to the disk in part
    segment.write_bytes(now)
    for world, names in ((after, ["first"]), (torn, ["first"])):
        async with world.open() as bench:
            groups = await bench.broker.group_states("orders")
            assert [one.config.name for one in groups] == names, world.store_url
            assert groups[0].config.retry.max_attempts == 9


async def test_a_group_and_where_it_begins_come_in_one_unit(disk: World, tmp_path: Path) -> None:
    """Otherwise it would come back with other settings, or elsewhere."""

    async with disk.open() as bench:
        await bench.send("orders", b"old")
        counted = Counted(bench.store)
        await bench.attach("orders", "late", start="latest")
        assert counted.appends == 1


# What it costs


def test_a_group_and_a_topic_cost_the_same_however_many_there_are(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        names = await topics(bench, 400)
        costs = []
        for group in ("first", "last"):
            counted = Counted(bench.store)
            await bench.broker.groups.put(GroupConfig(names[0], group))
            await bench.broker.topics.create(TopicConfig(f"{group}.topic"))
            await bench.send(f"{group}.sent", b"one")
            await bench.broker.groups.put(GroupConfig(names[0], group, timeout_s=5.0))
            costs.append((counted.appends, counted.saved_bytes))
            for name in names:
                await bench.broker.groups.put(GroupConfig(name, "filler"))
        assert costs[0][1] == costs[1][1] == 0, "no document is written for them"
        assert costs[0][0] == costs[1][0] <= 6

    async def main() -> None:
        async with world.open() as bench:
            bench.broker._catalog._written_s = bench.broker.clock.steady_s() + 1e6  # not while we count
            await scenario(bench)

    asyncio.run(main())


async def test_the_room_for_shards_is_counted_as_topics_come_and_go(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.broker.topics.MAX_SHARDS_IN_ALL", 10)

    async with disk.open() as bench:
        await bench.broker.topics.create(TopicConfig("six", shards=6))
        with pytest.raises(TooMany, match="10 shards in all"):
            await bench.broker.topics.create(TopicConfig("five", shards=5))
        await bench.broker.delete_topic("six")
        await bench.broker.topics.create(TopicConfig("five", shards=5))
        await bench.broker.put_topic(PutTopic(TopicConfig("five", shards=5, author="ann")))
    async with disk.open() as bench:
        with pytest.raises(TooMany):
            await bench.broker.topics.create(TopicConfig("six", shards=6))
        await bench.broker.topics.create(TopicConfig("fives", shards=5))


def test_topics_by_prefix_come_up_together_and_others_are_served_meanwhile(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        names = await topics(bench, 1_200)
        barriers = Counter[bool]()
        append = bench.store.append

        def noting(unit: Sequence[Append], *rest: Any) -> Appended:
            barriers[not unit] += 1
            return append(unit, *rest)

        setattr(bench.store, "append", noting)  # noqa: B010
        joining = asyncio.ensure_future(fan(bench, "many.*"))
        served = 0
        while not joining.done():
            await bench.send("else", b"one")
            served += 1
            await asyncio.sleep(0)
        found = await joining
        assert {one.config.topic for one in found.members} == set(names)
        assert served > 3
        assert barriers[True] <= 10, "they become durable in a few steps"
        got, bodies = await bench.broker.consumers.pull(found, Pull(0, 10, 1 << 20))
        assert got.pull
        assert bodies
        # Those that come back find all of it.
        await bench.broker.consumers.detach(found)
        written = barriers[False]
        again = await fan(bench, "many.*")
        assert len(again.members) == len(names)
        assert barriers[False] - written < 10

    world.run(scenario)


def test_a_pull_that_waits_for_many_topics_looks_at_those_that_changed(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        await topics(bench, 300)
        found = await fan(bench, "many.*", start="latest")
        await bench.broker.consumers.pull(found, Pull(0, 10, 1 << 20, wait_ms=1))
        armed: list[str] = []
        arm = found.members[0].dispatcher.__class__.arm

        def noting(dispatcher: Any) -> None:
            armed.append(dispatcher.label)
            arm(dispatcher)

        monkeypatch.setattr(found.members[0].dispatcher.__class__, "arm", noting)
        waiting = asyncio.ensure_future(bench.broker.consumers.pull(found, Pull(0, 10, 1 << 20, wait_ms=60_000)))
        while not found.waiting:
            await asyncio.sleep(0)
        assert all(one.waits for one in found.members)
        await bench.send("many.00007", b"two")
        got, _ = await waiting
        assert got.topic == "many.00007"
        assert len(armed) < 10

    disk.run(scenario)


def test_a_subscription_that_cannot_come_up_leaves_nobody_behind(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        names = await topics(bench, 5)
        make, made = bench.broker.groups._found_or_made, Counter[str]()

        async def failing(request: Attach) -> Any:
            made[request.topic] += 1
            if len(made) == 4:
                raise OSError("the disk is gone")
            return await make(request)

        monkeypatch.setattr(bench.broker.groups, "_found_or_made", failing)
        with pytest.raises(OSError, match="gone"):
            await fan(bench, "many.*")
        await bench.send("many.more", b"one")
        assert not bench.broker.consumers._subscriptions._subscriptions
        assert not [one for name in names for one in bench.broker.topics[name].groups.values() if one.members]

    disk.run(scenario)


def test_a_topic_that_goes_while_others_are_joined_is_left_out(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        names = await topics(bench, 50)
        joining = asyncio.ensure_future(fan(bench, "many.*"))
        await bench.broker.delete_topic(names[-1])
        found = await joining
        # Joined before it was gone, or found to be gone: it is not made anew.
        while (await bench.broker.consumers.pull(found, Pull(0, 10, 1 << 20, wait_ms=1)))[0].pull:
            pass
        assert {one.config.topic for one in found.members if not one.dispatcher.closed} == set(names[:-1])
        with pytest.raises(NotFound):
            bench.broker.topic_state(names[-1])

    disk.run(scenario)


@pytest.mark.parametrize("found_gone", [True, False])
def test_a_topic_that_is_made_anew_while_it_is_joined_is_joined_anew(disk: World, found_gone: bool) -> None:
    async def scenario(bench: Bench) -> None:
        await topics(bench, 1)
        found = await fan(bench, "many.*", start="latest")
        join, rounds = found._join, 0

        async def make_anew(requests: Sequence[Attach]) -> Any:
            nonlocal rounds
            rounds += 1
            joined = None if found_gone else await join(requests)
            if rounds == 1:
                await bench.broker.delete_topic("many.again")
                joined = joined or await join(requests)
                await bench.send("many.again", b"anew")
            return joined or await join(requests)

        found._join = make_anew
        await bench.send("many.again", b"before")
        got = await bench.pull(found, wait_ms=20_000)
        assert (got.answer.topic, got.bodies) == ("many.again", [b"anew"])
        assert rounds == 2

    disk.run(scenario)


def test_a_topic_that_cannot_be_joined_holds_no_other_up_and_is_tried_again(
    disk: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tests.inside.broker.prefix_subscription.AGAIN_S", 0.01)

    async def scenario(bench: Bench) -> None:
        await topics(bench, 1)
        found = await fan(bench, "many.*", start="latest")
        join, refused = found._join, 0

        async def refuse(requests: Sequence[Attach]) -> Any:
            nonlocal refused
            refused += 1
            return [Unavailable("not this one") for _ in requests] if refused < 5 else await join(requests)

        found._join = refuse
        await bench.send("many.other", b"other")
        await bench.send("many.00000", b"mine")
        got = await bench.pull(found, wait_ms=20_000)
        assert (got.answer.topic, got.bodies) == ("many.00000", [b"mine"])
        assert found.unjoined == ["many.other"], "all of its messages are new, also after a broken connection"
        got = await bench.pull(found, wait_ms=20_000)
        assert (got.answer.topic, got.bodies) == ("many.other", [b"other"])
        assert refused == 5
        assert found.unjoined == []
        assert caplog.text.count("not this one") in (1, 2), "once a minute"

    disk.run(scenario)


def test_a_consumer_that_can_join_no_topic_is_told(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        found = await fan(bench, "many.*")

        async def refuse(requests: Sequence[Attach]) -> Any:
            return [Unavailable("not now") for _ in requests]

        join, found._join = found._join, refuse
        await topics(bench, 1)
        with pytest.raises(Unavailable, match="not now"):
            await bench.pull(found)
        found._join = join
        assert (await bench.pull(found)).bodies == [b"one"]

    disk.run(scenario)


# The files


def test_the_files_follow_by_themselves_and_what_they_have_leaves_the_log(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.broker.topics.create(TopicConfig("orders", author="ann"))
        await bench.attach("orders", "billing")
        async with asyncio.timeout(30):
            while bench.broker._catalog.is_behind:
                await asyncio.sleep(0.05)
        assert [one["name"] for one in document(disk, "topics.json")["topics"]] == ["orders"]
        assert [one["name"] for one in document(disk, "subscriptionGroup.json")["groups"]] == ["billing"]
        for name, stream in zip(FILES, (TOPIC_CHANGES, GROUP_CHANGES), strict=True):
            assert document(disk, name)["position"] == bench.store.bounds(stream).end == 1
        for _ in range(3):
            await bench.broker.maintain()
        for stream in (TOPIC_CHANGES, GROUP_CHANGES):
            assert bench.store.bounds(stream)[:2] == (1, 1)

    disk.run(scenario)


@pytest.mark.parametrize("damage", ["cut", "gone"])
@pytest.mark.parametrize("rounds", [2, 5])
async def test_the_file_before_and_the_log_have_all_if_the_last_file_is_damaged(
    disk: World, rounds: int, damage: str
) -> None:
    async with disk.open() as bench:
        for number in range(rounds):
            await bench.broker.topics.create(TopicConfig(f"t{number}", shards=3, author="ann"))
            await bench.broker.groups.put(GroupConfig(f"t{number}", "g", timeout_s=7.0))
            await bench.broker.maintain()
        await bench.broker.topics.create(TopicConfig("last", shards=4))
    for name in FILES:
        file = config(disk, name)
        file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-20])
    async with disk.open() as bench:
        states = {one.config.name: one.config for one in await bench.broker.topic_states()}
        assert {name: one.shards for name, one in states.items()} == {
            **{f"t{number}": 3 for number in range(rounds)},
            "last": 4,
        }
        assert [one.config.timeout_s for one in await bench.broker.group_states()] == [7.0] * rounds


async def test_what_people_write_into_the_files_counts(disk: World) -> None:
    async with disk.open() as bench:
        await bench.broker.topics.create(TopicConfig("orders", author="ann"))
        await bench.attach("orders", "billing")
    for name, key, edited in zip(FILES, ("topics", "groups"), ({"author": "bob"}, {"timeout_s": 42.0}), strict=True):
        found = document(disk, name)
        found[key][0] |= edited
        config(disk, name).write_text(json.dumps(found))
    for _ in range(2):
        async with disk.open() as bench:
            assert bench.broker.topic_state("orders").config.author == "bob"
            assert bench.broker.group_state("orders", "billing").config.timeout_s == 42.0
            await bench.broker.topics.create(TopicConfig(f"more-{len(bench.broker.topics)}"))


async def test_files_of_the_version_before_are_read_and_what_comes_next_is_kept(disk: World, tmp_path: Path) -> None:
    async with disk.open():
        pass
    config(disk, "topics.json").write_text('{"topics": [{"name": "orders", "shards": 3}]}')
    config(disk, "subscriptionGroup.json").write_text('{"groups": [{"topic": "orders", "name": "billing"}]}')
    async with disk.open() as bench:
        await bench.broker.topics.create(TopicConfig("new", shards=2))
        await bench.broker.groups.put(GroupConfig("orders", "billing", timeout_s=3.0))
        after = crash(disk, tmp_path / "crashed")
    for world in (after, disk):
        async with world.open() as bench:
            shards = {one.config.name: one.config.shards for one in await bench.broker.topic_states()}
            assert shards == {"orders": 3, "new": 2}
            assert bench.broker.group_state("orders", "billing").config.timeout_s == 3.0


def test_files_that_are_newer_than_the_log_count_and_go_on_with_it(
    disk: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.broker.topics.create(TopicConfig("orders", shards=3))
            older = crash(disk, tmp_path / "older")
            for number in range(5):
                await bench.broker.topics.create(TopicConfig(f"t{number}"))
                await bench.broker.groups.put(GroupConfig("orders", f"g{number}"))
                await bench.broker.maintain()
        for name in (*FILES, *(f"{name}.bak" for name in FILES)):
            config(older, name).write_bytes(config(disk, name).read_bytes())
        async with older.open() as bench:
            assert len(bench.broker.topics) == 6
            assert len(await bench.broker.group_states()) == 5
            # The log numbers changes anew, and the files with it: both of each kind.
            await bench.broker.topics.create(TopicConfig("new", shards=2))
            await bench.broker.groups.put(GroupConfig("new", "g"))
            crashed = crash(older, tmp_path / "crashed")
        for name in FILES:
            assert document(crashed, name)["position"] <= document(older, name)["position"]
            config(crashed, name).unlink()
        async with crashed.open() as bench:
            assert len(bench.broker.topics) == 7
            assert bench.broker.topic_state("new").config.shards == 2
            assert len(await bench.broker.group_states()) == 6

    with caplog.at_level(logging.ERROR, "towline.broker"):
        asyncio.run(main())
    assert caplog.text.count("topics.json has changes that the log does not have") == 1


def test_a_file_from_long_ago_is_said_to_miss_changes(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.broker.topics.create(TopicConfig("t0"))
        old = config(disk, "topics.json").read_bytes()
        async with disk.open() as bench:
            for number in range(1, 4):
                await bench.broker.topics.create(TopicConfig(f"t{number}"))
                await bench.broker.maintain()
            for _ in range(3):
                await bench.broker.maintain()
        config(disk, "topics.json").write_bytes(old)
        async with disk.open() as bench:
            assert "t0" in bench.broker.topics

    asyncio.run(main())
    assert "topics.json goes up to change 1, and the log has those from 4 on" in caplog.text


async def test_changes_that_come_while_a_file_is_written_are_in_the_next_one(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await topics(bench, 1_000)
        writing = asyncio.ensure_future(bench.broker._catalog.write())
        await asyncio.sleep(0)
        made = 0
        while not writing.done():
            await bench.broker.topics.create(TopicConfig(f"new-{made}", shards=2))
            made += 1
        assert made
        crashed = crash(disk, tmp_path / "crashed")
    assert len(document(crashed, "topics.json")["topics"]) < 1_000 + made
    async with crashed.open() as bench:
        assert len(bench.broker.topics) == 1_000 + made
        assert all(len(bench.broker.topics[f"new-{number}"].lanes) == 2 for number in range(made))


def test_a_full_memory_store_still_takes_topics(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(300):
            await bench.broker.topics.create(TopicConfig(f"t{number}", author="ann" * 20))
        assert len(bench.broker.topics) == 300
        assert not bench.broker._catalog._topics.unsaved

    World("memory", tmp_path).run(scenario, capacity_bytes=20_000)


async def _written_by_the_version_before(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    """The files as a broker of a database leaves them that knows of no changes."""
    store = await open_store(world.settings())
    for name in FILES:
        found = json.loads(await store.load(name) or b"")
        del found["position"]
        change(found)
        await store.save(name, json.dumps(found).encode())
    await store.close()


def test_what_a_broker_of_the_version_before_has_changed_since_is_not_undone(kept: World) -> None:
    def change(found: dict[str, Any]) -> None:
        if "topics" in found:
            found["topics"] = [one for one in found["topics"] if one["name"] != "gone"]
            found["topics"][0]["author"] = "bob"
        else:
            found["groups"][0] |= {"timeout_s": 9.0, "paused": True}

    def check(bench: Bench) -> None:
        assert list(bench.broker.topics) == ["orders"]
        assert bench.broker.topic_state("orders").config.author == "bob"
        found = bench.broker.group_state("orders", "billing").config
        assert (found.timeout_s, found.paused) == (9.0, True)

    async def main() -> None:
        async with kept.open() as bench:
            await bench.broker.topics.create(TopicConfig("orders", author="ann"))
            await bench.broker.topics.create(TopicConfig("gone"))
            await bench.broker.groups.put(GroupConfig("orders", "billing", timeout_s=5.0))
        await _written_by_the_version_before(kept, change)
        async with cut_short(kept) as bench:
            check(bench)
        async with cut_short(kept) as bench:
            check(bench)
            await bench.broker.groups.put(GroupConfig("orders", "other"))
        async with kept.open() as bench:
            check(bench)
            assert [one.config.name for one in await bench.broker.group_states()] == ["billing", "other"]

    asyncio.run(main())


async def test_while_brokers_of_the_version_before_may_come_the_files_have_what_was_answered(kept: World) -> None:
    async with cut_short(kept) as bench:
        setattr(bench.store, "older_may_come", True)  # noqa: B010 - as that of a realm says it
        await bench.broker.topics.create(TopicConfig("orders", shards=3))
        await bench.attach("orders", "billing", timeout_s=7.0)
        files = [json.loads(await bench.store.load(name) or b"") for name in FILES]
        assert [one["shards"] for one in files[0]["topics"]] == [3]
        assert [one["timeout_s"] for one in files[1]["groups"]] == [7.0]


async def test_what_came_and_went_while_a_file_was_written_does_not_come_back(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut_short(disk) as bench:
        catalog, save = bench.broker._catalog, bench.store.save
        await bench.broker.topics.create(TopicConfig("orders"))
        await catalog.write()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(name: str, content: bytes) -> None:
            if name == "topics.json":
                begun.set()
                await go_on.wait()
            await save(name, content)

        monkeypatch.setattr(bench.store, "save", slow)
        # There is no room for the change, so that it is in no stream when the file is written.
        catalog.put_topic(TopicConfig("gone"))
        writing = asyncio.create_task(catalog.write())
        await begun.wait()
        catalog.drop_topic("gone")
        go_on.set()
        await writing
        assert catalog.is_behind
        await catalog.write()
    async with disk.open() as bench:
        assert [one.config.name for one in await bench.broker.topic_states()] == ["orders"]


@pytest.mark.parametrize("written", [False, True])
async def test_a_group_whose_deletion_was_cut_short_does_not_come_back_with_other_settings(
    kept: World, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    async with cut_short(kept) as bench:
        await bench.send("orders", b"x")
        await bench.broker.groups.put(GroupConfig("orders", "billing", timeout_s=7.0, start="earliest"))
        await bench.broker.groups.pause(Pause("orders", "billing", True))

        async def cut(*_: object, **__: object) -> None:
            if written:
                await bench.broker._catalog.write()
            raise NotFound("the power is gone")

        monkeypatch.setattr(bench.store, "trim", cut)
        with pytest.raises(NotFound, match="the power"):
            await bench.broker.groups.delete("orders", "billing")
    async with kept.open() as bench:
        assert not await bench.broker.group_states()
        first, end, _ = bench.store.bounds("pull/orders/billing")
        assert first == end
        member = await bench.attach(start="earliest")
        assert (await bench.pull(member)).bodies == [b"x"]
