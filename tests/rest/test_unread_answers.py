"""Answers that are asked for and not read, and searches that come all at once."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.eventually import eventually
from tests.inside.console import UNREAD_MAX_BYTES
from tests.inside.frame import encode
from tests.inside.protocol import FrameHead, Send, Sent
from tests.rest.process import Http, rest_process

BODY_BYTES = 12 << 20
FOUND = 5
CUT = 4
MANY = UNREAD_MAX_BYTES // (FOUND * BODY_BYTES) + CUT
ROOM_MB = 900


def peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_answers_that_nobody_reads_are_bounded_and_so_is_what_is_found_at_once() -> None:
    frame = encode([b"x" * BODY_BYTES], keys=["k"], compress=True)
    with BrokerProcess() as broker, RawClient.hello(broker.port) as client:
        for _ in range(FOUND):
            client.call(Send([FrameHead("orders", 1, len(frame))]), Sent, frame)
        with rest_process(f"towline://127.0.0.1:{broker.port}") as (process, door), Http(door) as http:
            with ThreadPoolExecutor(MANY) as pool:
                found = pool.map(lambda _: len(http("GET", "/topics/orders/find", key="k")["messages"]), range(MANY))
                assert set(found) == {FOUND}
            assert peak_mb(process.pid) <= ROOM_MB
            where = urlsplit(door)
            request = f"GET /api/topics/orders/find?key=k HTTP/1.1\r\nHost: localhost:{where.port}\r\n\r\n"
            before = files(process.pid)
            with ExitStack() as stack:
                for _ in range(MANY):
                    sock = stack.enter_context(socket.create_connection((str(where.hostname), where.port or 0)))
                    sock.sendall(request.encode())
                eventually(lambda: files(process.pid) == before + MANY)
                eventually(lambda: files(process.pid) <= before + MANY - CUT)
                assert len(http("GET", "/topics/orders/find", key="k", limit=1)["messages"]) == 1
            assert peak_mb(process.pid) <= ROOM_MB
