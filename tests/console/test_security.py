"""Who gets in, and from where: login, cookies, origins, hosts, limits, and once more before something is destroyed."""

from __future__ import annotations

import gzip
import http.client
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import towline
from tests.broker.process import BrokerProcess
from tests.console.process import ConsoleProcess
from tests.console.resting_page import visitor
from tests.inside.console import TRIES, TRIES_OF_ADDRESS, Limiter
from tests.inside.ground import ManualClock

PASSWORD = "correct horse battery"


class Secured(NamedTuple):
    url: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    setup = folder / "setup"
    with BrokerProcess(store=f"file:{folder}/data", durability="os", security=True, setup_file=str(setup)) as process:
        url = f"towline://127.0.0.1:{process.port}"
        with towline.connect(url, token="setup", secret=setup.read_text().strip()) as mq:
            mq.access.create_user("root", PASSWORD, roles=["admin"])
        with towline.connect(url, token="root", secret=PASSWORD) as mq:
            mq.access.create_user("viewer", PASSWORD)
            mq.access.allow("viewer", "describe", "topic", "orders")
            mq.send("orders", b"x")
            mq.send("salaries", b"secret")
        yield Secured(url)


@pytest.fixture(scope="module")
def guarded(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(secured.url, tmp_path_factory.mktemp("guarded")) as process:
        yield process
        assert "Traceback" not in process.log, process.log


@pytest.fixture
def page(browser: Browser, guarded: ConsoleProcess) -> Iterator[Page]:
    with visitor(browser, guarded.url) as context:
        yield context.new_page()


def ask(url: str, path: str, method: str = "GET", body: str = "", **headers: str) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def login(page: Page, name: str, password: str = PASSWORD, path: str = "/") -> None:
    page.goto(path)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password or secret").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_login_leads_to_where_one_wanted_to_go_and_the_cookie_is_out_of_reach(page: Page) -> None:
    login(page, "root", path="/topics?search=ord")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    cookie = next(one for one in page.context.cookies() if one["name"] == "towline_session")
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert "towline_session" not in page.evaluate("document.cookie")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password or secret")).to_be_visible()
    page.goto("/topics")
    expect(page.get_by_label("Password or secret")).to_be_visible()


def test_the_broker_decides_what_is_seen_and_done(page: Page) -> None:
    login(page, "viewer", path="/topics")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    expect(page.get_by_role("link", name="salaries")).to_have_count(0)
    page.goto("/topics/salaries")
    expect(page.get_by_text("You may not see this")).to_be_visible()
    page.goto("/audit")
    expect(page.get_by_text("You may not see this")).to_be_visible()
    page.goto("/message/orders/middle/0")
    expect(page.get_by_text("You may not read it")).to_be_visible()
    expect(page.get_by_text("What became of it")).to_be_visible()
    page.goto("/message/salaries/middle/0")
    expect(page.get_by_text("You may not see this")).to_be_visible()


def test_what_cannot_be_undone_asks_for_the_password_once_it_is_old(page: Page, secured: Secured) -> None:
    with towline.connect(secured.url, token="root", secret=PASSWORD) as mq:
        mq.send("doomed", b"x")
    login(page, "root", path="/topics/doomed")
    page.get_by_role("button", name="More").click()
    page.get_by_text("Delete …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Type doomed")).to_be_visible()
    expect(dialog.get_by_label("Your password")).to_have_count(0)  # it was given a moment ago
    dialog.get_by_label("Type doomed").fill("doomed")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    page.goto("/audit")
    expect(page.get_by_role("row", name=re.compile("root.*DeleteTopic.*topic doomed.*done"))).to_be_visible()


def test_an_old_password_is_asked_for_again_and_a_wrong_one_destroys_nothing(
    browser: Browser, secured: Secured, tmp_path: Path
) -> None:
    with towline.connect(secured.url, token="root", secret=PASSWORD) as mq:
        mq.send("dear", b"x")
        impatient = "import towline.console.sessions as sessions\nsessions.FRESH_S = 0.0"
        with (
            ConsoleProcess(secured.url, tmp_path, script=impatient) as process,
            visitor(browser, process.url) as context,
        ):
            page = context.new_page()
            login(page, "root", path="/topics/dear")
            for password in ("wrong", PASSWORD):
                page.get_by_role("button", name="More").click()
                page.get_by_text("Delete …").click()
                dialog = page.get_by_role("dialog")
                dialog.get_by_label("Type dear").fill("dear")
                dialog.get_by_label("Your password").fill(password)
                dialog.get_by_role("button", name="Delete").click()
                if password == "wrong":
                    expect(dialog.get_by_text("that is not the password")).to_be_visible()
                    assert mq.topic("dear").config.name == "dear"
                    dialog.get_by_role("button", name="Cancel").click()
                    expect(dialog).to_have_count(0)
            expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
            assert "dear" not in [one.config.name for one in mq.topics()]


def test_an_open_page_keeps_no_login_alive_but_a_person_does(
    browser: Browser, secured: Secured, tmp_path: Path
) -> None:
    """The overview refreshes itself every three seconds."""
    hasty = "import towline.console.sessions as sessions\nsessions.IDLE_S, sessions.TIDY_S = 15.0, 1.0"
    with ConsoleProcess(secured.url, tmp_path, script=hasty) as process, visitor(browser, process.url) as context:
        page = context.new_page()
        login(page, "root")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        until_s = time.monotonic() + 25
        while time.monotonic() < until_s:
            page.keyboard.press("ArrowDown")
            page.wait_for_timeout(500)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.get_by_label("Password or secret")).to_be_visible()  # by itself, once nobody is there
        assert urlsplit(page.url).path == "/login"


def test_users_tokens_and_rules_are_made(page: Page, secured: Secured) -> None:
    login(page, "root", path="/access")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("dialog").get_by_label("Name").fill("till-7")
    page.get_by_role("dialog").get_by_role("button", name="Make it").click()
    expect(page.get_by_text("The secret of till-7")).to_be_visible()
    secret = page.get_by_role("dialog").locator(".tl-pre").inner_text()
    with towline.connect(secured.url, token="till-7", secret=secret) as mq:
        assert mq.access.who_am_i().name == "till-7"
    page.get_by_role("button", name="I have it").click()
    expect(page.get_by_role("cell", name="till-7", exact=True)).to_be_visible()


def test_wrong_passwords_are_refused_and_slowed_down(guarded: ConsoleProcess, page: Page) -> None:
    login(page, "root", "wrong")
    expect(page.get_by_role("alert")).to_have_text("The name is not known, or the password is wrong.")
    page.goto("/login")
    csrf = next(one["value"] for one in page.context.cookies() if one["name"] == "towline_csrf")
    form = urlencode({"name": "nobody", "secret": "x", "csrf": csrf})
    headers = {"Cookie": f"towline_csrf={csrf}", "Content_Type": "application/x-www-form-urlencoded"}
    statuses = [ask(guarded.url, "/login", "POST", form, **headers).status for _ in range(TRIES + 1)]
    assert statuses == [401] * TRIES + [429]
    stale = ask(guarded.url, "/login", "POST", urlencode({"name": "root", "secret": PASSWORD}), **headers)
    assert stale.status == 403


def test_after_a_minute_another_try_is_allowed() -> None:
    clock = ManualClock()
    limiter = Limiter(clock)
    for _ in range(TRIES):
        assert limiter.wait_s("10.0.0.1", "root") == 0
        limiter.failed("10.0.0.1", "root")
    assert 59 < limiter.wait_s("10.0.0.1", "root") <= 60
    assert limiter.wait_s("10.0.0.2", "root") == 0
    clock.advance(61)
    assert limiter.wait_s("10.0.0.1", "root") == 0


@pytest.mark.parametrize("address", ["10.1.2.3", "2001:db8::7"])
def test_a_right_login_forgets_the_wrong_ones_before_it(address: str) -> None:
    limiter = Limiter(ManualClock())
    for _ in range(TRIES):
        limiter.failed(address, "root")
    assert limiter.wait_s(address, "root") > 0
    limiter.succeeded(address, "root")
    assert limiter.wait_s(address, "root") == 0


def test_wrong_passwords_lock_nobody_out_who_comes_from_elsewhere() -> None:
    limiter = Limiter(ManualClock())
    for number in range(1_000):
        limiter.failed("10.0.0.1", f"name {number}")
    assert limiter.wait_s("10.0.0.1", "root") > 0
    assert limiter.wait_s("10.0.0.2", "root") == 0
    for number in range(TRIES_OF_ADDRESS - 1):
        limiter.failed("10.0.0.3", f"name {number}")
    assert limiter.wait_s("10.0.0.3", "root") == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    limiter = Limiter(ManualClock())
    for number in range(TRIES):
        limiter.failed(f"2001:db8::{number}", "root")
    assert limiter.wait_s("2001:db8::ffff", "root") > 0
    assert limiter.wait_s("2001:db8:0:1::1", "root") == 0


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", "/download/message?id=orders/middle/0", "/_nicegui_ws/socket.io/?EIO=4", "/apix", "/loginx"],
)
def test_without_a_session_there_is_only_the_login(guarded: ConsoleProcess, path: str) -> None:
    answer = ask(guarded.url, path)
    assert answer.status in (303, 401)
    if answer.status == 303:
        assert answer.headers["Location"].startswith("/login?next=")


def test_every_answer_carries_the_headers_that_protect_it(guarded: ConsoleProcess) -> None:
    headers = ask(guarded.url, "/login").headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"


def directives(answer: http.client.HTTPResponse) -> dict[str, str]:
    said = answer.headers["Content-Security-Policy"].split("; ")
    return {name: sources for name, _, sources in (one.partition(" ") for one in said)}


def test_a_page_names_its_own_scripts_and_no_others(console: ConsoleProcess, guarded: ConsoleProcess) -> None:
    seen = set()
    for headers in ({}, {"Accept_Encoding": "gzip"}, {}):
        parts = urlsplit(console.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        connection.request("GET", "/topics", headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        text = (gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body).decode()
        connection.close()
        said = directives(answer)
        found = re.fullmatch(r"'self' 'nonce-([\w-]{20,})' 'unsafe-eval'", said["script-src"])
        assert found, said
        assert (said["script-src-attr"], said["object-src"], said["base-uri"]) == ("'none'", "'none'", "'none'")
        inline = re.findall(r"<script(?![^>]* src=)([^>]*)>", text)
        assert len(inline) == 4
        assert all(f'nonce="{found[1]}"' in one for one in inline)
        seen.add(found[1])
    assert len(seen) == 3, "a number for each page"
    for path in ("/login", "/healthz", "/static/theme.css", "/api/openapi.json"):
        assert directives(ask(guarded.url, path))["script-src"] == "'self'", path


def test_scripts_that_come_into_a_page_do_not_run(page: Page) -> None:
    login(page, "root", path="/topics")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    blocked = page.evaluate(
        """() => new Promise((done) => {
            const blocked = [];
            document.addEventListener("securitypolicyviolation", (event) => {
                blocked.push(event.effectiveDirective);
                if (blocked.length === 3) done(blocked.sort());
            });
            const script = document.createElement("script");
            script.textContent = "window.ran = 'script'";
            document.body.append(script);
            const box = document.createElement("div");
            box.innerHTML = `<img src="/nowhere" onerror="window.ran = 'attribute'"><iframe src="https://example.com">`;
            document.body.append(box);
        })"""
    )
    assert blocked == ["frame-src", "script-src-attr", "script-src-elem"]
    assert page.evaluate("window.ran") is None


def test_pages_of_other_sites_reach_nothing(console: ConsoleProcess, guarded: ConsoleProcess) -> None:
    """Also not at a console that asks for no login: there it matters most."""
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    live = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    own = urlsplit(console.url).netloc
    assert ask(console.url, live, Origin="https://evil.example", **upgrade).status == 403
    assert ask(console.url, live, **upgrade).status == 403
    assert ask(console.url, live, Origin=f"http://{own}", **upgrade).status == 101
    assert (
        ask(console.url, "/_nicegui_ws/socket.io/?EIO=4&transport=polling", Origin="https://evil.example").status == 403
    )
    assert ask(console.url, "/logout", "POST", Origin="https://evil.example").status == 403
    evil = {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}
    for headers in (
        evil,
        {"Origin": "null"},
        {"Origin": f"http://{own}.evil.example"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert ask(console.url, "/api/topics/none/purge", "POST", **headers).status == 403
    for headers in ({}, {"Origin": f"http://{own}", "Sec_Fetch_Site": "same-origin"}):
        assert ask(console.url, "/api/topics/none/purge", "POST", **headers).status == 404
    assert ask(console.url, "/api/topics", Host="evil.example").status == 403
    assert ask(console.url, "/topics", Host="evil.example").status == 403
    assert ask(console.url, "/topics", Host="localhost:80").status == 200


def test_a_redirect_after_the_login_stays_here(guarded: ConsoleProcess) -> None:
    for where in ("//evil.example", "https://evil.example", "/\\evil.example"):
        page = ask(guarded.url, "/login?" + urlencode({"next": where}))
        assert page.status == 200


def test_a_broker_that_is_away_is_said(tmp_path: Path) -> None:
    with ConsoleProcess("towline://127.0.0.1:9", tmp_path, "--patience", "1s") as process:
        begin = time.monotonic()
        answer = ask(process.url, "/")
        assert answer.status == 503
        assert time.monotonic() - begin < 50
        assert ask(process.url, "/healthz").status == 200
