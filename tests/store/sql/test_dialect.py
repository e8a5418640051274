"""The SQL that is sent keeps to what MySQL 8, MariaDB and TiDB all document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.store.sql.server import mariadb, new_database
from towline import GroupConfig, RetryPolicy

ROOT = Path(__file__).resolve().parents[3]

FORBIDDEN = {
    r"\bSKIP\s+LOCKED\b": "TiDB ignores it, and it does not hold across Galera nodes",
    r"\bNOWAIT\b": "not in MariaDB and MySQL alike",
    r"\b(GET|RELEASE)_LOCK\s*\(": "does not hold across Galera nodes",
    r"\bLOCK\s+TABLES?\b": "TiDB ignores it",
    r"\bRETURNING\b": "MariaDB only",
    r"\bLAST_INSERT_ID\s*\(": "numbers are ours, not those of AUTO_INCREMENT",
    r"\b(NEXT|PREVIOUS)\s+VALUE\s+FOR\b|\bNEXTVAL\s*\(": "not in MySQL",
    r"\bCREATE\s+OR\s+REPLACE\s+TABLE\b": "MariaDB only",
    r"\bCREATE\s+(UNIQUE\s+)?INDEX\s+IF\s+NOT\s+EXISTS\b": "not in MySQL",
    r"\b(ADD|DROP)\s+COLUMN\s+IF\s+(NOT\s+)?EXISTS\b": "MariaDB only",
    r"\bSET\s+STATEMENT\b": "MariaDB only",
    r"\b(CREATE|DROP)\s+(DEFINER\s*=\s*\S+\s+)?(TRIGGER|PROCEDURE|EVENT|FUNCTION)\b": "not in TiDB",
    r"\bFOREIGN\s+KEY\b": "it would lock rows of other tables",
    r"\bFULLTEXT\b|\bSPATIAL\b": "not in TiDB",
    r"\bSAVEPOINT\b": "a unit is whole or absent",
    r"\bXA\s+(START|BEGIN|PREPARE|COMMIT)\b": "not in TiDB",
    r"\bSQL_CALC_FOUND_ROWS\b|\bFOUND_ROWS\s*\(": "deprecated",
    r"\bSERIALIZABLE\b": "not in TiDB",
    r"\bORDER\s+BY\b[^()]*\bOFFSET\s+\d": "it would count what it passes over",
}
"""What must not be sent, and why."""
ONLY_MARIADB = r"\b(idle_write_transaction_timeout)\b"


def offences(statement: str) -> list[str]:
    bare = re.sub(r"'(?:[^'\\]|\\.|'')*'|`[^`]*`", "''", statement)
    return [f"{why}: {statement[:200]}" for word, why in FORBIDDEN.items() if re.search(word, bare, re.IGNORECASE)]


@pytest.fixture
def log() -> Iterator[None]:
    """The server writes down all that it is told."""
    server = mariadb()
    server.sql("SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON")
    yield
    server.sql("SET GLOBAL general_log = OFF")


def test_what_is_forbidden_is_found() -> None:
    assert offences("SELECT id FROM q ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED")
    assert offences("INSERT INTO q VALUES (1) RETURNING id")
    assert offences("SELECT * FROM q ORDER BY id LIMIT 10 OFFSET 100000")
    assert not offences("INSERT INTO q VALUES ('skip locked returning', `returning`)")
    assert not offences("SELECT body FROM q WHERE id >= 7 ORDER BY id LIMIT 500")


def test_no_statement_in_the_sources_is_forbidden() -> None:
    for path in sorted((ROOT / "towline" / "store" / "sql").glob("*.py")):
        # Docstrings may name what is not done.
        code = re.sub(r'"""(?:[^\\]|\\.)*?"""', '""', path.read_text(), flags=re.DOTALL)
        for word in (*FORBIDDEN, r"\.returning\(", r"skip_locked", r"with_for_update", r"lastrowid"):
            assert not re.search(word, code, re.IGNORECASE), f"{path.name}: {word}"


@pytest.mark.usefixtures("log")
def test_all_that_a_broker_sends_keeps_to_what_is_common() -> None:
    url = new_database()
    with (
        BrokerProcess(store=url, maintenance_s=0.5) as broker,
        towline.connect(f"towline://127.0.0.1:{broker.port}", timeout=20) as mq,
    ):
        _use_everything(mq)
        broker.stop()
        broker.wait()
    with BrokerProcess(store=url) as again:  # the way back: what is read when it starts
        with towline.connect(f"towline://127.0.0.1:{again.port}", timeout=20) as mq:
            mq.topics()
        again.stop()
        again.wait()
    rows = mariadb().sql(
        "SELECT REPLACE(CONVERT(argument USING latin1), '\n', ' ') FROM mysql.general_log "
        "WHERE command_type IN ('Query', 'Prepare', 'Execute') AND thread_id <> CONNECTION_ID()"
    )
    statements = {row[0] for row in rows if row}
    assert any("mq_realm" in one for one in statements)
    assert any("msg_p_orders_high" in one for one in statements)
    assert [found for one in statements for found in offences(one)] == []
    special = [one for one in statements if re.search(ONLY_MARIADB, one)]
    assert all(one.startswith("SET SESSION") for one in special), "these are sent to MariaDB only, when it connects"


def _use_everything(mq: towline.Client) -> None:
    mq.create_topic("trail", shards=2)
    mq.create_topic("orders")
    mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts=1, delays_s=(0,)), start="earliest"))
    for priority in ("high", "middle", "low"):
        mq.send_many("orders", [b"x" * 100] * 50, keys=[f"k{n}" for n in range(50)], priority=priority)
    mq.send("orders", b"later", delay=3600, key="late")
    mq.send("orders", b"soon", delay=0.2)
    mq.send("trail", b"in order", shard_key="a")
    mq.send("orders", b"once", dedup_id="d")
    with mq.transaction() as tx:
        tx.send("orders", b"a")
        tx.send("stock", b"b")
    with mq.consumer("orders", "billing") as consumer:
        batch = consumer.pull(max_messages=100, wait=60)
        for number, message in enumerate(batch):
            message.ack() if number % 2 else message.nack("why not")
        consumer.flush()
    assert mq.find("orders", key="k7")
    mq.trace("orders/high/0", group="billing")
    mq.cancel("orders", key="late")
    mq.seek("orders", "billing", "latest")
    mq.purge("stock")
    mq.delete_topic("trail")
