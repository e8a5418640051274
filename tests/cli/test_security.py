"""`towline user`, `token`, `acl` and `audit`: from the setup secret to a program that may do one thing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.inside.load import BrokerProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "towline.toml").write_text("security = true\n")
    with BrokerProcess(f"file:{folder}/data", config=folder / "towline.toml", log_level="warning") as process:
        yield process, folder


def test_from_the_setup_secret_to_a_program_that_may_do_one_thing(guarded: tuple[BrokerProcess, Path]) -> None:
    broker, folder = guarded
    cli = Cli(broker.url, folder)
    setup = ("--token", "setup", "--secret-file", "data/setup-secret")
    (folder / "root.password").write_text("a long password\n")
    cli("user", "create", "root", "--role", "admin", "--password-file", "root.password", *setup)
    assert not (folder / "data" / "setup-secret").exists()
    root = {"TOWLINE_TOKEN": "root", "TOWLINE_SECRET_FILE": "root.password"}
    [user] = cli("user", "ls", "-o", "json", env=root).lines
    assert (user["user"], user["roles"], user["has_password"]) == ("root", ["admin"], True)
    made = cli("token", "create", "shop", "--expires", "90d", "--secret-to", "shop.secret", "-o", "json", env=root).line
    assert "secret" not in made
    assert (folder / "shop.secret").stat().st_mode & 0o777 == 0o600
    shop = {"TOWLINE_TOKEN": "shop", "TOWLINE_SECRET_FILE": "shop.secret"}
    assert "may not send topic orders" in cli("send", "orders", "x", env=shop, code=1).err
    rule = cli("acl", "allow", "shop", "*", "topic", "orders*", "-o", "json", env=root).line["id"]
    assert "no user, token or role yet" in cli("acl", "allow", "shopp", "send", "topic", env=root).err
    assert "no user, token or role yet" in cli("acl", "deny", "role:clerk", "send", "topic", env=root).err
    for known in ("shop", "role:producer", "*"):
        assert cli("acl", "deny", known, "delete", "topic", env=root).err == ""
    assert cli("send", "orders", "x", env=shop).text == "orders/middle/0\n"
    assert cli("acl", "check", "consume", "group", "g", env=shop, code=1).text == "shop may not consume group g\n"
    assert next(iter(cli("acl", "ls", "shop", "-o", "json", env=root).lines))["id"] == rule
    cli("token", "revoke", "shop", made["secret_id"], env=root)
    assert "not right" in cli("topic", "ls", env=shop, code=1).err
    told = cli("audit", "ls", "-o", "json", "--actor", "shop", env=root).lines
    assert {(one["what"], one["outcome"]) for one in told} == {("Send", "refused"), ("login", "refused")}
    assert cli("audit", "verify", "data/audit.jsonl").text.endswith("each follows from the one before\n")


def test_mistakes_are_told_as_such(guarded: tuple[BrokerProcess, Path], tmp_path: Path) -> None:
    broker, _ = guarded
    cli = Cli(broker.url, tmp_path)
    assert cli("topic", "ls", "--token", "x", "--secret-file", "missing", code=2).err == (
        "error: secret file missing: No such file or directory\n"
    )
    assert cli("user", "create", "x", "--password-file", "none", code=2).err.startswith("error: password file none")
    assert cli("audit", "verify", "none", code=2).err.startswith("error: audit log none")
    assert "not listening on" in cli("serve", "--store", "memory:", "--listen", "0.0.0.0:0", code=2).err


def test_plain_where_tls_is_spoken_ends_at_once(tmp_path: Path) -> None:
    """What listens closes without a word, as a port with TLS does upon plain bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=close_all, daemon=True).start()
        cli = Cli(f"towline://127.0.0.1:{listener.getsockname()[1]}", tmp_path)
        assert "towlines://" in cli("topic", "ls", "--patience", "25s", code=1).err
