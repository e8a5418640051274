"""Blocking sockets, plain and TLS: the few lines that move bytes for the blocking client.

One thread reads at a time, and one writes at a time; reading and writing may happen at once.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from towline.client.link.connection import Buffer
from towline.frame.spare import SPARE

__all__ = ["PlainTransport", "TlsTransport", "Transport", "make_transport", "wait_for"]

_TICK_S: Final = 1.0
_SHORT_TICK_S: Final = 0.004
"""A read that may take longer than one of these needs no poll beforehand: the kernel ends it after this long."""
_SMALL: Final = 64 << 10
_LARGE: Final = 1 << 20
_RECORD: Final = 16 << 10
_JOIN: Final = 32 << 10
_MAX_BUFFERS: Final = 512
_QUICK_S: Final = 0.0003
"""An answer that took less than this is expected to do so again: the next one is first polled for without sleeping. A
thread that sleeps has to be woken, and on an idle processor that takes longer than the broker's whole work."""
_SPIN: Final = (os.cpu_count() or 1) > 1
_STALLED_S: Final = 30.0
"""A peer that takes nothing for this long is given up."""


class Transport(Protocol):
    def read(self, timeout_s: float) -> Buffer | None:
        """Received bytes: b"" at the end of the stream, None when nothing came in time (or, now and then, earlier)."""

    def write(self, buffers: Sequence[Buffer], on_stall: Callable[[], bool], deadline: float = math.inf) -> None:
        """Write all of it. While the peer takes no more, `on_stall` is called when there is something to read: it may
        read, lest both sides only write; it returns whether it did. `TimeoutError` if it is not all taken by the
        deadline: then nothing that follows would make sense to the peer."""

    def readable(self, timeout_s: float, also: int = -1) -> bool:
        """Wait until there is something to read, here or on the descriptor `also`; True if it is here."""

    def takes_more(self) -> bool:
        """Whether a few bytes can be written at once."""

    def shut_down(self) -> None:
        """End the stream, so that a thread that reads comes back. The descriptor stays valid until `close`."""

    def close(self) -> None: ...


def make_transport(sock: socket.socket) -> Transport:
    return TlsTransport(sock) if isinstance(sock, ssl.SSLSocket) else PlainTransport(sock)


def wait_for(fd: int, events: int, timeout_s: float, also: int = -1) -> int:
    """The events on `fd` that came true within the time; 0 if none did, or if `also` became readable first."""
    poll = select.poll()
    poll.register(fd, events)
    if also >= 0:
        poll.register(also, select.POLLIN)
    # Rounded up: a wait of 0.4 ms must not become a busy loop. But a mere look does not wait.
    timeout_ms = timeout_s * 1000 + 0.999 if timeout_s > 0 else 0
    return next((seen for found, seen in poll.poll(timeout_ms) if found == fd), 0)


