"""Clients and brokers of this version and of the one before, side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import towline
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.inside.ground import FORMAT
from tests.inside.protocol import VERSION
from tests.system.cluster.conftest import Brokers
from tests.system.upgrade.before import NAME, ROOT, environment
from towline.errors import Partly, Unsupported

ERRANDS = Path(__file__).with_name("errands.py")


def _run_errands(programs: Path, url: str) -> None:
    command = [sys.executable, str(ERRANDS), url]
    done = subprocess.run(
        command, cwd=programs, env=environment(programs), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_the_wheel_of_the_version_before_is_what_runs(programs_before: Path) -> None:
    code = "import towline, importlib.metadata as m; print(towline.__file__, m.version('towline'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=programs_before, env=environment(programs_before), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(programs_before / "towline" / "__init__.py"), NAME]


def test_a_client_of_the_version_before_does_all_it_did_with_a_broker_of_today(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(1).start()
    _run_errands(programs_before, brokers.url)
    with towline.connect(brokers.url) as mq:
        assert mq.brokers()[0].protocol == VERSION


def test_a_client_of_today_does_all_that_a_broker_of_the_version_before_can(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(1)
    brokers.programs[0] = programs_before
    brokers.start()
    _run_errands(ROOT, brokers.url)
    with towline.connect(brokers.url) as mq:
        [state] = mq.brokers()
        assert (state.protocol, state.format, state.software) == (1, 1, "")
        where = rf"broker b0 at 127\.0\.0\.1:{brokers.ports[0]}"
        with pytest.raises(Unsupported, match=rf"{where} cannot be backed up while it runs: .*version 2 .*upgrade it"):
            mq.begin_backup()
        with pytest.raises(Unsupported, match=rf"{where} cannot raise alarms of what holds retention back"):
            mq.put_alarm(AlarmRule("held", "retention", 60.0))
        mq.put_alarm(AlarmRule("old", "age", 60.0))
        assert [rule.name for rule in mq.alarms().rules] == ["old"]
        mq.send("orders", b"and it goes on")


def test_brokers_of_both_versions_beat_each_other_and_tell_what_they_know(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    """Also of alarm rules, of which some are of a kind that the version before could not even read."""
    brokers = cluster_of(3)
    brokers.programs[0] = programs_before
    brokers.start().wait_for(3)
    with towline.connect(f"towline://{brokers.address(1)}") as mq:
        assert sorted((one.protocol, one.format) for one in mq.brokers()) == [(1, 1), *[(VERSION, FORMAT)] * 2]
        mq.create_topic("everywhere")
    for number in (1, 2):
        with towline.connect(f"towline://{brokers.address(number)}") as mq:
            eventually(lambda: "everywhere" in {topic.config.name for topic in mq.topics()})
    shown = _towline("cluster", "ls", "-u", f"towline://{brokers.address(1)}")
    assert shown.stdout.count("protocol 1") == 1
    assert (
        "the brokers are of several versions"
        in _towline("cluster", "check", "-u", f"towline://{brokers.address(1)}").stderr
    )
    with towline.connect(f"towline://{brokers.address(1)}") as mq:
        mq.put_alarm(AlarmRule("old", "age", 60.0))
        with pytest.raises(Partly, match=rf"2 of 3 brokers: .*b0 at {brokers.address(0)} cannot raise alarms"):
            mq.put_alarm(AlarmRule("held", "retention", 60.0))
    brokers.terminate(0)
    with towline.connect(f"towline://{brokers.address(1)}") as mq:
        mq.put_alarm(AlarmRule("new", "retention", 60.0))
    brokers.start(0).wait_for(3)
    kept = {number: brokers.folder / str(number) / "config" / "alarms.json" for number in range(3)}
    for number, names in {0: {"old"}, 1: {"old", "held", "new"}, 2: {"old", "held", "new"}}.items():
        eventually(partial(_names, kept[number]), holds=names.__eq__)
    logs = "".join((brokers.folder / f"{number}.log").read_text() for number in kept)
    assert "does not decode" not in logs, logs


def _towline(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "towline", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def _names(rules: Path) -> set[str]:
    return {one["name"] for one in json.loads(rules.read_text())["rules"]}
