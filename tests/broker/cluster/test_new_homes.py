"""A broker joins, and becomes the home of shards of which others have a backlog: nothing overtakes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import towline
from tests.eventually import DEADLINE_S
from tests.system.cluster.conftest import Brokers, eventually

KEYS = [f"key-{number}" for number in range(20)]
EACH = 5


def _consume(mq: towline.Client, group: str, count: int) -> dict[str, list[int]]:
    """So many messages, by key in the order in which they come."""
    got: defaultdict[str, list[int]] = defaultdict(list)
    with mq.consumer("orders", group, max_messages=7) as consumer:
        while count > 0:
            batch = consumer.pull(max_messages=7, wait=DEADLINE_S)
            assert batch, f"{count} messages do not come"
            for message in batch:
                assert message.key is not None
                got[message.key].append(int(message.body))
            count -= len(batch)
            batch.ack()
    return got


def _shards_at(mq: towline.Client, broker: str) -> int:
    """Shards of which a broker has messages."""
    return sum(lane.end > 0 for lane in mq.topic("orders", broker=broker).lanes)


def test_a_joining_broker_waits_with_its_shards_for_every_groups_backlog(cluster_of: Callable[..., Brokers]) -> None:
    brokers = cluster_of(3).start(0, 1).wait_for(2)
    with towline.connect(brokers.url) as mq, mq.producer() as producer:
        mq.create_topic("orders", shards=16)
        for group in ("first", "second"):
            mq.put_group(towline.GroupConfig("orders", group, start="earliest"))
        for number in range(EACH):
            for key in KEYS:
                producer.send("orders", b"%d" % number, key=key)
        producer.flush()

        brokers.start(2)
        brokers.wait_for(3)
        eventually(lambda: len(mq.separate_brokers()) == 3)
        for number in range(EACH, 2 * EACH):
            for key in KEYS:
                producer.send("orders", b"%d" % number, key=key)
            producer.flush()
        eventually(lambda: _shards_at(mq, "b2") > 0)

        everything = {key: list(range(2 * EACH)) for key in KEYS}
        assert _consume(mq, "first", 2 * EACH * len(KEYS)) == everything
        # What the first group has consumed, the second has not.
        brokers.kill(0)
        with mq.consumer("orders", "second", name="c") as consumer:
            batch = consumer.pull(max_messages=1, wait=DEADLINE_S)
            assert [int(message.body) for message in batch] == [0]
        brokers.start(0)
        assert _consume(mq, "second", 2 * EACH * len(KEYS)) == everything
        mq.put_group(towline.GroupConfig("orders", "third", start="earliest"))
        assert _consume(mq, "third", 2 * EACH * len(KEYS)) == everything, "a group that is made later, too"
