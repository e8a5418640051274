"""One connection below its requests: bytes to envelopes, flow control, time limits, and an orderly end.

    PREFACE ──► HELLO ──► OPEN ──► ENDING ──► CLOSED      and from everywhere to CLOSED when the connection is gone

In `ENDING` no request is taken any more: running ones are answered, then the last error is sent, the sending side is
shut, and further input is read and dropped. (To close with unread bytes would make the kernel throw away the answers
that are on their way.)

It is an asyncio protocol that does no I/O beyond its transport, but for small answers (`_write_at_once`), and keeps no
timers: `sweep` is called now and then, and checks the time limits. Reading stops, and with it the client, while any
`HOLD_…` reason stands.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import logging
import os
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, cast

from towline.broker.answer_budget import AnswerBudget, AnswerShare
from towline.broker.server.busy_poll import BusyPoll
from towline.clock import Patience
from towline.errors import TooManyConnections, TowlineError, Unavailable
from towline.log_lines import RateLimitedLog
from towline.model import origin_of
from towline.protocol.envelope import PREFACE, Decoder, Envelope, Scratch, encode_envelope
from towline.protocol.messages import VERSION, Answer, Failed
from towline.settings import BrokerSettings

__all__ = [
    "HELLO_MAX_BYTES",
    "HOLD_BROKER",
    "HOLD_LOGIN",
    "HOLD_PENDING",
    "HOLD_QUOTA",
    "HOLD_RUNNING",
    "LINGER_S",
    "TURN_REQUESTS",
    "Connection",
    "Remote",
    "ServerState",
    "State",
    "join_small",
]


class Remote(NamedTuple):
    address: str
    source: bytes
    """The address as it is kept beside each message: 4 bytes for IPv4, 16 for IPv6, none for anything else."""
    origin: str = "local"
    """The origin under which wrong passwords are counted."""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Remote:
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple) or len(name) < 2:
            return cls("local", b"")
        host, port = str(name[0]), name[1]
        try:
            ip = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return cls(f"{host}:{port}", b"", host)
        if isinstance(ip, ipaddress.IPv6Address):
            return cls(f"[{host}]:{port}", (ip.ipv4_mapped or ip).packed, origin_of(host))
        return cls(f"{host}:{port}", ip.packed, origin_of(host))


log = logging.getLogger("towline.server")

Buffers = Sequence[bytes | memoryview]

HELLO_MAX_BYTES = 4 << 10
"""The largest request before a client has introduced itself."""
TURN_REQUESTS = 256
"""Requests taken from a connection before it is the others' turn."""
WRITE_HIGH_BYTES = 1 << 20
"""The limit of unread answers, beyond which no requests are taken."""
TLS_HIGH_BYTES = 256 << 10
"""The transport of TLS does not tell how much it has encrypted already, so it is given only so much at a time."""
YIELD_S = 1.0
"""A connection without a Hello for this long makes room for others, if there is none left."""
REFUSED_MAX = 100
"""Connections beyond the limit that are told why they are closed; further ones are just closed."""
LINGER_S = 0.5
JOIN_BYTES = 4 << 10
"""Smaller buffers are joined before they are written, larger ones are written as they are: here both cost the same."""
GATHER_BYTES = 64 << 10
"""When answers of this size together are waiting, they are written without waiting for more."""

TLS_HELLO = b"\x16\x03"
TLS_REFUSAL = bytes([21, 3, 1, 0, 2, 2, 70])
"""An alert of TLS: not in this version, nor in any other."""

HOLD_PENDING = 1  # too many bytes are not durable yet
HOLD_RUNNING = 2  # too many requests are running
HOLD_WRITING = 4  # the client does not read its answers
HOLD_TURN = 8  # it is the others' turn
HOLD_LOGIN = 16  # its password is being checked
HOLD_QUOTA = 32  # its quota is used up
HOLD_BROKER = 64  # all connections together have too many bytes that are not durable yet
HOLD_LOOK = 128  # a request waits for a look-up before it is carried out


class State(enum.Enum):
    PREFACE = enum.auto()
    HELLO = enum.auto()
    OPEN = enum.auto()
    ENDING = enum.auto()
    CLOSED = enum.auto()


