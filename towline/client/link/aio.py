"""The asyncio driver: one connection on an event loop. The counterpart of `link`."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from towline.client.concurrency.tasks import Lock
from towline.client.link.backoff import Backoff
from towline.client.link.blocking import CLOSED, no_answer
from towline.client.link.connection import Buffer, Call, Connection
from towline.client.link.dial import CONNECT_S, Route, never_better
from towline.client.link.flow import Flow, Start, Wait, drive_later
from towline.errors import Closed, NotOwner, TowlineError, Unavailable
from towline.protocol.messages import Beat

__all__ = ["AioDial", "AioLink", "dialler"]

T = TypeVar("T")
_FOLLOW_S: Final = 0.02
_PAUSE_S: Final = 0.05
AioDial = Callable[[Route, Callable[[], asyncio.Protocol]], Awaitable[None]]


def dialler(context: ssl.SSLContext | None, embedded: Callable[[], socket.socket] | None) -> AioDial:
    """How to connect: to the broker in this process, if there is one, or else where a route leads, maybe with TLS."""

    async def dial(route: Route, protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        if embedded is not None:
            ours = embedded()
            ours.setblocking(False)
            await loop.create_connection(protocol, sock=ours)
            return
        host, port = route.address
        transport, _ = await loop.create_connection(protocol, host, port, ssl=context)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    return dial


class AioLink:
    def __init__(self, route: Route, dial: AioDial, connection: Connection, timeout_s: float) -> None:
        self.route = route
        self.connection = connection
        self.timeout_s = timeout_s
        self.lock = Lock()
        self.last_sent = 0.0
        self.last_received = 0.0
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._backoff = Backoff()
        self._retry_at = 0.0
        self._dialled = ""
        self._sign: Call | None = None
        self._opened_at = 0.0
        self._down_since = time.monotonic()
        self.cause: Exception | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<AioLink to {self.route.name}, {self.connection.state.value}>"

    # Flows

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        return drive_later(flow, self.do)

    async def do(self, step: Call | Start | Wait) -> Any:
        if isinstance(step, Call):
            return await self.ask(step)
        if isinstance(step, Start):
            await self.start(step.call)
            return None
        answered = await self.wait(step.call, time.monotonic() + step.seconds)
        if not answered and not self.connection.ready and time.monotonic() - self._down_since > self.timeout_s:
            raise no_answer(self.route, self.cause, False, self.timeout_s)
        return answered

    async def ask(self, call: Call) -> Any:
        begun = time.monotonic()
        deadline = begun + self.timeout_s + call.patience_s
        left = call.number >= 0 or await self.start(call, deadline)
        if not call.done:
            try:
                answered = left and await self.wait(call, deadline)
            except BaseException:
                self._forget(call)
                raise
            if not answered:
                self._forget(call)
                sent = None if left else False
                error = no_answer(self.route, self.cause, self.connection.ready, self.timeout_s, sent=sent)
                if self.last_received < begun:
                    self.give_up(error)
                raise error
        if call.error is not None:
            raise call.error
        return call.answer

    def _forget(self, call: Call) -> None:
        """Nobody waits for the call any more; except where its answer is noted by itself, whoever waits."""
        if call.on_done is None:
            self.connection.abandon(call)

    async def start(self, call: Call, until: float = math.inf, deadline: float = math.inf) -> bool:
        """Send the request. False if there was no room `until` then, so that nothing of it left. (The `deadline` is for
        a thread, which writes until the broker has taken all of it.)"""
        if not await self.room(until):
            return False
        self.start_now(call)
        return True

    async def room(self, until: float = math.inf) -> bool:
        """Wait while too much is in flight; False if that is so `until` then."""
        while self._room is not None and not self._closed:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            await asyncio.wait([self._room], timeout=None if until == math.inf else left_s)
        return True

    def start_now(self, call: Call) -> None:
        """Send the request without regard for how much is in flight."""
        if self._closed:
            raise Closed(CLOSED)
        buffers = self.connection.submit(call)
        if buffers:
            self._write(buffers)
        else:
            self.reconnect()

    async def wait(self, call: Call, deadline: float, connect_s: float = 0.0) -> bool:
        """True when the call is answered, False at the deadline. (A connection is made beside it, in its own time.)"""
        if call.done:
            return True
        answered = self._loop.create_future()
        call.wake = lambda: _resolve(answered)
        timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), _resolve, answered)
        try:
            await answered
        finally:
            timer.cancel()
            call.wake = None
        return call.done

    # The socket

    def reconnect(self) -> None:
        """Make a connection, or begin to."""
        if self._wire is None and not self._closed and (self._connecting is None or self._connecting.done()):
            self._connecting = self._loop.create_task(self._connect(), name="towline-connect")

    async def _connect(self) -> None:
        while self._wire is None and not self._closed:
            pause_s = self._retry_at - time.monotonic()
            if pause_s > 0:
                await asyncio.sleep(min(pause_s, _PAUSE_S))
                if pause_s > _PAUSE_S:
                    continue
            self._dialled = self.route.shown
            wire = _Wire(self)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._dial(self.route, lambda wire=wire: wire)  # type: ignore[misc]
            except OSError as error:
                wire.drop()
                self.cause = error
                final = never_better(self.route, error)
                if self.route.failed():
                    if final is not None:
                        self.connection.fail_all(final)
                    self._retry_at = time.monotonic() + max(0.01, self._backoff.next_s())

    def made(self, wire: _Wire) -> None:
        if self._closed or self._wire is not None:
            wire.drop()
            return
        self._wire = wire
        self._opened_at = self.last_received = time.monotonic()
        self.connection.address = self.route.name
        self._write(self.connection.open())
        self._loop.call_later(CONNECT_S, self._check_greeting, wire)

    def _check_greeting(self, wire: _Wire) -> None:
        if self._wire is wire and not self.connection.ready:
            self.give_up(TimeoutError("the broker did not answer the greeting"))

    def received(self, data: bytes) -> None:
        self.last_received = time.monotonic()
        try:
            out = self.connection.received(data)
        except TowlineError as error:
            self.give_up(error)
            return
        if out:
            self._write(out)

    def pump(self, timeout_s: float) -> None:
        """A thread reads what is there; for a task the event loop does."""

    def pump_until_ready(self, timeout_s: float) -> None:
        """The same: while there is a consumer on it, it connects by itself."""

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if self._wire is not None:
            self.last_sent = time.monotonic()
            self._wire.write(buffers)

    def follow(self) -> None:
        """Its route leads to brokers that share a store: switch to the one that serves the topic."""
        self.connection.follows = True
        self._backoff = Backoff(0.02, 0.3)

    @property
    def at(self) -> str:
        """See `link.Link`."""
        return self._dialled if self._wire is not None else self.route.shown

    def lead_to(self, address: str) -> None:
        self.give_up(NotOwner(f"what was asked for is served by the broker at {address}"))
        self.route.prefer(address)
        self._retry_at = 0.0

    def ask_for_sign(self) -> None:
        """See `link.Link`."""
        asked = self._sign is not None and not self._sign.done
        if self.connection.ready and self._room is None and not (asked or self._closed):
            self._sign = Call(Beat())
            self.start_now(self._sign)

    def give_up(self, error: Exception) -> None:
        """The socket is of no use any more."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        wire.drop()
        now = time.monotonic()
        self.cause = error
        if self.connection.ready:
            self._down_since = now
            if self.connection.answered:
                self._backoff.reset()
        # A broker that stops, or that never got ready, is not the one to try again first.
        stay = self.connection.ready and not isinstance(error, Unavailable)
        if isinstance(error, NotOwner) and self.route.prefer(error.address):
            self._retry_at = now + _FOLLOW_S
        else:
            self._retry_at = now + self._backoff.next_s() if stay or self.route.failed() else now
        self.connection.broken(error)
        self.writable()
        if self.connection.unanswered or self.connection.member is not None:
            self.reconnect()

    def cut(self) -> None:
        """Break the socket off, whatever it was about to write."""
        self.give_up(ConnectionAbortedError("another broker serves what was asked for here"))

    def stalled(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def writable(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            _resolve(room)

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        wire, self._wire = self._wire, None
        self.connection.broken(Closed(CLOSED))
        self.connection.fail_all(Closed(CLOSED))
        self.writable()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if wire is not None:
            await wire.end()
        # The sockets given up before this are closed in the next round of the loop.
        await asyncio.sleep(0)


class _Wire(asyncio.Protocol):
    """One socket of a link."""

    def __init__(self, link: AioLink) -> None:
        self._link: AioLink | None = link
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not of asyncio's class
        if self._link is None:
            self._transport.abort()
        else:
            self._link.made(self)

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        _resolve(self._ended)
        if self._link is not None:
            link, self._link = self._link, None
            link.give_up(exc or ConnectionResetError("the broker closed the connection"))

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.stalled()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.writable()

    def write(self, buffers: Sequence[Buffer]) -> None:
        assert self._transport is not None, "a wire writes once it is connected"
        self._transport.writelines(buffers)

    def drop(self) -> None:
        self._link = None
        if self._transport is not None:
            self._transport.abort()

    async def end(self) -> None:
        """Write what is buffered, and close."""
        self._link = None
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self._ended], timeout=1.0)
            if not self._ended.done():  # else there is nothing left that could be aborted
                self._transport.abort()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
