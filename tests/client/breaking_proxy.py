"""A road between client and broker on which connections break: after some bytes, in either direction, by chance."""

from __future__ import annotations

import random
import select
import socket
import threading

__all__ = ["RoughRoad"]


class RoughRoad:
    def __init__(self, to_port: int, seed: int, *, worst: int = 60_000) -> None:
        self._to = ("127.0.0.1", to_port)
        self._chance = random.Random(seed)
        self._worst = worst
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._smooth = False
        self._closed = False
        self._blocked = False
        self._cuts = 0
        self.breaks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"towline://127.0.0.1:{self._listener.getsockname()[1]}"

    def mend(self) -> None:
        """Nothing breaks from now on."""
        self._smooth = True

    def cut(self) -> None:
        """Break all connections that there are."""
        self._cuts += 1

    def block(self) -> None:
        """Break all connections that there are, and let none through until `unblock`."""
        self._blocked = True
        self.cut()

    def unblock(self) -> None:
        self._blocked = False

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        other: dict[socket.socket, socket.socket] = {}
        left: dict[socket.socket, int] = {}
        cuts = 0
        while not self._closed:
            ready, _, _ = select.select([self._listener, *other], [], [], 0.05)
            if cuts != self._cuts:
                cuts = self._cuts
                self._break(other)
                continue
            for sock in ready:
                if sock is self._listener:
                    self._join(other, left)
                elif sock in other and not self._carry(sock, other[sock], left):
                    twin = other.pop(sock)
                    del other[twin]
                    for end in (sock, twin):
                        end.close()
        for sock in other:
            sock.close()

    def _break(self, other: dict[socket.socket, socket.socket]) -> None:
        for sock in other:
            sock.close()
        other.clear()
        self.breaks += 1

    def _join(self, other: dict[socket.socket, socket.socket], left: dict[socket.socket, int]) -> None:
        near, _ = self._listener.accept()
        if self._blocked:
            near.close()
            return
        try:
            far = socket.create_connection(self._to)
        except OSError:
            near.close()
            return
        other[near], other[far] = far, near
        # Often early, within the greeting; seldom late.
        for sock in (near, far):
            left[sock] = int(self._worst * self._chance.random() ** 3)

    def _carry(self, sock: socket.socket, twin: socket.socket, left: dict[socket.socket, int]) -> bool:
        """False when this connection is at its end."""
        try:
            data = sock.recv(65536)
            if not data:
                return False
            if not self._smooth:
                if len(data) >= left[sock]:
                    # What was sent up to here arrives, the rest is lost.
                    twin.sendall(data[: left[sock]])
                    self.breaks += 1
                    return False
                left[sock] -= len(data)
            twin.sendall(data)
        except OSError:
            return False
        return True
