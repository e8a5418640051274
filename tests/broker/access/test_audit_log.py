"""The audit log: who did what, through a real broker with security."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

import towline
from tests.broker.access.secured import PASSWORD, PATIENCE_S, secured
from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.inside.broker import verify
from tests.inside.protocol import BrokerState, Meet, Met
from towline.errors import Conflict, NotFound, NotLetIn, Refused


def test_the_audit_log_tells_who_did_what_and_holds_no_secret(tmp_path: Path) -> None:
    with secured(tmp_path, store=f"file:{tmp_path}/data") as broker:
        made = broker.admin.access.create_token("audited")
        with broker.connect("audited", made.secret) as client, pytest.raises(Refused):
            client.delete_topic("orders")
        with pytest.raises(NotLetIn):
            broker.connect("audited", "a wrong secret")
        broker.admin.create_topic("orders")
        broker.admin.purge("orders", dry_run=True)
        broker.admin.delete_topic("orders")
        with pytest.raises(Conflict):
            broker.admin.access.create_token("audited")
        entries = broker.admin.access.audit().entries
        told = [(one.actor, one.what, one.target, one.outcome) for one in reversed(entries)]
        assert told == [
            ("setup", "login", "by setup", "done"),
            ("setup", "PutUser", "user root", "done"),
            ("root", "login", "by user", "done"),
            ("root", "CreateToken", "token audited", "done"),
            ("audited", "DeleteTopic", "topic orders", "refused"),
            ("audited", "login", "", "refused"),
            ("root", "CreateTopic", "topic orders", "done"),
            ("root", "DeleteTopic", "topic orders", "done"),
            ("root", "CreateToken", "token audited", "conflict"),
        ]
        page = broker.admin.access.audit(limit=4, actor="root")
        assert [one.what for one in page.entries] == ["CreateToken", "DeleteTopic", "CreateTopic", "CreateToken"]
        rest = broker.admin.access.audit(before=page.next, actor="root")
        assert [one.what for one in rest.entries] == ["login"]
        broker.process.stop()
        broker.process.wait()
        log = broker.process.errors
    path = tmp_path / "data" / "audit.jsonl"
    text = path.read_text()
    for secret in (made.secret, PASSWORD, "a wrong secret"):
        assert secret not in text
        assert secret not in log
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verify(path) == (9, None)
    lines = text.splitlines(keepends=True)
    changed = tmp_path / "changed.jsonl"
    for broken in (
        [*lines[:4], lines[4].replace("refused", "done"), *lines[5:]],
        [*lines[:4], *lines[5:]],
        [lines[1], lines[0], *lines[2:]],
    ):
        changed.write_text("".join(broken))
        assert verify(changed)[1] is not None


def test_that_a_broker_was_forgotten_is_told(tmp_path: Path) -> None:
    """Also that it was not, because nobody knows it."""
    with secured(tmp_path) as broker:
        here, gone = (
            BrokerState(name * 16, name, f"127.0.0.1:{port}", store="file") for name, port in (("a", 8), ("b", 9))
        )
        with RawClient.hello(broker.process.port, "root", PASSWORD) as client:
            client.call(Meet(here, [gone]), Met)
        broker.admin.forget_broker("127.0.0.1:9")
        with pytest.raises(NotFound):
            broker.admin.forget_broker("127.0.0.1:9")
        told = [(one.target, one.outcome) for one in broker.admin.access.audit(what="ForgetBroker").entries]
        assert told == [("broker 127.0.0.1:9", "not-found"), ("broker 127.0.0.1:9", "done")]


def test_a_torn_line_of_the_audit_log_is_cut_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data" / "audit.jsonl"
    with secured(tmp_path, store=f"file:{tmp_path}/data"):
        pass
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number":3,"at')
    with BrokerProcess(store=f"file:{tmp_path}/data", security=True) as process:
        url = f"towline://127.0.0.1:{process.port}"
        with towline.connect(url, token="root", secret=PASSWORD, timeout=PATIENCE_S) as admin:
            numbers = [one.number for one in admin.access.audit().entries]
    assert numbers == [3, 2, 1, 0]
    assert verify(path) == (4, None)
    assert msgspec.json.decode(path.read_bytes().splitlines()[3])["what"] == "login"
