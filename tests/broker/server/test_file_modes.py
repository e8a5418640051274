"""What is stored is for its owner's eyes, in whatever folder and under whatever umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import towline
from tests.broker.process import ROOT, BrokerProcess, failing_start
from tests.inside.alarms import AlarmRule
from tests.inside.client import Client, SpoolFile
from tests.inside.store import REAL, create_segment, cut_tail

PASSWORD = "correct horse"
PATIENCE_S = 30.0
MENDED = r"(\d+) files and folders in it were open to other users"


def open_to_others(folder: Path, allowed: int = 0o700) -> list[str]:
    return [
        f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in sorted(folder.rglob("*"))
        if path.stat().st_mode & 0o777 & ~allowed
    ]


def use_everything(mq: Client) -> None:
    mq.create_topic("orders")
    mq.create_topic("shards", shards=2)
    mq.put_alarm(AlarmRule("late", "dead", 1, webhooks=("https://hooks.example/secret",)))
    mq.send_many("orders", [b"%d" % number * 5000 for number in range(40)], keys=[f"k{n}" for n in range(40)])
    mq.send("orders", b"later", delay=3600)
    mq.send("orders", b"once", dedup_id="a")
    mq.send("shards", b"in order", shard_key="a")
    with mq.transaction() as several:
        several.send("orders", b"in a transaction")
    prepared = mq.prepare("shop", "order 17")
    prepared.send("orders", b"prepared")
    prepared.store()
    with mq.consumer("orders", group="billing") as consumer:
        messages = consumer.pull(10, wait=PATIENCE_S)
        messages[0].dead("cannot bill")
        messages[1].nack("not now")
        for message in messages[2:]:
            message.ack()
    with mq.consumer("orders", name="screen") as consumer:
        consumer.pull(1)


def serve(data: Path, umask: int = 0) -> BrokerProcess:
    return BrokerProcess(
        store=f"file:{data}", umask=umask, security=True, segment_bytes=64 << 10, metrics="127.0.0.1:0"
    )


def run_cli(umask: int, *arguments: str) -> None:
    command = [sys.executable, "-m", "towline", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, umask=umask, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that ran under umask 0 in a folder for all, was killed once, and stopped."""
    data = tmp_path_factory.mktemp("modes") / "data"
    data.mkdir()
    data.chmod(0o755)
    with serve(data) as broker:
        url, setup = f"towline://127.0.0.1:{broker.port}", data / "setup-secret"
        assert open_to_others(data) == []
        with towline.connect(url, token="setup", secret=setup.read_text().strip(), timeout=PATIENCE_S) as first:
            first.access.create_user("root", PASSWORD, roles=["admin"])
        with towline.connect(url, token="root", secret=PASSWORD, timeout=PATIENCE_S) as mq:
            use_everything(mq)
    for name in ("pears", "plums"):  # documents are written at the end, and what was there before is kept beside them
        with serve(data) as broker:
            with towline.connect(
                f"towline://127.0.0.1:{broker.port}", token="root", secret=PASSWORD, timeout=PATIENCE_S
            ) as mq:
                mq.create_topic(name)
            broker.stop()
            assert broker.wait() == 0
    return data


def test_a_broker_under_umask_0_in_a_folder_for_all_keeps_all_to_its_owner(used: Path) -> None:
    there = {path.name for path in used.rglob("*")}
    assert {"access.json", "alarms.json", "topics.json", "audit.jsonl", "lock", "format"} <= there
    assert {".log", ".idx", ".bak"} <= {Path(name).suffix for name in there}
    assert open_to_others(used) == []


def test_backups_and_what_is_restored_of_them_are_their_owners(used: Path, tmp_path: Path) -> None:
    target, restored = tmp_path / "new" / "backup", tmp_path / "restored"
    restored.mkdir()
    restored.chmod(0o755)
    run_cli(0, "backup", str(target), "--copy", "--store", f"file:{used}")
    run_cli(0, "restore", str(target), "--store", f"file:{restored}")
    assert open_to_others(target) == []
    assert open_to_others(restored) == []
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o755


def test_what_an_earlier_version_left_open_is_closed_and_that_is_said_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with serve(data, 0o022) as broker:
        broker.stop()
        assert broker.wait() == 0
        assert "open to other users" not in broker.errors
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o644)
    (data / "torn" / "link").symlink_to(outside)
    left = [path for path in data.rglob("*") if not path.is_symlink()]
    for path in left:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with serve(data, 0o022) as broker:
        broker.wait_for_log(MENDED)
        broker.stop()
        assert broker.wait() == 0
        assert broker.errors.count("open to other users") == 1
    (data / "torn" / "link").unlink()
    assert open_to_others(data) == []
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644, "what a link leads to is not ours"
    assert stat.S_IMODE(data.stat().st_mode) == 0o755, "the folder itself is its owner's to say"
    with serve(data, 0o022) as broker:
        broker.stop()
        assert broker.wait() == 0
        assert "open to other users" not in broker.errors


def test_a_group_that_the_folder_lets_in_may_read_all_but_secrets(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o750)
    with serve(data) as broker:
        secret = (data / "setup-secret").read_text().strip()
        with towline.connect(f"towline://127.0.0.1:{broker.port}", token="setup", secret=secret) as first:
            first.access.create_user("root", PASSWORD, roles=["admin"])
        broker.stop()
        assert broker.wait() == 0
    assert open_to_others(data, 0o750) == []
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*")}
    assert (modes["log"], modes["config"], modes["format"]) == (0o750, 0o750, 0o640)
    assert {modes[name] for name in modes if name.endswith(".log")} == {0o640}
    assert (modes["access.json"], modes["lock"]) == (0o600, 0o600)


def test_copies_of_torn_tails_are_their_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name in ("log", "torn"):
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(0o700)
        segment = create_segment(tmp_path / "log", 1, 4096, REAL)
        cut_tail(tmp_path, segment, 64, REAL)
        os.close(segment.fd)
    finally:
        os.umask(before)
    assert list((tmp_path / "torn").iterdir())
    assert open_to_others(tmp_path) == []


def test_spools_of_clients_are_their_owners(tmp_path: Path) -> None:
    folder, before = tmp_path / "spool", os.umask(0)
    try:
        folder.mkdir()
        file = SpoolFile(folder / "x.acts", 1 << 20)
        file.append([b"one"])
        file.close()
        with (folder / "x.acts").open("ab") as torn:
            torn.write(b"half")
        (folder / "x.acts").chmod(0o644)
        SpoolFile(folder / "x.acts", 1 << 20).close()
        assert (folder / "x.torn").exists()
        assert open_to_others(folder) == []
        (folder / "x.torn").chmod(0o644)
        SpoolFile(folder / "x.acts", 1 << 20).close()
        assert open_to_others(folder) == []
    finally:
        os.umask(before)


def test_no_link_says_which_other_file_is_overwritten(tmp_path: Path) -> None:
    """In a folder that others may write to, any of them may make one."""
    other, data = tmp_path / "other", tmp_path / "data"
    other.write_text("kept")
    other.chmod(0o644)
    data.mkdir()
    for name in ("data/lock", "data/.topics.json.tmp", "x.acts"):
        (tmp_path / name).symlink_to(other)
    assert "lock: it is a link" in failing_start(store=f"file:{data}")
    with pytest.raises(OSError, match="it is a link"):
        REAL.replace(data / "topics.json", [b"{}"])
    with pytest.raises(OSError, match="it is a link"):
        SpoolFile(tmp_path / "x.acts", 1 << 20)
    assert (other.read_text(), stat.S_IMODE(other.stat().st_mode)) == ("kept", 0o644)
