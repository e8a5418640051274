"""Commands against a broker that asks who is there, and one that speaks TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.access.declared import declared
from tests.certificates import KIND, openssl
from tests.cli.conftest import Cli
from tests.inside.load import BrokerProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = declared(tmp_path_factory.mktemp("tokens"), shop="open-sesame-please")
    with BrokerProcess("memory:", **settings, log_level="warning") as process:
        yield process


def test_the_secret_comes_from_the_environment_or_a_file(guarded: BrokerProcess, tmp_path: Path) -> None:
    cli = Cli(guarded.url, tmp_path)
    (tmp_path / "secret").write_text("open-sesame-please\n")
    assert cli("send", "t", "x", "--token", "shop", env={"TOWLINE_SECRET": "open-sesame-please"}).text == "t/middle/0\n"
    assert cli("send", "t", "x", "--token", "shop", "--secret-file", "secret").text == "t/middle/1\n"
    environment = {"TOWLINE_TOKEN": "shop", "TOWLINE_SECRET_FILE": "secret"}
    assert cli("consume", "t", "-n", "1", "-o", "json", env=environment).line["token"] == "shop"
    assert cli("bench", "produce", "--count", "10", "-o", "json", env=environment).line["messages"] == 10


def test_a_wrong_secret_is_refused_and_not_repeated(guarded: BrokerProcess, tmp_path: Path) -> None:
    cli = Cli(guarded.url, tmp_path)
    result = cli("topic", "ls", "--token", "shop", env={"TOWLINE_SECRET": "open barley"}, code=1)
    assert result.err.startswith("error: ")
    assert "barley" not in result.err
    assert cli("topic", "ls", "--secret-file", "missing", code=2).err.startswith("error: secret file missing")


def test_a_broker_with_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    openssl(tmp_path, "req", "-x509", *KIND, "-days", "2", *subject, "-keyout", str(key), "-out", str(cert))
    with BrokerProcess("memory:", tls_cert=cert, tls_key=key, log_level="error") as broker:
        cli = Cli(broker.url.replace("towline://127.0.0.1", "towlines://localhost"), tmp_path)
        assert cli("send", "t", "x", "--ca-file", "cert.pem").text == "t/middle/0\n"
        assert cli("send", "t", "x", "--patience", "500ms", code=1).err.startswith("error: ")
