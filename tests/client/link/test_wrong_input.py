"""What makes no sense is refused with words that say what it was."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import towline
from towline.errors import BadRequest, ProtocolError, TooLarge

Ask = Callable[[Any], object]


@pytest.fixture(scope="module")
def mq() -> Iterator[towline.Client]:
    with towline.connect("memory:") as client:
        client.create_topic("orders")
        yield client


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda mq: mq.send(5, b""), TypeError, "a topic's name is a str, not int"),
        (lambda mq: mq.consumer("orders", group=5), TypeError, "a group's name is a str, not int"),
        (lambda mq: mq.send("orders", b"", delay="10"), TypeError, "a delay is a number of seconds, not str"),
        (lambda mq: mq.send("orders", b"", deliver_at="2027"), TypeError, "a time is a datetime or .*, not str"),
        (lambda mq: mq.send("orders", b"", durability=7), BadRequest, "durability 7 is not one of fsync, os"),
        (lambda mq: mq.send("orders", b"", durability=[]), BadRequest, r"durability \[\] is not one of fsync, os"),
        (lambda mq: mq.find("orders", key="k" * 9_000), BadRequest, "a key of 9000 characters: those of up to 8192"),
        (lambda mq: mq.delayed("orders", key="k" * 9_000), BadRequest, "a key of 9000 characters"),
        (lambda mq: mq.cancel("orders", key="k" * 9_000), BadRequest, "a key of 9000 characters"),
        (lambda mq: mq.send("orders", bytes(20 << 20)), TooLarge, r"a message of 20971520 bytes .*\(max_frame_bytes\)"),
        (lambda mq: mq.send("orders", bytes(65 << 20)), TooLarge, "at most 67108864 bytes: .* or a smaller one"),
    ],
)
def test_an_error_says_what_was_wrong(mq: towline.Client, ask: Ask, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ask(mq)


def test_the_port_of_a_web_server_is_told_from_a_brokers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(8)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                while peer.recv(1 << 16):
                    pass

        threading.Thread(target=answer, daemon=True).start()
        with (
            pytest.raises(ProtocolError, match=r"speaks HTTP: is it the port of the web console\?"),
            towline.connect(f"towline://127.0.0.1:{server.getsockname()[1]}") as mq,
        ):
            mq.send("orders", b"")
