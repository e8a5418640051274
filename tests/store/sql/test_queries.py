"""The queries of docs/sql.md, as they stand there, on the database of a broker at work."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import towline
from tests.broker.process import BrokerProcess
from tests.eventually import eventually
from tests.store.sql.server import mariadb, new_database

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sql.md"


def queries() -> dict[str, str]:
    """Those of the section "Useful queries", by what stands above each."""
    section = PAGE.read_text().partition("## Useful queries")[2].partition("\n## ")[0]
    block = section.partition("```sql\n")[2].partition("```")[0]
    return {said: text.strip() for said, text in re.findall(r"^-- (.*)\n((?:(?!-- ).*\n)+)", block, re.M)}


def test_every_query_of_the_page_tells_what_it_says() -> None:
    store = new_database()
    database, asked = store.rpartition("/")[2], queries()

    def ask(about: str) -> list[list[str]]:
        return mariadb().sql(asked[about], database)

    assert len(asked) >= 7
    with BrokerProcess(store=store, maintenance_s=0.2, name="b0") as broker:
        url = f"towline://127.0.0.1:{broker.port}"
        with towline.connect(url, timeout=30) as mq, mq.consumer("orders", "billing", name="ann") as consumer:
            mq.send("orders", b"bad")
            consumer.pull(wait=60)[0].dead("no such customer")
            consumer.flush()
            mq.send_many("orders", [b"x"] * 4711, priority="high")
            mq.send("orders", b"the one", key="order-4423", priority="high")
            mq.send("orders", b"later", delay=1800)
            waiting = partial(ask, "the backlog of a group")
            eventually(waiting, holds=lambda rows: ["high", "4712"] in rows and ["middle", "0"] in rows)
            [[number, _, body]] = ask("a message by its key")
            assert (number, body) == ("4711", "the one")
            status = partial(ask, "what became of it, in every group")
            eventually(status, holds=lambda rows: [row[:2] for row in rows] == [["billing", "NEW"]])
            failed = partial(ask, "what failed, and why")
            eventually(failed, holds=lambda rows: rows == [["no such customer", "1"]])
            assert len(ask("what is due in the next hour")) == 1
            who = partial(ask, "who consumes, and which of how many each is")
            eventually(who, holds=lambda rows: [row[0] for row in rows] == ['["orders", "billing", "ann", 0, 1]'])
            [[realm, _, _, _, alive]] = ask("who owns the queue")
            assert (realm, alive) == ("main", "1")
