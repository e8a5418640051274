"""`towline send --transaction`, `--dedup-id`, and `towline tx`."""

from __future__ import annotations

import secrets
import signal

import pytest

import towline
from tests.cli.conftest import Cli, stop
from tests.cli.test_send import bodies


@pytest.fixture
def prepared(mq: towline.Client, topic: str) -> towline.PreparedTransaction:
    tx = mq.prepare("shop", name=f"order-{secrets.token_hex(4)}")
    tx.send(topic, b"one")
    tx.send(topic, b"two", priority="high")
    tx.store()
    return tx


def test_lines_can_be_one_transaction(cli: Cli, mq: towline.Client, topic: str) -> None:
    lines = b"".join(b"%d\n" % n for n in range(5_000))
    assert cli("send", topic, "--transaction", input=lines).text == "sent 5,000 messages in one transaction\n"
    assert bodies(mq, topic) == [b"%d" % n for n in range(5_000)]
    receipts = cli("send", topic, "--transaction", "-o", "json", "-k", "k", input=b"a\nb\n").lines
    assert [receipt["seq"] for receipt in receipts] == [5_000, 5_001]


def test_a_transaction_that_is_interrupted_sends_nothing(cli: Cli, mq: towline.Client, topic: str) -> None:
    process = cli.start("send", topic, "--transaction")
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    with mq.consumer(topic, group="g") as consumer:
        assert not consumer.pull(wait=0.5)
    assert stop(process, signal.SIGKILL).code != 0
    assert bodies(mq, topic) == []


def test_a_dedup_id_sends_once(cli: Cli, mq: towline.Client, topic: str) -> None:
    first = cli("send", topic, "x", "--dedup-id", "order-1").text
    assert cli("send", topic, "x", "--dedup-id", "order-1", "-p", "low").text == first == f"{topic}/middle/0\n"
    assert cli("send", topic, "x", "--dedup-id", "order-1", "--transaction").text == first
    assert bodies(mq, topic) == [b"x"]
    assert "single message" in cli("send", topic, "--dedup-id", "order-1", input=b"a\nb\n", code=2).err


def test_prepared_transactions_are_listed(cli: Cli, prepared: towline.PreparedTransaction, topic: str) -> None:
    text = cli("tx", "ls").text
    assert prepared.id in text
    assert prepared.name in text
    facts = next(line for line in cli("tx", "ls", "-o", "json").lines if line["transaction"] == prepared.id)
    assert (facts["state"], facts["messages"], facts["topics"]) == ("prepared", 2, [topic])
    assert cli("tx", "ls", "--parked", "-o", "json").out == b""
    prepared.rollback()
    assert cli("tx", "ls", prepared.id, "-o", "json").line["state"] == "rolled back"


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_a_transaction_can_be_resolved_by_hand(
    cli: Cli, mq: towline.Client, prepared: towline.PreparedTransaction, topic: str, verdict: str
) -> None:
    dry = cli("tx", "resolve", prepared.id, verdict, "--dry-run").text
    assert dry.startswith(f"would {'show' if verdict == 'commit' else 'drop'} 2 messages for {topic}")
    assert cli("tx", "resolve", prepared.id, verdict, "--dry-run", "-o", "json").line["state"] == "prepared"
    state = "committed" if verdict == "commit" else "rolled back"
    done = cli("tx", "resolve", prepared.id, verdict, "--reason", "the shop says so", "-o", "json").line
    assert (done["state"], done["reason"]) == (state, "the shop says so")
    assert bodies(mq, topic) == ([b"one"] if verdict == "commit" else [])
    assert f"is {state} already" in cli("tx", "resolve", prepared.id, verdict, "--dry-run").text
    other = "rollback" if verdict == "commit" else "commit"
    assert "already (the shop says so)" in cli("tx", "resolve", prepared.id, other, code=1).err


def test_an_unknown_transaction_is_one_line(cli: Cli) -> None:
    assert cli("tx", "resolve", "nonesuch", "commit", code=1).err == (
        "error: there is no transaction nonesuch on this broker\n"
    )


def test_a_transaction_can_be_delayed(cli: Cli, mq: towline.Client, topic: str) -> None:
    receipts = cli("send", topic, "--transaction", "--delay", "1h", "-o", "json", input=b"a\nb\n").lines
    assert [receipt["lane"] for receipt in receipts] == ["delay", "delay"]
    assert [one.id for one in mq.delayed(topic)] == [receipt["id"] for receipt in receipts]
    assert bodies(mq, topic) == []
