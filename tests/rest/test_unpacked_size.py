"""Messages that are small where they are stored and large where they are looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.inside.client import messages
from tests.inside.console import HELD_BYTES
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
        with rest_door(f"towline://127.0.0.1:{broker.port}") as door, Http(door) as one:
            yield one


def test_what_is_found_fits_into_memory(http: Http) -> None:
    """A hundred of these were put together to one answer of gigabytes, and the process died."""
    said = http("GET", "/topics/orders/find", key="k", status=413)
    assert f"more than {messages.FOUND_BYTES:,} bytes were found" in said["message"]
    assert len(http("GET", "/topics/orders/find", key="k", limit=2)["messages"]) == 2


def test_what_is_pulled_and_not_settled_fits_into_memory(http: Http) -> None:
    receipts = []
    for _ in range(HELD_BYTES // 2 // BODY_BYTES + 1):
        receipts += [
            one["receipt"] for one in http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1})["messages"]
        ]
    said = http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1}, status=429)
    assert "were pulled here by you and not settled" in said["message"]
    assert http("POST", "/ack", {"receipts": receipts})["settled"] == len(receipts)
    assert http("POST", "/topics/orders/groups/g/pull", {"max_messages": 1})["messages"]
