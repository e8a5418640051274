"""Brokers with their own disks that have a topic or group with different settings: it is said, and can be mended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import towline
from tests.client.cluster.test_new_topics import all_at_home, asks_first, found_at, in_order, made_at, two
from tests.client.either import do, entered
from tests.system.cluster.conftest import ROOT, Brokers, eventually
from towline.errors import Partly, WrongShard

__all__ = ["two"]

KEYS = [f"{number % 20}k" for number in range(60)]
"""Of all shards, so that each broker is the home of some."""
BODIES = [b"%d" % number for number in range(60)]


def run_cli(brokers: Brokers, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "towline", *arguments, "-u", brokers.url, "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def checked(brokers: Brokers, topic: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What `towline cluster check` finds of a topic: values by group and setting."""
    _, found, _ = run_cli(brokers, "cluster", "check")
    return {(one["group"], one["setting"]): one["values"] for one in found if one["topic"] == topic}


@pytest.mark.parametrize("shards", [(64, 16), (0, 16)])
async def test_a_topic_with_different_shards_is_refused_with_the_reason_and_can_be_mended(
    connect: Any, two: Brokers, topic: str, shards: tuple[int, int]
) -> None:
    for number in range(2):
        made_at(two, number, topic, shards[number])
    named = [f"b{number} has {f'{count} shards' if count else 'it shared'}" for number, count in enumerate(shards)]
    async with entered(connect(two.url, timeout=60)) as mq:
        asks_first(mq, two, 1)
        with pytest.raises((WrongShard, Partly), match=f"do not agree on topic {topic}: {', '.join(named)}. .*check"):
            await do(mq.send_many(topic, BODIES, keys=KEYS))
        async with entered(mq.producer()) as producer:
            for body, key in zip(BODIES, KEYS, strict=True):
                await do(producer.send(topic, body, key=key))
            with pytest.raises(WrongShard, match=f"do not agree on topic {topic}: {', '.join(named)}"):
                await do(producer.flush())
        assert checked(two, topic) == {("", "shards"): {"b0": shards[0], "b1": shards[1]}}
        wrong = 0 if not shards[0] else 1
        # Whatever was stored by now is dropped; at the broker that is right as well, for the sake of counting.
        await do(mq.purge(topic))
        code, _, said = run_cli(two, "topic", "rm", topic, "--broker", f"b{wrong}", "--yes")
        assert code == 0, said
        assert found_at(two, wrong, topic) is None
        await do(mq.send_many(topic, BODIES, keys=KEYS))
        all_at_home(mq, two, topic)
        await in_order(mq, topic, len(BODIES))
    assert checked(two, topic) == {}


def test_settings_that_a_broker_missed_while_it_was_away_are_shown(cluster_of: Callable[..., Brokers]) -> None:
    brokers = cluster_of(2).start().wait_for()
    with towline.connect(brokers.url, timeout=20) as mq:
        mq.create_topic("orders", retention_s=100.0)
        mq.put_group(towline.GroupConfig("orders", "g"))
        assert run_cli(brokers, "cluster", "check")[:2] == (0, [])
        brokers.kill(1)
        with pytest.raises(Partly):
            mq.pause("orders", "g", "resting")
        with pytest.raises(Partly):
            mq.edit_topic("orders", retention_s=200.0)
        eventually(lambda: "is silent" in run_cli(brokers, "cluster", "check")[2])
        brokers.start(1)
        brokers.wait_for()
        missed = {
            ("", "retention_s"): {"b0": 200.0, "b1": 100.0},
            ("g", "paused"): {"b0": True, "b1": False},
            ("g", "pause_reason"): {"b0": "resting", "b1": ""},
        }
        eventually(partial(checked, brokers, "orders"), holds=lambda found: found == missed)
        assert run_cli(brokers, "cluster", "check")[0] == 1
        mq.pause("orders", "g", "resting")
        mq.edit_topic("orders", retention_s=200.0)
        assert run_cli(brokers, "cluster", "check")[:2] == (0, [])
