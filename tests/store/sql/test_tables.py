"""What people see with plain SQL: messages, progress, status, dead letters, the schedule."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, NACK, World
from tests.inside.frame import encode
from tests.inside.protocol import PutTopic
from tests.inside.sql import open_sql, problems
from tests.store.sql.server import mariadb, sql_settings
from towline.errors import NewerFormat
from towline.model import GroupConfig, TopicConfig


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("sql", tmp_path)


def ask(world: World, text: str) -> list[list[str]]:
    return mariadb().sql(text, world.store_url.rpartition("/")[2])


def test_a_message_is_a_row(world: World) -> None:
    async def main() -> None:
        async with world.open() as bench:
            frame = encode(
                [b"it's \\ a body", b"second"],
                keys=["order-4423", None],
                headers=[{"a": "it's"}, None],
                token=b"appid-340101",
            )
            source = bytes([192, 168, 0, 7])
            await bench.broker.send([("orders", 0, frame)], source=source, token=b"appid-340101")
            read = await bench.store.read("lane/orders/high", 0, 10, 1 << 20)
            assert bytes(read.chunks[0].frame) == frame

    asyncio.run(main())
    rows = ask(
        world,
        "SELECT id, body, INET6_NTOA(source_ip), token, ref_key, headers, appended_at > '2020-01-01' "
        "FROM msg_p_orders_high ORDER BY id",
    )
    assert rows == [
        ["0", "it's \\ a body", "192.168.0.7", "appid-340101", "order-4423", '{"a":"it\'s"}', "1"],
        ["1", "second", "192.168.0.7", "appid-340101", "NULL", "NULL", "1"],
    ]
    (index,) = ask(world, "SHOW INDEX FROM msg_p_orders_high WHERE Key_name = 'ref_key'")
    assert index[4] == "ref_key"
    assert ask(world, "SELECT topic, shards FROM mq_topic") == [["orders", "0"]]


async def test_progress_status_and_dead_letters_can_be_read(world: World) -> None:
    async with world.open() as bench:
        await bench.send("orders", *(b"%d" % index for index in range(7)), lane=1)
        member = await bench.attach(max_attempts=2, delays_s=(3600.0,))
        first = await bench.pull(member, 2)
        await bench.act(member, ACK, first)
        second = await bench.pull(member, 1)
        await bench.act(member, NACK, second, reason="no stock")
        third = await bench.pull(member, 1)
        await bench.act(member, 2, third, reason="never")  # straight to the dead letters
        await bench.pull(member, 1)
        back = await bench.pull(member, 1)
        await bench.act(member, GIVE_BACK, back)
        while not bench.store.bounds("dead/orders/billing").end:
            await asyncio.sleep(0.01)
        await bench.broker.maintain()

        status = ask(world, "SELECT id, status FROM msg_v_orders WHERE group_id = 'billing' ORDER BY id")
        assert [one[1] for one in status] == ["SUCCESS", "SUCCESS", "FAIL", "DEAD", "RUNNING", "NEW", "NEW"]
        (given_back,) = ask(world, "SELECT status, attempt FROM msg_v_orders WHERE id = 5")
        assert given_back == ["NEW", "1"]
        offsets = ask(world, "SELECT priority, `offset` FROM msg_c_orders WHERE group_id = 'billing' AND `offset` > 0")
        assert offsets == [["middle", "6"]]
        dead = ask(world, "SELECT body, group_id, origin, reason FROM mq_dead_letter")
        assert dead == [["3", "billing", "orders/middle/3", "never"]]
        events = ask(world, "SELECT events FROM mq_pull_log")
        assert any("no stock" in one[0] for one in events)


async def test_topics_business_lines_and_groups_can_be_read(world: World) -> None:
    topics = (
        "SELECT t.topic, b.name, t.author, t.alarm_emails FROM mq_topic t LEFT JOIN mq_biz b ON b.id = t.biz_id "
        "ORDER BY t.topic"
    )

    async with world.open() as bench:
        mine = TopicConfig("orders", business_line="shop", author="mia", alarm_emails=("mia@example.com",))
        await bench.broker.topics.create(mine)
        await bench.broker.topics.create(TopicConfig("stock"))
        await bench.broker.groups.put(GroupConfig("orders", "billing"))
        await bench.broker.maintain()
        shown = ask(world, topics)
        assert [row[:3] for row in shown] == [["orders", "shop", "mia"], ["stock", "NULL", "NULL"]]
        assert "mia@example.com" in shown[0][3]
        assert ask(world, "SELECT topic, group_id FROM mq_group") == [["orders", "billing"]]

        await bench.broker.put_topic(PutTopic(TopicConfig("orders", author="leo")))
        await bench.broker.maintain()
        assert ask(world, topics)[0][:3] == ["orders", "NULL", "leo"]


async def test_the_order_of_business_lines_can_be_read(world: World) -> None:
    places = "SELECT name, position FROM mq_biz ORDER BY position, name"
    async with world.open(business_lines="shop, bank") as bench:
        for name, line in (("orders", "shop"), ("stock", "attic"), ("money", "bank")):
            await bench.broker.topics.create(TopicConfig(name, business_line=line))
        await bench.broker.maintain()
        assert ask(world, places) == [["attic", "0"], ["shop", "1"], ["bank", "2"]]
    async with world.open(business_lines="bank") as bench:
        await bench.broker.maintain()
        assert ask(world, places) == [["attic", "0"], ["shop", "0"], ["bank", "1"]]


async def test_the_schedule_can_be_read_by_time(world: World) -> None:
    async with world.open() as bench:
        at_us = bench.broker.clock.now_us() + 3_600_000_000
        await bench.send("orders", b"later", deliver_at_us=[at_us])
        rows = ask(world, "SELECT due_us, parcels FROM mq_schedule WHERE due_us > 0 ORDER BY due_us LIMIT 10")
        assert rows[0][0] == str(at_us)
        assert '"topic":"orders"' in rows[0][1]


async def test_a_row_that_somebody_changed_is_found(world: World) -> None:
    async with world.open() as bench:
        await bench.send("orders", b"one", b"two")
        await bench.send("orders", b"three")
    ask(world, "UPDATE msg_p_orders_middle SET body = 'TWO' WHERE id = 1")
    async with world.open() as bench:
        read = await bench.store.read("lane/orders/middle", 0, 10, 1 << 20)
        assert [(lost.first, lost.count) for lost in read.lost] == [(0, 2)]
        assert [chunk.first for chunk in read.chunks] == [2]


async def test_rows_that_retention_let_go_of_are_deleted(world: World) -> None:
    async with world.open() as bench:
        for index in range(10):
            await bench.send("orders", *[b"%d" % index] * 10)
        await bench.store.trim("lane/orders/middle", 55)
        async with asyncio.timeout(60):
            while ask(world, "SELECT COUNT(*), MIN(id) FROM msg_p_orders_middle") != [["50", "50"]]:
                await asyncio.sleep(0.05)
        read = await bench.store.read("lane/orders/middle", 0, 3, 1 << 20)
        assert read.chunks[0].first == 55


async def test_tables_of_a_newer_version_are_refused(url: str) -> None:
    store = await open_sql(sql_settings(url), owner="test")
    await store.close()
    name = url.rpartition("/")[2]
    mariadb().sql("INSERT INTO mq_schema VALUES (99)", name)
    for realm, version in enumerate(["9.9.0", "9.10.0", "9.10.0.dev1"], 1):
        note = f"""({realm}, 'format.json', '{{"format": 99, "towline": "{version}"}}', NOW())"""
        mariadb().sql(
            f"REPLACE INTO mq_document (realm_id, name, body, saved_at) VALUES {note}", url.rpartition("/")[2]
        )
    with pytest.raises(NewerFormat, match=r"the database has format 99, which Towline 9\.10\.0 has written"):
        await open_sql(sql_settings(url), owner="test")


def test_settings_of_the_server_that_break_promises_are_found() -> None:
    good = {"innodb_flush_log_at_trx_commit": "1", "max_allowed_packet": str(64 << 20)}
    assert problems(good, 16 << 20) == []
    said = problems(good | {"innodb_flush_log_at_trx_commit": "2"})
    assert "ACKNOWLEDGED MESSAGES CAN BE LOST" in said[0]
    assert "wsrep_sync_wait is 0" in problems(good | {"wsrep_on": "ON", "wsrep_sync_wait": "0"})[0]
    assert problems(good | {"wsrep_on": "ON", "wsrep_sync_wait": "7"}) == []
    assert "max_allowed_packet" in problems(good | {"max_allowed_packet": "1048576"}, 16 << 20)[0]
