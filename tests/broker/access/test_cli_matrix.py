"""Every command × every role and right. The table is written by hand; the commands are read off the program, so that
one without an entry fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cyclopts import App

from tests.broker.access.expected import BILLING, CLUSTER, SEE_ALL, Need, furnish, granted, group, hold_against, topic
from tests.broker.access.secured import Secured, secured
from towline import cli
from towline.broker.access.rules import ROLES
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
    "find": ("orders --key k", [("consume", ORDERS)]),
    "trace": ("orders/middle/0 --group billing", [("describe", ORDERS), ("describe", BILLING)]),
    "topic create": ("orders", [("create", ORDERS)]),
    "topic edit": ("orders --retention 1d", [("alter", ORDERS)]),
    "topic ls": ("", OWN),
    "topic info": ("orders", [("describe", ORDERS)]),
    "topic rm": ("doomed --yes", [("delete", topic("doomed"))]),
    "topic purge": ("doomed --yes", [("delete", topic("doomed"))]),
    "group reset": ("orders doomed --to latest --yes", of_group("alter")),
    "group pause": ("orders doomed", of_group("alter")),
    "group resume": ("orders doomed", of_group("alter")),
    "group ls": ("", OWN),
    "group lag": ("", OWN),
    "group info": ("orders billing", of_group("describe", "billing")),
    "group create": ("orders billing", of_group("alter", "billing")),
    "group rm": ("orders doomed --yes", of_group("delete")),
    "dead ls": ("orders billing", READ),
    "dead count": ("orders billing", READ),
    "dead show": ("orders billing 0", READ),
    "dead resend": ("orders doomed 0", of_group("alter")),
    "dead edit": ("orders billing 9 --key x", [("alter", BILLING), ("send", ORDERS)]),
    "dead export": ("orders billing", READ),
    "dead purge": ("orders doomed --before 0 --yes", of_group("delete")),
    "delay ls": ("orders", [("describe", ORDERS)]),
    "delay cancel": ("orders orders/delay/9", [("send", ORDERS)]),
    "delay move": ("orders orders/delay/9 --delay 1h", [("send", ORDERS)]),
    "tx ls": ("", SEE),
    "tx resolve": ("{tx} commit", [("alter", CLUSTER)]),
    "alarm ls": ("", SEE),
    "alarm add": ("late age 300", [("alter", CLUSTER), *SEE_ALL]),
    "alarm rm": ("none --yes", [("alter", CLUSTER)]),
    "alarm test": ("none", [("alter", CLUSTER)]),
    "alarm silence": ("none --for 1h --reason x", [("alter", CLUSTER)]),
    "alarm unsilence": ("none", [("alter", CLUSTER)]),
    "user ls": ("", ADMIN),
    "user create": ("root --no-password", ADMIN),
    "user edit": ("none --disable", ADMIN),
    "user password": ("none --password-file password", ADMIN),
    "user rm": ("none --yes", ADMIN),
    "token ls": ("root", ADMIN),
    "token create": ("xxxx --owner none", ADMIN),
    "token rotate": ("none", ADMIN),
    "token revoke": ("none", ADMIN),
    "acl ls": ("", ADMIN),
    "acl roles": ("", ADMIN),
    "acl allow": ("none send topic", ADMIN),
    "acl deny": ("none send topic", ADMIN),
    "acl rm": ("999999", ADMIN),
    "acl check": ("send topic orders", OWN),
    "audit ls": ("", ADMIN),
    "clients": ("", SEE),
    "cluster ls": ("", OWN),
    "cluster check": ("", OWN),
    "cluster forget": ("none", ADMIN),
    "cluster close-connection": ("none", ADMIN),
    "top": ("-n 1 --every 100ms", SEE),
    "check": ("", SEE),
    "backup": ("backup-{tx}", ADMIN),
}
ELSEWHERE = {
    "run": "the handlers of an app; it consumes as its token may (test_matrix: Attach, Pull, Settle)",
    **dict.fromkeys(
        ("serve", "restore", "log stat", "log verify", "log dump", "version", "audit verify"), "no broker is asked"
    ),
    **dict.fromkeys(("console", "rest"), "whoever calls says who they are: test_console_matrix, test_rest_matrix"),
    **dict.fromkeys(
        ("bench produce", "bench consume", "bench pubsub", "bench latency"), "sends and consumes: as `send`, `consume`"
    ),
    **dict.fromkeys(
        (
            *("spark archive", "spark archive verify", "spark archive ls", "spark replay", "spark trace"),
            *("spark report", "spark reconcile"),
        ),
        "folders, or Scan, Survey, Stage and Publish of test_matrix",
    ),
}


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    if app.default_command is not None and path:
        yield " ".join(path)
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], (*path, name))


def test_every_command_is_in_the_table() -> None:
    assert sorted(commands(cli.app)) == sorted([*COMMANDS, *ELSEWHERE])


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
