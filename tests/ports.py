"""Ports that nobody else takes, also while no server of the test listens there."""

from __future__ import annotations

import atexit
import socket

__all__ = ["free_port", "free_ports"]

_held: list[socket.socket] = []


def free_port() -> int:
    """A port for this process alone, until it ends. Who connects is refused until a server of the test listens there.

    The socket stays bound, so that the system gives the port to no other; a server may share it, for it sets
    SO_REUSEADDR as this does. A port that was only looked up could be anybody's a moment later.
    """
    _held.append(socket.socket())
    _held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held[-1].bind(("127.0.0.1", 0))
    port: int = _held[-1].getsockname()[1]
    return port


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


@atexit.register
def _let_go() -> None:
    for one in _held:
        one.close()
