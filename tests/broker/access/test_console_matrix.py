"""Actions of the console × roles and rights: a sample, for what it does it does by its session's client, and it decides
nothing; test_matrix has every request. And every page × every role, asked for over HTTP, from a real console."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import urlencode, urlsplit

import pytest

from tests.broker.access.expected import BILLING, CLUSTER, SEE_ALL, Need, furnish, granted, group, hold_against, topic
from tests.broker.access.secured import Secured, secured
from tests.console.process import ConsoleProcess
from tests.inside.alarms import AlarmRule
from tests.inside.broker import ROLES
from tests.inside.client import AsyncClient as Client
from tests.inside.console import Sessions
from towline.errors import Refused, TowlineError

ORDERS = topic("orders")
ADMIN: list[Need] = [("admin", CLUSTER)]
SEE: list[Need] = [("describe", CLUSTER)]
ALTER: list[Need] = [("alter", CLUSTER)]
READ: list[Need] = [("consume", ORDERS), ("consume", BILLING)]
LOOK: list[Need] = [("describe", ORDERS)]


def of_group(action: str, name: str = "none") -> list[Need]:
    return [(action, group(name)), ("describe", ORDERS)]


ACTIONS: dict[str, tuple[Callable[[Client], Awaitable[object]], list[Need]]] = {
    "access.create_user": (lambda mq: mq.access.create_user("root", "a long password"), ADMIN),
    "access.who_am_i": (lambda mq: mq.access.who_am_i(), []),
    "browse": (lambda mq: mq.browse("orders", "middle"), [("consume", ORDERS)]),
    "create_topic": (lambda mq: mq.create_topic("orders"), [("create", ORDERS)]),
    "dead_letters": (lambda mq: mq.dead_letters("orders", "billing"), READ),
    "delete_topic": (lambda mq: mq.delete_topic("nowhere"), [("delete", topic("nowhere"))]),
    "kick": (lambda mq: mq.kick("orders", "none", "c"), of_group("alter")),
    "put_alarm": (lambda mq: mq.put_alarm(AlarmRule("late", "age", 300)), [*ALTER, *SEE_ALL]),
    "revise": (
        lambda mq: mq.revise("orders", "none", 0, body=b"y"),
        [("alter", group("none")), ("send", ORDERS)],
    ),
    "seek": (lambda mq: mq.seek("orders", "none", "latest"), of_group("alter")),
    "send": (lambda mq: mq.send("orders", b"x"), [("send", ORDERS)]),
    "transactions": (lambda mq: mq.transactions(), SEE),
}
PAGES: dict[str, list[Need]] = {
    "/": [],
    "/topics": [],
    "/topics/orders": LOOK,
    "/groups": [],
    "/groups/orders/billing": of_group("describe", "billing"),
    "/messages": [],
    "/message/orders/middle/0": LOOK,
    "/dead": [],
    "/dead?topic=orders&group=billing": READ,
    "/dead/orders/billing/0": READ,
    "/delayed": SEE,
    "/transactions": SEE,
    "/cluster": SEE,
    "/alarms": SEE,
    "/access": [],
    "/audit": ADMIN,
    "/download/message?id=orders/middle/0": [("consume", ORDERS)],
    "/download/letter?topic=orders&group=billing&number=0": READ,
    "/download/dead?topic=orders&group=billing": READ,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("console-matrix")
    with secured(folder, store=f"file:{folder}/data", durability="os") as one:
        furnish(one)
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors


class Console:
    """Sessions of the console, with a loop to run them on."""

    def __init__(self, broker: Secured) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        self._sessions = self._loop.run_until_complete(self._make())

    async def _make(self) -> Sessions:
        return Sessions(self._broker.url, {"timeout": 10.0})

    def login(self, name: str, *roles: str) -> Client:
        secret = self._broker.admin.access.create_token(name, roles=list(roles)).secret
        return self._loop.run_until_complete(self._sessions.login("127.0.0.1", name, secret)).client

    def refused(self, client: Client, action: str) -> bool:
        async def attempt() -> None:
            await ACTIONS[action][0](client)

        try:
            self._loop.run_until_complete(attempt())
        except Refused:
            return True
        except TowlineError:
            pass  # there is no such thing; but it might
        return False

    def close(self) -> None:
        self._loop.run_until_complete(self._sessions.close())
        self._loop.close()


@pytest.fixture(scope="module")
def console(broker: Secured) -> Iterator[Console]:
    one = Console(broker)
    yield one
    one.close()


@pytest.fixture(scope="module")
def nobody(console: Console) -> Client:
    return console.login("nobody")


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_works_with_all_its_rights_and_is_refused_without_any_one(
    broker: Secured, console: Console, nobody: Client, action: str
) -> None:
    hold_against(broker, "nobody", ACTIONS[action][1], lambda: console.refused(nobody, action))


@pytest.mark.parametrize("role", [*ROLES, "no-role"])
def test_a_role_may_do_what_its_grants_say_and_nothing_else(broker: Secured, console: Console, role: str) -> None:
    client = console.login(f"acts-{role}", role)
    wrong = [name for name, (_, needs) in ACTIONS.items() if console.refused(client, name) == granted(role, needs)]
    assert wrong == []


@pytest.fixture(scope="module")
def face(broker: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(broker.url, tmp_path_factory.mktemp("face")) as process:
        yield process
        assert "Traceback" not in process.log, process.log


def ask(url: str, path: str, cookie: str = "", form: dict[str, str] | None = None) -> tuple[int, str, list[str]]:
    """The status, the text, and the cookies that were set."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    kind = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
    body = urlencode(form) if form else None
    connection.request("POST" if form else "GET", path, body, {"Cookie": cookie, **kind})
    answer = connection.getresponse()
    text, cookies = answer.read().decode(), answer.headers.get_all("Set-Cookie") or []
    connection.close()
    return answer.status, text, [one.partition(";")[0] for one in cookies]


@pytest.mark.parametrize("role", [*ROLES, "no-role"])
def test_a_page_shows_what_the_role_of_whoever_looks_may_see(broker: Secured, face: ConsoleProcess, role: str) -> None:
    name = f"looks-{role}"
    secret = broker.admin.access.create_token(name, roles=[role]).secret
    _, _, [csrf] = ask(face.url, "/login")
    form = {"name": name, "secret": secret, "csrf": csrf.partition("=")[2]}
    status, _, [session] = ask(face.url, "/login", csrf, form)
    assert status == 303
    for path, needs in PAGES.items():
        status, text, _ = ask(face.url, path, session)
        denied = status in (403, 404) or "You may not see this" in text
        assert denied != granted(role, needs), (role, path, status)
        assert denied or status == 200, (path, status)
    broker.admin.access.revoke_token(name)
    for path in ("/topics/orders", "/cluster", "/download/message?id=orders/middle/0"):
        status, text, _ = ask(face.url, path, session)
        assert status != 200 or "not let in any more" in text or "This did not work" in text, (path, "after it")
