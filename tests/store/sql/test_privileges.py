"""A database whose user may not do everything: the broker says so at the start, and refuses requests, not itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import towline
from tests.broker.process import BrokerProcess, failing_start
from tests.inside.sql import NEEDED
from tests.store.sql.server import mariadb, new_database
from tests.system.cluster.conftest import eventually
from towline.errors import Refused

PASSWORD = "pass"


def _user(name: str, url: str, rights: str, folder: Path) -> dict[str, str]:
    """The settings of a broker whose user has these rights."""
    database = url.rpartition("/")[2]
    server = mariadb()
    server.sql(f"CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT {rights} ON {database}.* TO {name}@'%'")
    file = folder / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    settings = {"store": f"mysql://{name}@127.0.0.1:{server.port}/{database}", "store_password_file": str(file)}
    if server.certificate.exists():  # MySQL wants passwords over an encrypted connection
        settings["store_tls_ca"] = str(server.certificate)
    return settings


def _change(text: str) -> None:
    """Change rights: connections that are open keep the old ones, so they are ended."""
    server = mariadb()
    server.sql(text)
    for [kill] in server.sql("SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = 'robbed'"):
        # It may have ended by itself.
        with contextlib.suppress(AssertionError):
            server.sql(kill)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_right_is_named_at_the_start(missing: str, tmp_path: Path) -> None:
    url, name = new_database(), f"lacks_{missing.lower().replace(' ', '_')}"
    settings = _user(name, url, ", ".join(right for right in NEEDED if right != missing), tmp_path)
    said = failing_start(**settings)
    assert f"the right to {missing}" in said
    assert "GRANT" in said
    assert PASSWORD not in said
    assert mariadb().sql("SHOW TABLES", url.rpartition("/")[2]) == []


def test_a_right_that_is_taken_away_refuses_the_request_and_not_the_broker(tmp_path: Path) -> None:
    url = new_database()
    database = url.rpartition("/")[2]
    settings = _user("robbed", url, ", ".join(NEEDED), tmp_path)
    with (
        BrokerProcess(**settings) as broker,
        towline.connect(f"towline://127.0.0.1:{broker.port}", timeout=20) as mq,
        towline.connect(f"towline://127.0.0.1:{broker.port}", timeout=3) as short,
    ):
        mq.send("orders", b"before")
        _change(f"REVOKE CREATE, CREATE VIEW ON {database}.* FROM robbed@'%'")
        for _ in range(2):
            with pytest.raises(Refused, match="right CREATE"):
                mq.send("stock", b"never stored")
        with pytest.raises(Refused, match="right CREATE"):
            mq.send_many("stock", [b"never stored"] * 10, priority="high")
        # What is there goes on.
        mq.send("orders", b"meanwhile")
        with mq.consumer("orders", "billing") as consumer:
            seen: list[bytes] = []
            while len(seen) < 2:
                batch = consumer.pull(wait=60)
                seen += [message.body for message in batch]
                batch.ack()
        assert seen == [b"before", b"meanwhile"]
        _change(f"GRANT CREATE ON {database}.* TO robbed@'%'")
        mq.send("stock", b"after")
        assert [message.body for message in mq.browse("stock")] == [b"after"]
        assert [message.seq for message in mq.browse("stock")] == [0]
        # Rows of a lane that is there: nothing can be taken back, so it waits for the right, and new ones are refused.
        _change(f"REVOKE INSERT ON {database}.* FROM robbed@'%'")
        for _ in range(2):
            with pytest.raises(towline.TowlineError):
                short.send("orders", b"waits")
        _change(f"GRANT INSERT ON {database}.* TO robbed@'%'")
        eventually(lambda: _goes_on(mq))
        assert broker.process.poll() is None


def _goes_on(mq: towline.Client) -> bool:
    try:
        mq.send("orders", b"goes on")
    except towline.TowlineError:
        return False
    return True