class PlainTransport:
    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._sock = sock
        self._set_tick(_TICK_S)
        self._size = _SMALL
        self._quick = False
        self._read_at = 0.0

    def read(self, timeout_s: float) -> Buffer | None:
        sock = self._sock
        # One system call where the wait may be long, which is the rule; two where it must end sooner.
        if timeout_s < self._tick_s and not self._may_wait(timeout_s):
            return None
        begun = time.perf_counter()
        # Only for a caller that asks again as soon as it is answered; anyone else leaves the processor to others.
        data = self._spin(begun + _QUICK_S) if self._quick and begun - self._read_at < _QUICK_S else None
        if data is None:
            try:
                data = sock.recv(_SMALL) if self._size == _SMALL else self._read_much()
            except BlockingIOError:
                self._quick = False
                if self._tick_s < _TICK_S and timeout_s >= 2 * self._tick_s:
                    self._set_tick(_TICK_S)
                return None
        self._read_at = time.perf_counter()
        self._quick = _SPIN and self._read_at - begun < _QUICK_S
        self._size = _LARGE if len(data) >= _SMALL else _SMALL
        return data

    def _set_tick(self, seconds: float) -> None:
        """Let the kernel end a read after this long."""
        self._tick_s = seconds
        whole = int(seconds)
        timeout = struct.pack("@ll", whole, round((seconds - whole) * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def _may_wait(self, timeout_s: float) -> bool:
        """Whether to read now, which takes no longer than the time, or finds something at once."""
        if _SHORT_TICK_S <= timeout_s < 2 * _SHORT_TICK_S:  # more of them in a row would only wake us up in between
            self._set_tick(_SHORT_TICK_S)
            return True
        return bool(wait_for(self._sock.fileno(), select.POLLIN, timeout_s))

    def _read_much(self) -> memoryview:
        """More of a large answer, into memory that is used again."""
        room = SPARE.view(_LARGE)
        return room[: self._sock.recv_into(room)]

    def _spin(self, deadline: float) -> Buffer | None:
        """Poll again and again, but let others run in between."""
        recv, size = self._sock.recv, self._size
        while True:
            try:
                return recv(size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() > deadline:
                    return None
                os.sched_yield()

    def readable(self, timeout_s: float, also: int = -1) -> bool:
        return bool(wait_for(self._sock.fileno(), select.POLLIN, timeout_s, also))

    def write(self, buffers: Sequence[Buffer], on_stall: Callable[[], bool], deadline: float = math.inf) -> None:
        sock = self._sock
        size = sum(map(len, buffers))
        if size <= _JOIN:
            # One system call and no vector of buffers: this is how single sends go.
            data = b"".join(buffers)
            try:
                sent = sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if sent == size:
                return
            buffers = [memoryview(data)[sent:]]
        self._write_all([memoryview(buffer) for buffer in buffers], on_stall, deadline)

    def _write_all(self, views: list[memoryview], on_stall: Callable[[], bool], deadline: float) -> None:
        sock = self._sock
        while views:
            try:
                sent = sock.sendmsg(views[:_MAX_BUFFERS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                _await_room(sock, on_stall, deadline)
                continue
            done = 0
            while done < len(views) and sent >= len(views[done]):
                sent -= len(views[done])
                done += 1
            views = views[done:]
            if sent:
                views[0] = views[0][sent:]

    def takes_more(self) -> bool:
        return bool(wait_for(self._sock.fileno(), select.POLLOUT, 0.0))

    def shut_down(self) -> None:
        _shut_down(self._sock)

    def close(self) -> None:
        self._sock.close()


class TlsTransport:
    """OpenSSL's state must not be used by two threads at once: the lock is held for each call into it, but never while
    waiting."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()

    def read(self, timeout_s: float) -> Buffer | None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with self._lock:
                    return self._read_some()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            if not wait_for(self._sock.fileno(), events, deadline - time.monotonic()):
                return None

    def _read_some(self) -> bytes:
        """OpenSSL gives at most 16 KiB at a time; read all there is."""
        data = self._sock.recv(_LARGE)
        if len(data) < _RECORD:
            return data
        chunks, size = [data], len(data)
        try:
            while data and size < _LARGE:
                data = self._sock.recv(_LARGE)
                chunks.append(data)
                size += len(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return b"".join(chunks)

    def readable(self, timeout_s: float, also: int = -1) -> bool:
        with self._lock:
            if self._sock.pending():
                return True
        return bool(wait_for(self._sock.fileno(), select.POLLIN, timeout_s, also))

    def write(self, buffers: Sequence[Buffer], on_stall: Callable[[], bool], deadline: float = math.inf) -> None:
        view = memoryview(b"".join(buffers))
        while view:
            try:
                with self._lock:
                    sent = self._sock.send(view[:_LARGE])
                view = view[sent:]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                _await_room(self._sock, on_stall, deadline)

    def takes_more(self) -> bool:
        return bool(wait_for(self._sock.fileno(), select.POLLOUT, 0.0))

    def shut_down(self) -> None:
        _shut_down(self._sock)

    def close(self) -> None:
        self._sock.close()


def _await_room(sock: socket.socket, on_stall: Callable[[], bool], deadline: float) -> None:
    """Wait until the peer takes more, reading its answers meanwhile."""
    deadline = min(deadline, time.monotonic() + _STALLED_S)
    events = select.POLLIN | select.POLLOUT
    while True:
        seen = wait_for(sock.fileno(), events, deadline - time.monotonic())
        if not seen:
            raise TimeoutError("the broker takes no more bytes")
        if seen & ~select.POLLIN:
            return
        if not on_stall():
            # Another thread reads.
            events = select.POLLOUT


def _shut_down(sock: socket.socket) -> None:
    try:
        # Not SSLSocket's own: that one forgets its state, which another thread may be using.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass
