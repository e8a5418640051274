"""The blocking driver's sockets: none is left open, whenever it is closed."""

from __future__ import annotations

import socket
import threading

from towline.client.connection import Call, Connection
from towline.client.dial import Route
from towline.client.link import Link
from towline.client.url import parse_url
from towline.errors import Closed
from towline.protocol.messages import Beat


def test_a_socket_that_opens_while_the_client_is_closed_is_closed_as_well() -> None:
    ours, theirs = socket.socketpair()
    dialling, closed = threading.Event(), threading.Event()

    def dial(route: Route, timeout_s: float) -> socket.socket:
        dialling.set()
        assert closed.wait(60)
        return ours

    link = Link(Route(parse_url("towline://127.0.0.1:1")), dial, Connection(), 60.0)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            link.ask(Call(Beat()))
        except Closed as error:
            raised.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    assert dialling.wait(60)
    closer = threading.Thread(target=link.close)
    closer.start()
    assert link._closing.wait(60)
    closed.set()
    asker.join(60)
    closer.join(60)
    assert raised
    assert ours.fileno() == -1
    theirs.close()
