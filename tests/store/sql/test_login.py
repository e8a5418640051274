"""How a broker gets into its database: with a password, over an encrypted connection, or told what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asyncmy.errors import OperationalError

import towline
from tests.broker.process import BrokerProcess, failing_start
from tests.inside.sql import NOT_ENCRYPTED, Fault, classify, explain
from tests.store.sql.server import MariaDb, needs_mariadb, new_server
from towline.errors import Refused

PASSWORD = "it's a pass\\word"


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    needs_mariadb()
    made = new_server()
    try:
        made.certify().install().start()
        made.sql("CREATE DATABASE queue")
        yield made
    finally:
        made.remove()


@pytest.fixture
def user(server: MariaDb, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of a broker whose user is let in over encrypted connections only."""
    name = request.node.name[:32]
    quoted = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    server.sql(f"CREATE USER {name}@'%' IDENTIFIED BY '{quoted}' REQUIRE SSL; GRANT ALL ON queue.* TO {name}@'%'")
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    return {"store": f"mysql://{name}@127.0.0.1:{server.port}/queue", "store_password_file": str(file)}


def test_a_password_goes_over_an_encrypted_connection(server: MariaDb, user: dict[str, str]) -> None:
    with (
        BrokerProcess(**user, store_tls_ca=str(server.certificate)) as broker,
        towline.connect(f"towline://127.0.0.1:{broker.port}", timeout=60) as mq,
    ):
        mq.send("orders", b"x")
        assert [message.body for message in mq.browse("orders")] == [b"x"]


def test_who_comes_without_encryption_is_told_how(user: dict[str, str]) -> None:
    said = failing_start(**user)
    assert "an encrypted connection" in said
    assert "--store-tls-ca" in said
    assert PASSWORD not in said


def test_a_certificate_that_does_not_name_the_host_is_refused(server: MariaDb, user: dict[str, str]) -> None:
    user["store"] = user["store"].replace("127.0.0.1", "localhost")
    said = failing_start(**user, store_tls_ca=str(server.certificate))
    assert "a certificate that does not fit" in said
    assert "must name the host" in said


def test_a_wrong_password_is_refused(server: MariaDb, user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("another one")
    said = failing_start(**user, store_tls_ca=str(server.certificate))
    assert "refuses to let the broker in" in said
    assert "another one" not in said


@pytest.mark.parametrize("code", [NOT_ENCRYPTED, 3159])
def test_a_server_that_wants_encryption_is_asked_again_and_not_the_end(code: int) -> None:
    error = OperationalError(code, "insecure transport")
    assert classify(error) is Fault.LOGIN
    told = explain(error, "towline@db:3306/queue")
    assert isinstance(told, Refused)
    assert "--store-tls-ca" in str(told)
