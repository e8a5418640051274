"""`towline backup` and `towline restore`, of a running broker and of a stopped one."""

from __future__ import annotations

from pathlib import Path

import towline
from tests.cli.conftest import Cli
from tests.inside.load import BrokerProcess

HELD = ("topics", "messages", "delayed", "prepared", "groups", "problems")


def test_a_backup_of_a_running_broker_is_checked_restored_and_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(f"file:{data}", segment_bytes=64 << 10, durability="os") as broker:
        cli = Cli(broker.url, tmp_path)
        with towline.connect(broker.url) as mq:
            for number in range(40):
                mq.send("orders", b"%05d" % number * 1000)
            mq.send("orders", b"later", delay=3600)
            with mq.consumer("orders", "billing") as consumer:
                batch = consumer.pull(10)
                batch.ack()
        made = cli("backup", "whole", "-o", "json").line
        holds = {"topics": 1, "messages": 40, "delayed": 1, "prepared": 0, "groups": 1, "problems": []}
        assert {name: made[name] for name in HELD} == holds
        first = f"{1:020}.log"
        assert made["linked"] > 2
        assert (tmp_path / "whole/store/log" / first).samefile(data / "log" / first)
        copied = cli("backup", "copied", "--copy", "--store", f"file:{data}", "-o", "json").line
        assert (copied["linked"], copied["messages"]) == (0, 40)
        assert not (tmp_path / "copied/store/log" / first).samefile(data / "log" / first)
        assert "is not empty" in cli("backup", "whole", code=1).err
        assert "is open in the process" in cli("backup", "x", "-u", f"file:{data}", code=1).err
    stopped = cli("backup", "stopped", "--store", f"file:{data}", "-o", "json").line
    assert {name: stopped[name] for name in HELD} == holds

    assert {name: cli("restore", "whole", "--check", "-o", "json").line[name] for name in HELD} == holds
    assert "say either" in cli("restore", "whole", code=2).err
    assert "is not empty" in cli("restore", "whole", "--store", f"file:{data}", code=1).err
    cli("restore", "whole", "--store", f"file:{tmp_path}/restored")
    with BrokerProcess(f"file:{tmp_path}/restored", durability="os") as broker, towline.connect(broker.url) as mq:
        with mq.consumer("orders", "billing") as consumer:
            assert consumer.pull(1)[0].body == b"00010" * 1000
        assert len(mq.delayed("orders")) == 1

    damaged = tmp_path / "copied/store/log" / first
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert f"{first} is damaged" in cli("restore", "copied", "--check", code=1).err
    (tmp_path / "whole/manifest.json").unlink()
    assert "was not finished" in cli("restore", "whole", "--check", code=1).err


def test_a_backup_reads_the_folder_of_the_broker_it_asked_and_no_other(cli: Cli, tmp_path: Path) -> None:
    """As on another machine, where there is none at that path."""
    with BrokerProcess(f"file:{tmp_path}/other", durability="os"):
        said = cli("backup", "x", "--store", f"file:{tmp_path}/other", code=2).err
    assert "is not the broker's folder" in said
    assert not (tmp_path / "x").exists()


def test_stores_that_are_no_folder_say_what_to_do(tmp_path: Path) -> None:
    with BrokerProcess("memory:") as broker:
        assert "nothing to back up" in Cli(broker.url, tmp_path)("backup", "x", code=1).err
    cli = Cli("towline://127.0.0.1:1", tmp_path)
    assert "database: back that up" in cli("backup", "x", "--store", "mysql://root@localhost/x", code=2).err
