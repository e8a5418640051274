"""`kill -9` in the moment in which a topic or a group was confirmed: it is there, with all of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.store.sql.server import new_database
from towline.model import GroupConfig, RetryPolicy

ROUNDS = 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["log", "sql"])
def test_what_was_confirmed_is_there_after_kill_9(tmp_path: Path, kind: str) -> None:
    store = new_database() if kind == "sql" else f"file:{tmp_path / 'data'}"
    policy = RetryPolicy(7, (1.5, 2.5))
    with BrokerProcess(store, segment_bytes=1 << 20) as broker:
        for number in range(ROUNDS):
            with towline.connect(broker.url) as mq:
                mq.create_topic(f"ordered-{number}", shards=3 + number)
                mq.put_group(GroupConfig(f"ordered-{number}", "audit", retry=policy, timeout_s=60.0 + number))
            broker.kill()
            broker.start()
            with towline.connect(broker.url) as mq:
                assert mq.topic(f"ordered-{number}").config.shards == 3 + number
                found = mq.group(f"ordered-{number}", "audit").config
                assert (found.retry, found.timeout_s) == (policy, 60.0 + number)
                mq.delete_group(f"ordered-{number}", "audit")
                for name in "abc":
                    mq.send(f"many-{number}.{name}", b"one")
                consumer = mq.consumer(f"many-{number}.*", group="all", retry=policy, lease_timeout=5.0)
                consumer.__enter__()
                broker.kill()
            broker.start()
            with towline.connect(broker.url) as mq:
                groups = mq.groups(f"many-{number}.*")
                assert [group.config.topic for group in groups] == [f"many-{number}.{name}" for name in "abc"]
                assert {(group.config.retry, group.config.timeout_s) for group in groups} == {(policy, 5.0)}
                assert not mq.groups(f"ordered-{number}")
