"""Who is there: brokers that find each other, and the clients they know."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.access.declared import access_file
from tests.system.cluster.conftest import ROOT, Brokers, eventually
from towline.errors import NotFound


def _cli(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "towline", *arguments, "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _states(url: str) -> list[tuple[str, str]]:
    return [(one["name"], one["state"]) for one in _cli("cluster", "ls", "-u", url)]


def _consumers(url: str) -> list[tuple[str, str, int, int]]:
    shown = _cli("clients", "orders", "-u", url)
    return sorted((one["broker"], one["consumer"], one["rank"], one["total"]) for one in shown)


def test_the_command_line_shows_brokers_and_clients(brokers: Brokers) -> None:
    url = f"towline://{brokers.address(0)}"
    with (
        towline.connect(brokers.url) as mq,
        mq.consumer("orders", "g", name="b") as later,
        mq.consumer("orders", "g", name="a") as first,
    ):
        # A consumer attaches to one broker after the other; one that stood still is silent until it beats again.
        eventually(lambda: (first.standing(), later.standing()) == ((0, 2), (1, 2)))
        eventually(lambda: sorted(_states(url)) == [("b0", "alive"), ("b1", "alive"), ("b2", "alive")])
        everyone = [(f"b{n}", name, rank, 2) for n in range(3) for rank, name in enumerate("ab")]
        eventually(lambda: _consumers(url) == everyone)
        here = _cli("clients", "orders", "g", "--here", "-u", url)
        assert {one["broker"] for one in here} == {"b0"}
        assert mq.stat()["connections"] >= 6

    brokers.kill(2)
    eventually(lambda: {one["state"] for one in _cli("cluster", "ls", "-u", url)} == {"alive", "silent"})
    done = subprocess.run(
        [sys.executable, "-m", "towline", "cluster", "forget", brokers.address(2), "-u", url],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_connections_are_closed_at_whichever_broker_they_are(brokers: Brokers) -> None:
    with towline.connect(brokers.url) as mq, towline.connect(f"towline://{brokers.address(2)}") as doomed:
        doomed.send("orders", b"x")
        [mine] = {one.address for one in mq.clients() if one.role == "producer"}
        mq.close_connection(mine)
        eventually(lambda: mine not in {one.address for one in mq.clients()})
        with pytest.raises(NotFound, match="nobody is connected"):
            mq.close_connection(mine)


def test_brokers_know_each_other_after_a_restart_without_being_told(cluster_of: Callable[..., Brokers]) -> None:
    brokers = cluster_of(3).start().wait_for()
    ids = {one.id for one in brokers.alive(0)}
    brokers.kill(0)
    brokers.start(0)
    brokers.wait_for()
    assert {one.id for one in brokers.alive(0)} == ids
    assert max(one.epoch for one in brokers.alive(1)) == 2
    with towline.connect(f"towline://{brokers.address(2)}") as mq:
        assert {one.id for one in mq.brokers()} == ids


def _flags(secret: Path) -> tuple[str, ...]:
    tokens = str(secret.parent / f"{secret.name}-access" / "access.toml")
    mine = ("--security", "--access-file", tokens)
    return *mine, "--cluster-token", "cluster", "--cluster-secret-file", str(secret)


def test_only_a_broker_with_the_clusters_secret_is_let_in(cluster_of: Callable[..., Brokers], tmp_path: Path) -> None:
    for name, secret in (("ours", "a-very-long-pa55word"), ("theirs", "guess-guess-guess")):
        (tmp_path / name).write_text(secret)
        (tmp_path / f"{name}-access").mkdir()
        access_file(tmp_path / f"{name}-access", cluster=secret)
    brokers = cluster_of(3, *_flags(tmp_path / "ours"))
    brokers.credentials = {"token": "cluster", "secret": "a-very-long-pa55word"}
    brokers.start(0, 1)
    brokers.wait_for(2)
    brokers.flags = _flags(tmp_path / "theirs")
    brokers.start(2)
    log = brokers.folder / "2.log"
    eventually(lambda: "not right" in log.read_text())
    assert len(brokers.alive(0)) == 2
    assert "pa55word" not in log.read_text() + (brokers.folder / "0.log").read_text()


def test_a_broker_that_returns_with_an_empty_disk_takes_the_place_of_the_one_before(
    cluster_of: Callable[..., Brokers],
) -> None:
    brokers = cluster_of(3).start().wait_for()
    before = {one.name: one.id for one in brokers.alive(0)}
    brokers.kill(2)
    shutil.rmtree(brokers.folder / "2")
    brokers.start(2)
    brokers.wait_for()

    def replaced(number: int) -> list[tuple[str, str]]:
        with towline.connect(f"towline://{brokers.address(number)}") as mq:
            return sorted((one.name, one.replaced) for one in mq.brokers())

    for number in range(3):
        eventually(lambda: replaced(number) == [("b0", ""), ("b1", ""), ("b2", before["b2"])])  # noqa: B023
        assert "forgotten" in (brokers.folder / f"{number}.log").read_text()
    with (
        towline.connect(brokers.url) as mq,
        mq.consumer("orders", "g", name="a", idle_timeout=5) as consumer,
        towline.connect(brokers.url) as other,
    ):
        for number in range(30):
            mq.send("orders", b"%d" % number)
            other.send("orders", b"%d" % number)
        got = 0
        while got < 60:
            batch = consumer.pull(max_messages=10, wait=30)
            got += len(batch)
            batch.ack()
        mine = [one for one in mq.clients("orders") if one.consumer == "a"]
        assert sorted(one.broker for one in mine) == ["b0", "b1", "b2"], "it is attached once at each"
    command = [sys.executable, "-m", "towline", "cluster", "check", "-u", f"towline://{brokers.address(0)}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{brokers.address(2)} was broker {before['b2']} before" in done.stderr