class ServerState:
    """State shared by all connections of a server."""

    def __init__(self, settings: BrokerSettings, answers: AnswerBudget) -> None:
        self.settings = settings
        self.answers = answers
        self.scratch = Scratch()
        self.strangers = RateLimitedLog(log)
        self.connections: set[Connection] = set()
        self.loop = asyncio.get_running_loop()
        self.attention = BusyPoll(self.loop)
        self.pending_bytes = 0
        """Bytes of all connections that are not durable yet."""
        self._pressed: list[Connection] = []

    def press(self, connection: Connection, size: int) -> None:
        """A connection has so many more bytes on their way to the store. Where all together have too many, those that
        bring more are not read any further, and their producers wait."""
        self.pending_bytes += size
        if self.pending_bytes > self.settings.max_pending_total_bytes:
            connection.hold(HOLD_BROKER)
            self._pressed.append(connection)

    def make_room(self) -> bool:
        """Close the oldest connection without a Hello, if there is one that had the time to send it: it must keep
        nobody out."""
        late_s = self.loop.time() - YIELD_S + self.settings.handshake_s
        some = [one for one in self.connections if one.is_silent() and one.deadline_s <= late_s]
        if not some:
            return False
        longest = min(some, key=lambda one: one.deadline_s)
        self.connections.discard(longest)
        longest.abort()
        return True

    def relieve(self, size: int) -> None:
        self.pending_bytes -= size
        if self._pressed and self.pending_bytes * 2 <= self.settings.max_pending_total_bytes:
            pressed, self._pressed = self._pressed, []
            for connection in pressed:
                connection.release(HOLD_BROKER)


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: ServerState) -> None:
        self.peer = Remote("", b"")
        self.state = State.PREFACE
        self.version = VERSION
        """Of the protocol: the highest that the client speaks as well."""
        self.server = server
        self._loop = server.loop
        self._settings = server.settings
        self._preface = b""
        self._decoder = Decoder(HELLO_MAX_BYTES, server.scratch)
        self._backlog: deque[Envelope] = deque()
        self._held = 0
        self._heard = False
        self._reading = Patience()
        self._writing = Patience()
        self._last_word = b""
        self.deadline_s = self._loop.time() + server.settings.handshake_s
        self._shut = False
        self._outgoing: list[bytes | memoryview] = []
        self._outgoing_bytes = 0
        self._queue: deque[bytes | memoryview] = deque()
        """With TLS: bytes that the transport was not given yet."""
        self._queue_bytes = 0
        self._full = False
        """The transport is full for now."""
        self._gathering = False
        self._flush_soon = False
        self._put_off = -1
        self._looking: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._descriptor = -1
        self.share: AnswerShare

    def is_silent(self) -> bool:
        """Whether it has not sent its Hello, though nothing keeps it from that."""
        return self.state in (State.PREFACE, State.HELLO) and not self._held

    @abstractmethod
    def handle(self, envelope: Envelope) -> None:
        """Take a request. In `HELLO` this is the client's first, and it opens or ends the connection."""

    @abstractmethod
    def fail(self, number: int, error: BaseException, kind: int) -> None:
        """Answer a request with an error."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a request is running that will be answered."""

    @abstractmethod
    def beat(self) -> None:
        """The client is alive. Called now and then, not for each of its requests."""

    @abstractmethod
    def gone(self) -> None:
        """The connection is gone."""

    @abstractmethod
    def who(self) -> str:
        """The client's name, for the log."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = Remote.of(transport)
        self._descriptor = _plain_descriptor(self._transport)
        self._transport.set_write_buffer_limits(high=TLS_HIGH_BYTES if self._descriptor < 0 else WRITE_HIGH_BYTES)
        _notice_dead_machines(self._transport)
        self.share = self.server.answers.share(self._unread_bytes, self._cut, self._settings.max_pending_bytes // 2)
        self.server.connections.add(self)
        over, limit = len(self.server.connections), self._settings.max_connections
        if over <= limit or self.server.make_room():
            return
        if over > limit + REFUSED_MAX:
            self._transport.abort()
        else:
            self.end(
                TooManyConnections(
                    f"this broker has its {limit} connections already: try later or another broker, close some, or "
                    "raise max_connections"
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = State.CLOSED
        self.server.connections.discard(self)
        self._backlog.clear()
        self._queue.clear()
        self._queue_bytes = 0
        self.share.close()
        self.gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer() if self.state is State.OPEN else self.server.scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.state is not State.OPEN:
            self.feed(bytes(self.server.scratch.view[:nbytes]))
            return
        self._heard = True
        try:
            envelopes = self._decoder.received(nbytes)
        except TowlineError as error:
            self.end(error)
            return
        if envelopes:
            self.server.attention.heard(self)
            self._take(envelopes)

    def feed(self, data: bytes) -> None:
        """The same as `get_buffer` and `buffer_updated`, for bytes that lie elsewhere, in any portions."""
        if self.state is State.PREFACE:
            data = self._greet(data)
        if data and self.state in (State.HELLO, State.OPEN):
            self._heard = True
            try:
                envelopes = self._decoder.feed(data)
            except TowlineError as error:
                self.end(error)
                return
            self._take(envelopes)

    def pause_writing(self) -> None:
        self._full = True
        self.hold(HOLD_WRITING)

    def resume_writing(self) -> None:
        self._full = False
        self._pour()
        self.share.count()
        self.server.answers.freed()
        if not self._full:
            self.release(HOLD_WRITING)

    def _greet(self, data: bytes) -> bytes:
        """Check the preface, however it is cut up; return what follows it."""
        missing = len(PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not PREFACE.startswith(self._preface):
            self.log_rarely(logging.INFO, "closed: this is not Towline's protocol, it begins with %r", self._preface)
            if self._preface.startswith(TLS_HELLO):
                self._transport.write(TLS_REFUSAL)  # so that the client need not guess
                self._transport.close()
            else:
                self._transport.abort()
            self.state = State.ENDING
            return b""
        if len(self._preface) == len(PREFACE):
            self.state = State.HELLO
        return data[missing:]

    # Flow control

    def _take(self, envelopes: Sequence[Envelope] = ()) -> None:
        backlog = self._backlog
        backlog.extend(envelopes)
        self._gathering = True
        for _ in range(TURN_REQUESTS):
            if self._held or not backlog:
                break
            self.handle(backlog.popleft())
        self._gathering = False
        self._flush()
        if backlog:
            if not self._held:
                self.hold(HOLD_TURN)
                self._loop.call_soon(self.release, HOLD_TURN)
        elif self._looking is None and self._decoder.broken is not None and self.state in (State.HELLO, State.OPEN):
            self.end(self._decoder.broken)  # not before a request that was put off: that came first

    @property
    def is_held(self) -> bool:
        return self._held != 0

    def hold(self, reason: int) -> None:
        if not self._held and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held |= reason

    def release(self, reason: int) -> None:
        if not self._held & reason:
            return
        self._held &= ~reason
        if not self._held:
            self._take()
        if not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def put_off(self, envelope: Envelope, look: Callable[[], Awaitable[None]] | None) -> bool:
        """If something must be looked up first, do so, and take this request again then, before those behind it."""
        if look is None or self._put_off == envelope.number:
            return False
        self._put_off = envelope.number
        self.hold(HOLD_LOOK)
        self._looking = self._loop.create_task(self._look(envelope, look))
        return True

    async def _look(self, envelope: Envelope, look: Callable[[], Awaitable[None]]) -> None:
        try:
            await look()
        except Exception as error:
            self.fail(envelope.number, error, envelope.kind)
        else:
            if self.state is State.OPEN:
                self._backlog.appendleft(envelope)
        self._looking = None
        self.release(HOLD_LOOK)
        self.finish()

    def answer(self, number: int, answer: Answer, buffers: Buffers = (), *, more: bool = False) -> None:
        """Send an answer. With `more`, others are expected in this very moment: they are gathered and written as one,
        because a write of a few bytes costs as much as all the rest of a small request."""
        outgoing = self._outgoing
        attached = sum(map(len, buffers)) if buffers else 0
        head = encode_envelope(number, answer, attached, self.version)
        outgoing.append(head)
        self._outgoing_bytes += len(head) + attached
        if buffers:
            outgoing.extend(buffers)
        elif self._gathering and self._outgoing_bytes < GATHER_BYTES:
            return
        elif more and self._outgoing_bytes < GATHER_BYTES:
            if not self._flush_soon:
                self._flush_soon = True
                self._loop.call_soon(self._flush_now)
            return
        self._flush()

    def _flush_now(self) -> None:
        self._flush_soon = False
        self._flush()

    def _flush(self) -> None:
        outgoing, size = self._outgoing, self._outgoing_bytes
        if not outgoing:
            return
        self._outgoing, self._outgoing_bytes = [], 0
        if self._shut or self._transport.is_closing():
            return
        if self._descriptor < 0:
            self._queue.extend(join_small(outgoing))
            self._queue_bytes += size
            self._pour()
            self.share.wrote(size)
            return
        if size > JOIN_BYTES:
            buffers = join_small(outgoing)
            if len(buffers) > 1:
                self._transport.writelines(buffers)
            else:
                self._transport.write(buffers[0])
            self.share.wrote(size)
            return
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        if self._transport.get_write_buffer_size():
            self._transport.write(data)
            self.share.wrote(size)
        else:
            self._write_at_once(data)

    def _pour(self) -> None:
        """Give the transport of TLS what it can pass on, in pieces."""
        queue = self._queue
        while queue and not self._full:
            piece = queue.popleft()
            if len(piece) > TLS_HIGH_BYTES:
                whole = memoryview(piece)
                piece = whole[:TLS_HIGH_BYTES]
                queue.appendleft(whole[TLS_HIGH_BYTES:])
            self._queue_bytes -= len(piece)
            self._transport.write(piece)
        if self.state is State.ENDING and not queue:
            self.finish()

    def _unread_bytes(self) -> int:
        return self._queue_bytes + self._transport.get_write_buffer_size()

    def _cut(self) -> str:
        self._transport.abort()
        return f"{self.peer.address}: {self.who()}"

    def _write_at_once(self, data: bytes | memoryview) -> None:
        """The transport would write in the next turn of the loop; where nothing waits before it, there is no need to
        wait. Errors are left to the transport."""
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0
        if written < len(data):
            self._transport.write(data[written:])
            self.share.wrote(len(data) - written)

    def sweep(self, now_s: float) -> None:
        """Check whether the client is alive, and the time limits."""
        if self.state is not State.OPEN:
            looked_at = self.state is State.HELLO and self._held & HOLD_LOGIN  # it waits for us, and not we for it
            if now_s > self.deadline_s and not looked_at:
                if self.state is not State.ENDING:
                    self.log_rarely(logging.INFO, "closed: it did not introduce itself in time")
                self._transport.abort()
            return
        # A client that we keep waiting is not to blame for its silence.
        if self._heard or self._held & ~HOLD_WRITING:
            self._heard = False
            self.beat()
        decoder, idle_s = self._decoder, self._settings.idle_s
        half_sent = 0 if self._held else decoder.pending_bytes
        came = decoder.completed * decoder.limit + half_sent if half_sent else None
        taken = self.share.taken_bytes if self._held & HOLD_WRITING else None
        if self._reading.is_over(now_s, idle_s, came):
            log.warning("%s: closed: its request stays half-sent", self.peer.address)
            self.end(Unavailable(f"the rest of a request did not come within {idle_s:g} s"))
        elif self._writing.is_over(now_s, idle_s, taken):
            log.warning("%s: closed: it does not read its answers", self.peer.address)
            self._transport.abort()

    def log_rarely(self, level: int, message: str, *arguments: object) -> None:
        self.server.strangers.say(self._loop.time(), level, f"%s: {message}", self.peer.address, *arguments)

    # Ending

    def end(
        self, error: TowlineError | None, number: int = 0, *, delay_s: float = 0, within_s: float = LINGER_S
    ) -> None:
        """Take no more requests, answer those that run, send the error, and close. It takes no longer than `within_s`
        after the delay."""
        if self.state in (State.ENDING, State.CLOSED):
            return
        self.state = State.ENDING
        self._backlog.clear()
        self.share.end(error or Unavailable("the connection ends"))
        self.deadline_s = self._loop.time() + delay_s + within_s
        if error is not None:
            self._last_word = encode_envelope(number, Failed.of(error), 0, self.version)
        if delay_s:
            self._loop.call_later(delay_s, self.finish)
        else:
            self.finish()

    def abort(self) -> None:
        self._transport.abort()

    def finish(self) -> None:
        """In `ENDING`, when nothing is running any more: send the last error, and shut the sending side."""
        if self.state is not State.ENDING or self._shut or self.is_busy() or self._transport.is_closing():
            return
        self._flush()
        if self._queue or self._shut:  # it is called again when the queue is empty
            return
        self._shut = True
        self.deadline_s = min(self.deadline_s, self._loop.time() + LINGER_S)
        if self._last_word:
            self._transport.write(self._last_word)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()


def _plain_descriptor(transport: asyncio.Transport) -> int:
    """The descriptor of the socket, where its bytes are what is sent: not with TLS."""
    sock = transport.get_extra_info("socket")
    return sock.fileno() if sock is not None and transport.get_extra_info("ssl_object") is None else -1


def _notice_dead_machines(transport: asyncio.Transport) -> None:
    """A machine that lost its power closes nothing. The kernel probes a silent one after a minute, and again."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def join_small(buffers: Buffers) -> list[bytes | memoryview]:
    """The same bytes in fewer buffers: small neighbours are joined, large ones are left where they are."""
    joined: list[bytes | memoryview] = []
    run: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < JOIN_BYTES:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined
