"""Requests that never come whole, at every door that speaks HTTP: they are closed in time, and others are served."""

from __future__ import annotations

import select
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import uvicorn
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.broker.monitor.test_metrics import address_of
from tests.broker.process import BrokerProcess
from tests.console.process import ConsoleProcess
from tests.eventually import eventually
from tests.inside.console import BODY_S, CONNECTIONS_OF_ADDRESS, HEAD_MAX_BYTES, HEAD_S, HttpConnection, HttpServer
from tests.inside.ground import ConnectionLimit
from tests.rest.process import rest_door

DEADLINE_S = 60.0
MANY = CONNECTIONS_OF_ADDRESS + 60
ELSEWHERE = "127.0.0.9"
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half:"


class Door(NamedTuple):
    address: tuple[str, int]
    path: str
    """Where it says that it is well."""


@contextmanager
def opened(kind: str, folder: pytest.TempPathFactory) -> Iterator[Door]:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(metrics="127.0.0.1:0"))
        url = f"towline://127.0.0.1:{broker.port}"
        if kind == "metrics":
            found, path = address_of(broker), "/metrics"
        elif kind == "rest":
            found, path = stack.enter_context(rest_door(url)), "/api/openapi.json"
        else:
            found, path = stack.enter_context(ConsoleProcess(url, folder.mktemp("console"))).url, "/healthz"
        where = urlsplit(found)
        assert where.hostname
        assert where.port
        yield Door((where.hostname, where.port), path)


@pytest.fixture(scope="module", params=["rest", "console", "metrics"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with opened(request.param, tmp_path_factory) as door:
        yield door


@pytest.fixture(scope="module", params=["rest", "console"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with opened(request.param, tmp_path_factory) as door:
        yield door


def begin(door: Door, data: bytes, host: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(door.address, timeout=DEADLINE_S, source_address=(host, 0))
    sock.sendall(data)
    return sock


def answer(sock: socket.socket) -> bytes:
    """All that is said until it is closed."""
    said = b""
    try:
        while data := sock.recv(1 << 16):
            said += data
    except ConnectionError:
        pass
    return said


def get(door: Door, host: str = "127.0.0.1") -> bytes:
    request = f"GET {door.path} HTTP/1.1\r\nHost: localhost:{door.address[1]}\r\nConnection: close\r\n\r\n"
    with begin(door, request.encode(), host) as sock:
        return answer(sock)


def status(said: bytes) -> bytes:
    return said.partition(b"\r\n")[0].partition(b" ")[2][:3]


def test_half_requests_keep_nobody_out_and_are_closed_in_time(door: Door) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        half = [stack.enter_context(begin(door, HALF)) for _ in range(MANY)]
        assert status(get(door, ELSEWHERE)) == b"200"
        eventually(lambda: status(get(door)) == b"200", DEADLINE_S)
        said = [status(answer(sock)) for sock in half]
    assert set(said) <= {b"408", b"429", b""}, set(said)
    assert said.count(b"408") >= CONNECTIONS_OF_ADDRESS // 2
    assert time.monotonic() - began < HEAD_S + DEADLINE_S


def test_a_head_that_drips_in_is_closed(door: Door) -> None:
    with begin(door, HALF) as sock:
        while not select.select([sock], [], [], 0.1)[0]:
            sock.sendall(b"x")
        assert status(answer(sock)) == b"408"


def test_a_second_head_on_a_connection_is_closed_as_well(app: Door) -> None:
    request = f"GET {app.path} HTTP/1.1\r\nHost: localhost:{app.address[1]}\r\n\r\n"
    with begin(app, request.encode()) as sock:
        assert status(sock.recv(1 << 16)) == b"200"
        sock.sendall(HALF)
        assert b"408" in answer(sock)


def test_a_body_that_does_not_come_is_closed_and_one_that_comes_slowly_is_not(app: Door) -> None:
    head = (
        f"POST /api/ack HTTP/1.1\r\nHost: localhost:{app.address[1]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {16 << 20}\r\nConnection: close\r\n\r\n"
    ).encode()
    with begin(app, head + b"{") as still, begin(app, head + b"{") as slow:
        began, sent = time.monotonic(), 1
        while not select.select([still], [], [], 0.3)[0]:
            slow.sendall(bytes(20_000))
            sent += 20_000
        assert status(answer(still)) == b"408"
        assert time.monotonic() - began > BODY_S - 1
        slow.sendall(bytes((16 << 20) - sent))
        assert status(answer(slow)) not in (b"408", b"")


def test_a_head_that_is_too_large_is_refused(app: Door) -> None:
    with begin(app, HALF + bytes(b"x" * (HEAD_MAX_BYTES + 1))) as sock:
        assert status(answer(sock)) in (b"431", b"400")


def test_a_page_stays_connected(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its websocket outlives all time limits of requests."""
    with opened("console", tmp_path_factory) as console:
        origin = "http://{}:{}".format(*console.address)
        where = f"{origin.replace('http', 'ws', 1)}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        with connect(where, origin=Origin(origin), proxy=None) as page, ExitStack() as stack:
            assert str(page.recv(DEADLINE_S)).startswith("0{")
            half = [stack.enter_context(begin(console, HALF)) for _ in range(MANY)]
            for sock in half:
                answer(sock)
            assert page.ping().wait(DEADLINE_S)
            assert urllib.request.urlopen(f"{origin}/healthz").status == 200


async def test_a_connection_that_is_only_being_made_does_not_end_the_watch_over_the_others() -> None:
    config = uvicorn.Config(_says_nothing, lifespan="off", log_level="error")
    server = HttpServer(config, ConnectionLimit[HttpConnection](10, 10))
    config.load()
    server.lifespan = config.lifespan_class(config)
    server._connection()
    server._sweep()
    assert server._sweeper is not None
    server._sweeper.cancel()


async def _says_nothing(scope: object, receive: object, send: object) -> None: ...
