"""What errors of the database mean, and how tables of an older version come up to date."""

from __future__ import annotations

import pytest
from asyncmy.errors import OperationalError
from sqlalchemy import text

from tests.inside.sql import Fault, SqlSettings, classify, explain, migrate, prepare_database, tables
from tests.store.sql.server import mariadb
from towline.errors import Unavailable


@pytest.mark.parametrize("code", [1213, 1205, 1020, 1180, 9007, 8002, 8022])
def test_a_transaction_that_was_rolled_back_is_done_again(code: int) -> None:
    assert classify(OperationalError(code, "so it is")) is Fault.AGAIN


@pytest.mark.parametrize("code", [1047, 2006, 2013])
def test_a_connection_that_broke_or_a_node_that_left_its_cluster_is_tried_elsewhere(code: int) -> None:
    error = OperationalError(code, "so it is")
    assert classify(error) is Fault.ELSEWHERE
    told = explain(error, "root@db/queue")
    assert isinstance(told, Unavailable)
    assert told.retriable
    assert "root@db/queue" in str(told)


async def test_tables_of_an_older_version_are_brought_up_to_date(
    settings: SqlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await prepare_database(settings)
    await database.close()
    before = tables.VERSION
    step = text("CREATE TABLE IF NOT EXISTS mq_next (id INT PRIMARY KEY)")
    monkeypatch.setattr(tables, "VERSION", before + 1)
    monkeypatch.setattr(migrate, "UPGRADES", {**migrate.UPGRADES, before + 1: (step,)})
    for _ in range(2):  # the second broker finds it done
        database = await prepare_database(settings)
        assert await migrate.stated_number(database) == before, "brokers of before may still be there"
        await database.close()
    database = await prepare_database(settings)
    await migrate.raise_number(database)
    await database.close()
    assert mariadb().sql("SELECT MAX(version) FROM mq_schema", settings.database) == [[str(before + 1)]]
    assert mariadb().sql("SHOW TABLES LIKE 'mq_next'", settings.database) == [["mq_next"]]
