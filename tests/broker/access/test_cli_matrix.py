"""Commands × roles and rights: a sample, for a command brings its caller's token and decides nothing; test_matrix has
every request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.access.expected import BILLING, CLUSTER, SEE_ALL, Need, furnish, granted, group, hold_against, topic
from tests.broker.access.secured import Secured, secured
from tests.inside.broker import ROLES
from towline import cli
from towline.model import GroupConfig

ORDERS = topic("orders")
ADMIN: list[Need] = [("admin", CLUSTER)]
SEE: list[Need] = [("describe", CLUSTER)]
OWN: list[Need] = []
"""Anyone: it is about oneself, or holds what one may see."""
READ: list[Need] = [("consume", ORDERS), ("consume", BILLING)]


def of_group(action: str, name: str = "doomed") -> list[Need]:
    return [(action, group(name)), ("describe", ORDERS)]


COMMANDS: dict[str, tuple[str, list[Need]]] = {
    "send": ("orders x", [("send", ORDERS)]),
    "consume": ("orders -g billing --no-follow", READ),
    "topic create": ("orders", [("create", ORDERS)]),
    "topic ls": ("", OWN),
    "topic rm": ("doomed --yes", [("delete", topic("doomed"))]),
    "group reset": ("orders doomed --to latest --yes", of_group("alter")),
    "dead edit": ("orders billing 9 --key x", [("alter", BILLING), ("send", ORDERS)]),
    "tx resolve": ("{tx} commit", [("alter", CLUSTER)]),
    "alarm add": ("late age 300", [("alter", CLUSTER), *SEE_ALL]),
    "user create": ("root --no-password", ADMIN),
    "top": ("-n 1 --every 100ms", SEE),
    "backup": ("backup-{tx}", ADMIN),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("cli-matrix")
    with secured(folder, store=f"file:{folder}/data", durability="os") as one:
        furnish(one)
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors


Refused = Callable[[str, str], bool]


@pytest.fixture
def refused(
    broker: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refused:
    """Whether a command is refused to a token. It is made when it is first heard of, with the role of its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOWLINE_URL", broker.url)
    (tmp_path / "password").write_text("another long password\n")

    def refused(name: str, command: str) -> bool:
        secret = tmp_path / f"{name}.secret"
        if not secret.exists():
            secret.touch(0o600)
            broker.admin.access.revoke_token(name) if _has(broker, name) else None
            secret.write_text(broker.admin.access.create_token(name, roles=[name]).secret)
        monkeypatch.setenv("TOWLINE_TOKEN", name)
        monkeypatch.setenv("TOWLINE_SECRET_FILE", str(secret))
        capfd.readouterr()
        arguments = COMMANDS[command][0]
        if "doomed" in arguments:
            broker.admin.send("doomed", b"x")
            broker.admin.put_group(GroupConfig("orders", "doomed"))
        if "{tx}" in arguments:
            arguments = arguments.format(tx=_prepared(broker))
        code = cli.run([*command.split(), *arguments.split()])
        said = "".join(capfd.readouterr())
        assert "internal error" not in said
        if re.search(r" may not .*administrator", said):
            assert code != 0, said
            return True
        assert code != 2 or command == "check", said
        return False

    return refused


def _prepared(broker: Secured) -> str:
    """The id of a transaction that waits to be decided."""
    transaction = broker.admin.prepare("shop", "order-1")
    transaction.send("orders", b"x")
    transaction.store()
    return transaction.id


def _has(broker: Secured, name: str) -> bool:
    return any(one.name == name for one in broker.admin.access.tokens())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_with_all_its_rights_and_is_refused_without_any_one(
    broker: Secured, refused: Refused, command: str
) -> None:
    hold_against(broker, "nobody", COMMANDS[command][1], lambda: refused("nobody", command))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_use_what_its_grants_say_and_nothing_else(broker: Secured, refused: Refused, role: str) -> None:
    wrong = [command for command, (_, needs) in COMMANDS.items() if refused(role, command) == granted(role, needs)]
    assert wrong == []
