"""How long a blocking read takes at most, and who ends it."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from towline.client.link.transport import PlainTransport


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def kernel_ends_after(sock: socket.socket) -> float:
    seconds, microseconds = struct.unpack("@ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    return float(seconds + microseconds / 1e6)


def test_a_short_read_is_ended_by_the_kernel_soon_and_a_long_one_after_it_is_not(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    transport = PlainTransport(ours)
    assert kernel_ends_after(ours) == 1.0
    assert transport.read(0.005) is None
    assert kernel_ends_after(ours) <= 0.005, "it must not take longer than it may"
    assert transport.read(60.0) is None, "now and then it comes back earlier"
    assert kernel_ends_after(ours) == 1.0, "but it does not wake up again and again"
    theirs.sendall(b"abc")
    assert transport.read(0.005) == b"abc"


def test_one_who_only_looks_does_not_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    transport = PlainTransport(ours)
    assert transport.read(0.0) is None
    assert kernel_ends_after(ours) == 1.0
    theirs.sendall(b"abc")
    assert transport.read(0.0) == b"abc"


def test_a_read_in_between_sleeps_once_for_all_of_its_time(pair: tuple[socket.socket, socket.socket]) -> None:
    transport = PlainTransport(pair[0])
    begun = time.monotonic()
    assert transport.read(0.1) is None
    assert time.monotonic() - begun >= 0.1
    assert kernel_ends_after(pair[0]) == 1.0
