"""Messages that are small where they are stored and large where they are looked at."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.inside.client import messages
from tests.inside.console import HELD_BYTES, TIDY_S
from tests.inside.frame import encode
from tests.inside.protocol import FrameHead, Send, Sent
from tests.rest.process import Http, rest_door

BODY_BYTES = 12 << 20
"""Of a body that is packed into 2 kB."""


@pytest.fixture(scope="module")
def http() -> Iterator[Http]:
    frame = encode([b"x" * BODY_BYTES], keys=["k"], compress=True)
    with BrokerProcess() as broker, RawClient.hello(broker.port) as client:
        for _ in range(HELD_BYTES // 2 // BODY_BYTES + 3):
            client.call(Send([FrameHead("orders", 1, len(frame))]), Sent, frame)
        count = HELD_BYTES // BODY_BYTES
        headers = encode([b""] * count, headers=[{"h": "x" * (BODY_BYTES // count)}] * count, compress=True)
        client.call(Send([FrameHead("headers", 1, len(headers))]), Sent, headers)
        with rest_door(f"towline://127.0.0.1:{broker.port}") as door, Http(door) as one:
            yield one


def test_what_is_found_fits_into_memory(http: Http) -> None:
    """A hundred of these were put together to one answer of gigabytes, and the process died."""
    said = http("GET", "/topics/orders/find", key="k", status=413)
    assert f"more than {messages.FOUND_BYTES:,} bytes were found" in said["message"]
    assert len(http("GET", "/topics/orders/find", key="k", limit=2)["messages"]) == 2


def test_messages_of_a_frame_that_is_kept_whole_for_each_of_them_fit_into_memory(http: Http) -> None:
    """Their bodies are nothing, and so is what is stored: the headers are as large as the frame."""
    receipts: list[str] = []
    while len(receipts) < HELD_BYTES // BODY_BYTES:
        pulled = http.request("POST", "/topics/headers/groups/g/pull", json={"max_messages": 1})
        if pulled.status_code == 429:
            break
        receipts += [one["receipt"] for one in pulled.json()["messages"]]
    assert 0 < len(receipts) <= HELD_BYTES // 2 // BODY_BYTES + 1
    assert http("POST", "/ack", {"receipts": receipts})["settled"] == len(receipts)


def test_what_is_pulled_and_not_settled_fits_into_memory(http: Http) -> None:
    receipts = []
    for _ in range(HELD_BYTES // 2 // BODY_BYTES + 1):
        receipts += [
            one["receipt"] for one in http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1})["messages"]
        ]
    said = http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1}, status=429)
    assert "were pulled here by you and not settled" in said["message"]
    time.sleep(4 * TIDY_S)  # whatever is done with a caller that was refused is done by then
    assert http("POST", "/ack", {"receipts": receipts})["settled"] == len(receipts)
    assert http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1})["messages"]
