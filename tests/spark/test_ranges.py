"""Ranges planned and read from a broker and from its folder: the same rows, live and stopped, whole and damaged."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.broker import open_store
from tests.inside.frame import encode_events
from tests.inside.ground import BrokerSettings
from tests.inside.spark import (
    Catalogued,
    FolderCatalog,
    Lane,
    Position,
    Range,
    ReadOptions,
    ReadSource,
    Selection,
    Wants,
    Where,
    check_chosen,
    decode_ranges,
    encode_ranges,
    open_place,
    parse_position,
    plan,
    read_batches,
)
from tests.inside.store import Append
from tests.spark.jobs.history import Writer
from towline.errors import BadRequest, NewerFormat, NotFound, StoreDamaged, TowlineError
from towline.model import Durability, GroupConfig, RetryPolicy

COLUMNS = ["topic", "lane", "seq", "key", "body"]


def doors(broker: BrokerProcess, tmp_path: Path) -> list[ReadSource]:
    return [ReadSource(url=f"towline://127.0.0.1:{broker.port}"), ReadSource(path=str(tmp_path / "data"))]


def read(door: ReadSource, selection: Selection, wants: Wants = Wants(COLUMNS), **bounds: Any) -> list[dict[str, Any]]:  # noqa: B008
    rows: list[dict[str, Any]] = []
    with open_place(door) as place:
        ranges = decode_ranges(encode_ranges(plan(place, selection, **bounds)))
        for each in ranges:
            for batch in read_batches(place, each, wants):
                rows += batch.to_pylist()
    return rows


def read_and_list(door: ReadSource, selection: Selection) -> None:
    read(door, selection, Wants(skip_damaged=True))
    with open_place(door) as place:
        place.catalogue()


def fill(mq: towline.Client, topic: str, count: int, *, size: int = 100) -> None:
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        mq.send_many(topic, [b"%0*d" % (size, n) for n in numbers], keys=[f"k{n % 10}" for n in numbers])


def test_a_broker_and_its_folder_give_the_same_rows(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    fill(mq, "orders", 30_000)  # more than three segments, and one that is being written
    fill(mq, "stock", 700)
    for n in range(300):
        mq.send("orders", b"%d" % n, priority="high")
    over_network, from_folder = (read(door, Selection.parse("*"), rows=7_000) for door in doors(broker, tmp_path))
    assert len(over_network) == 31_000
    assert from_folder == over_network
    assert [row["seq"] for row in over_network if row["lane"] == "high"] == list(range(300))
    assert [int(row["body"]) for row in over_network if row["topic"] == "orders" and row["lane"] == "middle"] == list(
        range(30_000)
    )
    broker.stop()
    broker.wait()
    assert read(ReadSource(path=str(tmp_path / "data")), Selection.parse("*"), rows=7_000) == over_network


def test_a_plan_cuts_lanes_into_ranges(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    fill(mq, "orders", 10_000)
    for door in doors(broker, tmp_path):
        with open_place(door) as place:
            ranges = plan(place, Selection.parse("orders"), rows=3_000)
            assert [(each.lane, each.first, each.end) for each in ranges] == [
                ("middle", 0, 2_500),
                ("middle", 2_500, 5_000),
                ("middle", 5_000, 7_500),
                ("middle", 7_500, 10_000),
            ]
            ranges = plan(place, Selection.parse("orders"), Position("seq", 9_990), Position("seq", 20_000))
            assert [(each.first, each.end) for each in ranges] == [(9_990, 10_000)]
            lanes = parse_position('{"orders/middle": 4000}', "from")
            assert [each.first for each in plan(place, Selection.parse("orders"), lanes)] == [4_000]


def test_what_is_named_and_not_there_is_an_error(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    """It would choose nothing, or everything."""
    fill(mq, "orders", 100)
    mq.create_topic("serial", shards=4)
    mq.send("serial", b"x", key="k")
    with mq.consumer("orders", group="billing", start="earliest") as consumer:
        consumer.pull(wait=60).ack()
    wrong = [
        ({"topic": "orders", "lane": "3"}, "option lane: there is no lane 3; there are: high, middle, low"),
        ({"topic": "serial", "lane": "high"}, "option lane: there is no lane high; there are: 0 to 3"),
        ({"topic": "serial,orders", "lane": "high,4"}, "there is no lane 4; there are: high, middle, low, 0 to 3"),
        ({"topic": "others.*"}, "option topic: there is no topic whose name begins with others."),
        ({"topic": "orders", "group": "biling"}, "no group biling among what is read; there are: billing"),
        ({"topic": "orders", "kind": "dead", "group": "biling"}, "there is no group biling"),
        ({"topic": "orders", "kind": "events", "group": "billing,b"}, "there is no group b among"),
        ({"topic": "orders", "from": '{"orders/midle": 99}'}, "option from: there is no lane orders/midle among"),
        ({"topic": "orders", "to": '{"stock/middle": 99}'}, "option to: there is no lane stock/middle among"),
        ({"topic": "orders", "from": '{"orders/middle@b": 9}'}, "there is no lane orders/middle@b among"),
        ({"topic": "orders", "from": '{"orders/middle": 101}'}, "orders/middle ends at 100, which is before 101"),
        ({"topic": "orders", "from": "1700000000000"}, "no lane has come so far; orders/middle ends at 100"),
    ]
    right = [
        {"topic": "orders", "lane": "high"},
        {"topic": "serial", "lane": "3"},
        {"topic": "orders", "kind": "dead", "group": "billing"},
        {"topic": "orders", "group": "billing"},
        {"topic": "orders", "from": '{"orders/middle": 100, "orders/low": 0}', "to": '{"orders/high": 9}'},
        {"topic": "*,order*", "from": "100"},
    ]
    for door in doors(broker, tmp_path):
        with open_place(door) as place:
            where = {"url": door.url, "path": door.path}
            for options, message in wrong:
                given = ReadOptions.parse(where | options, batch=True)
                with pytest.raises(TowlineError) as caught:
                    check_chosen(given.selection, given.begin, given.stop, place)
                assert message in str(caught.value)
            for options in right:
                given = ReadOptions.parse(where | options, batch=True)
                check_chosen(given.selection, given.begin, given.stop, place)
            given = ReadOptions.parse(where | {"topic": "others.*", "lane": "high"}, streaming=True)
            check_chosen(given.selection, given.begin, given.stop, place, streaming=True)


class Imagined:
    """A place with lanes of any size."""

    def __init__(self, *lanes: tuple[int, int]) -> None:
        self._lanes = [
            Lane(f"lane/orders/{number}", "orders", str(number), "", 0, rows, rows * mean_bytes)
            for number, (rows, mean_bytes) in enumerate(lanes)
        ]

    def lanes(self, selection: Selection) -> list[Lane]:
        return [lane for lane in self._lanes if selection.wants(lane.stream)]

    def locate(self, lane: Lane, time_us: int) -> int:
        raise NotImplementedError

    def where(self, lane: Lane, seq: int) -> Where:
        return Where(0, seq)

    def catalogue(self) -> dict[str, Catalogued]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("cores", "lanes", "sizes"),
    [
        (2, [(500, 100)], [500]),
        (2, [(3_000_000, 100)], [1_500_000] * 2),
        (2, [(10_000_000, 100)], [5_000_000] * 2),
        (2, [(11_000_000, 100)], [2_750_000] * 4),
        (64, [(3_000_000, 100)], [1_000_000] * 3),
        (4, [(8_000_000, 100), (100, 100)], [*[2_000_000] * 4, 100]),
        (2, [(10_000, 1 << 20)], [1_000] * 10),  # a megabyte each: by their size
        (2, [(100, 2 << 30)], [1] * 100),
        (2, [(0, 0)], []),
    ],
)
def test_a_plan_suits_cores_and_sizes(cores: int, lanes: list[tuple[int, int]], sizes: list[int]) -> None:
    ranges = plan(Imagined(*lanes), Selection.parse("orders"), cores=cores)
    found = [each.rows for each in ranges]
    assert len(found) == len(sizes)
    assert sum(found) == sum(sizes)
    assert all(abs(one - other) <= 30 for one, other in zip(found, sizes, strict=True)), found


def test_times_bound_a_plan(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    fill(mq, "orders", 1_000)
    border_us = mq.message("orders/middle/999").appended_at_us + 1
    while time.time() * 1e6 < border_us + 1_000:
        pass
    fill(mq, "orders", 500)
    for door in doors(broker, tmp_path):
        border = Position("time", border_us)
        assert len(read(door, Selection.parse("orders"), stop=border)) == 1_000
        assert [row["seq"] for row in read(door, Selection.parse("orders"), begin=border)] == list(range(1_000, 1_500))


def test_messages_are_found_by_key(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    fill(mq, "orders", 3_000)
    mq.send("orders", b"needle", key="one-of-a-kind")
    for door in doors(broker, tmp_path):
        found = read(door, Selection.parse("orders"), Wants(["seq", "body"], key="one-of-a-kind"))
        assert found == [{"seq": 3_000, "body": b"needle"}]
        assert len(read(door, Selection.parse("orders"), Wants(["seq"], key="k3"))) == 300


def test_topics_are_chosen_by_name_list_and_prefix(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    for topic in ("orders", "orders.eu", "orders.us", "stock"):
        mq.send(topic, topic.encode())
    mq.create_topic("empty")
    for door in doors(broker, tmp_path):

        def topics(text: str, door: ReadSource = door) -> set[str]:
            return {row["topic"] for row in read(door, Selection.parse(text))}

        assert topics("orders") == {"orders"}
        assert topics("orders,stock") == {"orders", "stock"}
        assert topics("orders.*") == {"orders.eu", "orders.us"}
        assert topics("*") == {"orders", "orders.eu", "orders.us", "stock"}
        assert topics("empty") == set()
        with pytest.raises(NotFound, match="no topic missing"):
            topics("orders,missing")


def test_trimmed_messages_are_neither_planned_nor_missed(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders", 1_000)
    with open_place(doors(broker, tmp_path)[1]) as place:
        before = plan(place, Selection.parse("orders"))
        mq.purge("orders")
        fill(mq, "orders", 10)
        for door in doors(broker, tmp_path):
            assert [row["seq"] for row in read(door, Selection.parse("orders"))] == list(range(1_000, 1_010))
        assert [(each.first, each.end) for each in plan(place, Selection.parse("orders"))] == [(1_000, 1_010)]
    with open_place(doors(broker, tmp_path)[0]) as place, pytest.raises(StoreDamaged, match=r"0 to 999.*not kept"):
        list(read_batches(place, before[0]))
    with open_place(doors(broker, tmp_path)[0]) as place:
        assert list(read_batches(place, before[0], Wants(skip_gone=True))) == []


def test_damage_is_an_error_unless_it_is_to_be_skipped(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders", 20_000)
    mq.close()
    log = sorted((tmp_path / "data" / "log").glob("*.log"))[0]
    with log.open("r+b") as file:
        file.seek(300_000)
        file.write(b"damaged!")
    for door in doors(broker, tmp_path):
        with pytest.raises(StoreDamaged, match=r"lane/orders/middle: records \d+ to \d+ cannot be read.*skipDamaged"):
            read(door, Selection.parse("orders"))
        skipped: dict[str, int] = {}
        with open_place(door) as place:
            wants = Wants(["seq"], skip_damaged=True)
            ranges = plan(place, Selection.parse("orders"))
            batches = [batch for each in ranges for batch in read_batches(place, each, wants, skipped.__setitem__)]
        assert sum(skipped.values()) == 500
        assert pa.Table.from_batches(batches).num_rows == 19_500


def test_events_and_dead_letters_are_decoded(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    mq.send_many("orders", [b"good", b"bad"], keys=["k1", "k2"])
    with mq.consumer("orders", group="billing", name="c1") as consumer:
        batch = consumer.pull(max_messages=10, wait=60)
        batch[0].ack()
        batch[1].dead("no such customer")
        deadline = time.monotonic() + 10
        while not mq.group("orders", "billing").dead and time.monotonic() < deadline:
            time.sleep(0.02)
    for door in doors(broker, tmp_path):
        events = read(door, Selection.parse("orders", "events"), Wants())
        names = [row["event"] for row in events]
        assert names[:3] == ["started"] * 3
        pulled = next(row for row in events if row["event"] == "pulled")
        assert (pulled["lane"], pulled["first"], pulled["count"], pulled["attempt"]) == ("middle", 0, 2, 1)
        assert (pulled["consumer"], pulled["group"], pulled["topic"]) == ("c1", "billing", "orders")
        assert {"acked", "gaveup", "buried"} <= set(names)
        assert next(row for row in events if row["event"] == "gaveup")["reason"] == "no such customer"
        (dead,) = read(door, Selection.parse("orders", "dead", groups="billing"), Wants())
        assert (dead["origin"], dead["body"], dead["key"]) == ("orders/middle/1", b"bad", "k2")
        assert (dead["attempt"], dead["reason"], dead["group"]) == (1, "no such customer", "billing")
        assert abs(dead["died_at"].timestamp() - time.time()) < 60


@pytest.mark.parametrize("stream", ["pull/orders/billing", "delay/marks", "catalog/groups"])
def test_a_record_of_a_later_version_is_not_taken_for_damage(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path, stream: str
) -> None:
    mq.send("orders", b"x", delay=3600.0)
    mq.put_group(GroupConfig("orders", "billing"))
    broker.stop()
    assert broker.wait() == 0, broker.errors
    path = tmp_path / "data"

    async def append() -> None:
        store = await open_store(BrokerSettings(store=f"file:{path}"))
        await store.append([Append(stream, encode_events([b"\x92\x63\x01"]), 1)], Durability.FSYNC).done
        await store.close()

    asyncio.run(append())
    (path / "config" / "format.json").write_text('{"format": 2, "towline": "9.8.7"}')
    kind = {"pull": "events", "delay": "schedule", "catalog": "messages"}[stream.partition("/")[0]]
    with pytest.raises(NewerFormat, match=r"is not understood .*: use Towline 9\.8\.7 or newer$"):
        read_and_list(ReadSource(path=str(path)), Selection.parse("*", kind))


def test_the_schedule_is_read_from_a_broker_and_from_its_folder(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    begun = time.time()
    for n in range(5):
        mq.send("orders", b"x" * n, key=f"k{n}", delay=1_000 - n, priority="low")
    mq.send_many("other", [b"y"] * 1_500, delays=[900 + n for n in range(1_500)])  # in slots of several levels
    [gone] = [one.id for one in mq.delayed("orders") if one.key == "k3"]
    assert mq.cancel("orders", gone) == 1
    [moved] = [one.id for one in mq.delayed("orders") if one.key == "k0"]
    mq.reschedule("orders", moved, delay=5_000)
    mq.send("orders", b"soon", key="soon", delay=0.001)
    while not mq.topic("orders").lanes[1].end:
        time.sleep(0.01)
    for door in doors(broker, tmp_path):
        rows = read(door, Selection.parse("orders", "schedule"), Wants(["key", "lane", "deliver_at", "id"]))
        rows.sort(key=lambda row: row["deliver_at"])
        assert [(row["key"], row["lane"]) for row in rows] == [(f"k{n}", "low") for n in (4, 2, 1, 0)]
        assert rows[0]["deliver_at"].timestamp() >= begun + 996
        assert rows[-1]["id"] == moved
        assert rows[-1]["deliver_at"].timestamp() >= begun + 5_000
        assert len(read(door, Selection.parse("*", "schedule"), Wants(key="k2"))) == 1
        assert len(read(door, Selection.parse("other", "schedule"), Wants())) == 1_500
        with pytest.raises(NotFound, match="there is no topic nothing"):
            read(door, Selection.parse("nothing", "schedule"), Wants())


def test_a_stopped_brokers_schedule_is_read(tmp_path: Path) -> None:
    with BrokerProcess(store=f"file:{tmp_path / 'data'}") as broker:
        with towline.connect(f"towline://127.0.0.1:{broker.port}") as mq:
            mq.send_many("orders", [b"%d" % n for n in range(100)], delays=[1_000 + n * n for n in range(100)])
        broker.stop()
        assert broker.wait() == 0
    rows = read(ReadSource(path=str(tmp_path / "data")), Selection.parse("orders", "schedule"), Wants())
    assert len(rows) == len({row["id"] for row in rows}) == 100


def test_attempts_are_those_of_a_group(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    mq.send_many("orders", [b"%d" % n for n in range(30)])
    mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(5, (0.001,))))
    tried = Counter[int]()
    with mq.consumer("orders", group="billing", start="earliest") as consumer:
        while tried[7] < 3 or max(tried) < 15:
            for message in consumer.pull(max_messages=10 if max(tried, default=0) < 15 else 1, wait=1):
                tried[message.seq] = message.attempt
                if message.seq == 7:
                    message.nack("not yet", delay=0.001)
                else:
                    message.ack()
    for door in doors(broker, tmp_path):
        rows = read(door, Selection.parse("orders"), Wants(["seq", "attempt"], group="billing"))
        assert {row["seq"]: row["attempt"] for row in rows} == {n: tried[n] for n in range(30)}
        assert tried[7] >= 3
        assert {row["attempt"] for row in read(door, Selection.parse("orders"), Wants(["attempt"]))} == {None}
        assert {row["attempt"] for row in read(door, Selection.parse("orders"), Wants(group="nobody"))} == {0}


def test_what_was_sent_again_to_a_group_is_read(broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    mq.send("orders", b"bad", key="k", priority="high")
    with mq.consumer("orders", group="billing", start="earliest") as consumer:
        [message] = consumer.pull(max_messages=1, wait=60)
        message.dead("no")
    while not mq.group("orders", "billing").dead:
        time.sleep(0.01)
    mq.resend("orders", "billing", [0])
    for door in doors(broker, tmp_path):
        [row] = read(door, Selection.parse("orders", "own"), Wants())
        assert (row["group"], row["lane"], row["body"], row["origin"]) == ("billing", "high", b"bad", "orders/high/0")


def test_ranges_travel_as_json() -> None:
    ranges = [Range("lane/a/middle", "a", "middle", "", 5, 1 << 60, "b1", 3, 4096)]
    assert decode_ranges(encode_ranges(ranges)) == ranges


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position("earliest")),
        ("17", Position("seq", 17)),
        ("1970-01-01T00:00:02", Position("time", 2_000_000)),
        ("1970-01-01T01:00:02.5+01:00", Position("time", 2_500_000)),
        ('{"b": 2, "a": 1}', Position("lanes", 0, (("a", 1), ("b", 2)))),
    ],
)
def test_positions_are_understood(text: str, expected: Position) -> None:
    assert parse_position(text, "from") == expected


@pytest.mark.parametrize("text", ["yesterday", "-1", "{1}", '{"a": "x"}'])
def test_wrong_positions_are_named(text: str) -> None:
    with pytest.raises(BadRequest, match="option from"):
        parse_position(text, "from")


def test_a_folder_that_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not the folder of a log store"):
        read(ReadSource(path=str(tmp_path)), Selection.parse("orders"))


def test_the_folder_of_a_killed_broker_tells_topics_and_groups_that_its_files_do_not_have(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    mq.create_topic("serial", shards=4)
    mq.create_topic("gone", shards=2)
    mq.put_group(GroupConfig("serial", "billing"))
    mq.put_group(GroupConfig("serial", "left"))
    mq.send("orders", b"x")
    mq.delete_group("serial", "left")
    mq.delete_topic("gone")
    broker.process.kill()
    broker.process.wait()
    for name in ("topics.json", "subscriptionGroup.json"):
        (tmp_path / "data" / "config" / name).unlink(missing_ok=True)
    with open_place(ReadSource(path=str(tmp_path / "data"))) as place:
        assert place.catalogue() == {
            "serial": Catalogued(4, frozenset({"billing"})),
            "orders": Catalogued(0, frozenset()),
        }
        assert [place.shards(Range(f"lane/{topic}/0", topic, "0", "", 0, 1)) for topic in ("serial", "orders")] == [
            4,
            0,
        ]


def test_a_topic_that_was_made_anew_since_its_file_was_written_has_the_shards_that_the_log_tells(
    broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    mq.create_topic("serial", shards=2)
    mq.delete_topic("serial")
    mq.create_topic("serial", shards=4)
    broker.process.kill()
    broker.process.wait()
    written = {"position": 1, "topics": [{"name": "serial", "shards": 2}]}
    (tmp_path / "data" / "config" / "topics.json").write_text(json.dumps(written))
    with open_place(ReadSource(path=str(tmp_path / "data"))) as place:
        assert place.shards(Range("pull/serial/billing", "serial", "", "billing", 0, 1)) == 4


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_where_a_file_of_topics_is_damaged_the_one_before_and_the_log_tell(tmp_path: Path, damage: str) -> None:
    writer, config = Writer(tmp_path), tmp_path / "config"
    writer.send("serial", "0", [b"x"])
    writer.write()
    config.mkdir(exist_ok=True)
    (config / "topics.json.bak").write_text('{"position": 7, "topics": [{"name": "serial", "shards": 4}]}')
    if damage == "damaged":
        (config / "topics.json").write_text("{")
    assert FolderCatalog(tmp_path).topics() == {"serial": 4}
