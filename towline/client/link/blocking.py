"""The blocking driver: one connection, moved by whichever thread waits for an answer.

Any number of threads may send requests at once. A waiting thread that finds nobody reading becomes the *pump*: it
reads, and hands the answers out. When it has its own, the next waiting thread takes over. There is no thread in the
background.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from towline.client.link.backoff import Backoff
from towline.client.link.connection import Buffer, Call, Connection
from towline.client.link.dial import CONNECT_S, Route, explain, never_better
from towline.client.link.flow import Flow, Start, Wait
from towline.client.link.transport import Transport, make_transport
from towline.errors import Closed, NotOwner, Timeout, TooManyConnections, TowlineError, Unavailable
from towline.protocol.messages import Beat

__all__ = ["CLOSED", "MADE_BEFORE_FORK", "Dial", "Link", "dialler", "no_answer"]

T = TypeVar("T")
Dial = Callable[[Route, float], socket.socket]

_MAX_READS: Final = 100
_FOLLOW_S: Final = 0.02
_PAUSE_S: Final = 0.05
"""The pause before a new try, during which no better place is looked for."""
CLOSED: Final = "the client was closed, or the consumer or producer that this belongs to"
MADE_BEFORE_FORK: Final = "this {} was made before a fork: connect again in the child process"

_generation = 0


def _forked() -> None:
    global _generation  # noqa: PLW0603 - there is one process, and this is its number
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def dialler(context: ssl.SSLContext | None, embedded: Callable[[], socket.socket] | None) -> Dial:
    """How to connect: to the broker in this process, if there is one, or else where a route leads, maybe with TLS.
    Raises OSError."""

    def dial(route: Route, timeout_s: float) -> socket.socket:
        if embedded is not None:
            return embedded()
        host, port = route.address
        sock = socket.create_connection((host, port), timeout=timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context is not None:
                return context.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise
        return sock

    return dial


class Link:
    def __init__(self, route: Route, dial: Dial, connection: Connection, timeout_s: float) -> None:
        self.route = route
        self.connection = connection
        self.timeout_s = timeout_s
        self.lock = threading.RLock()
        """Guards the connection's state and the order of writes; never held while waiting for an answer, but for as
        long as a write takes."""
        self.last_sent = 0.0
        self.last_received = 0.0
        self._dial = dial
        self._pump = threading.RLock()
        self._transport: Transport | None = None
        self._dead: list[Transport] = []
        self._stash: deque[Buffer] = deque()
        self._waiters: dict[Call, Any] = {}
        self._turns = threading.Lock()
        """Guards the queue of readers. Not `lock`: nobody comes too late because another one writes."""
        self._backoff = Backoff()
        self._retry_at = 0.0
        self._dialled = ""
        self._sign: Call | None = None
        self._opened_at = 0.0
        self._down_since = time.monotonic()
        self.cause: Exception | None = None
        """Why the connection broke."""
        self._closing = threading.Event()
        self._generation = _generation

    def __repr__(self) -> str:
        return f"<Link to {self.route.name}, {self.connection.state.value}>"

    # Flows

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end. Its own stretches run under the lock, its waiting does not."""
        lock, result, error = self.lock, None, None
        try:
            while True:
                with lock:
                    step = flow.send(result) if error is None else flow.throw(error)
                result = error = None
                try:
                    result = self.do(step)
                except BaseException as caught:
                    error = caught
        except StopIteration as stop:
            value: T = stop.value
            return value

    def do(self, step: Call | Start | Wait) -> Any:
        if isinstance(step, Call):
            return self.ask(step)
        if isinstance(step, Start):
            self.start(step.call)
            return None
        return self._wait_while_up(step)

    def ask(self, call: Call) -> Any:
        begun = time.monotonic()
        deadline = begun + self.timeout_s + call.patience_s
        if call.number < 0:
            self.start(call, deadline=deadline)
        if not call.done:
            try:
                answered = self.wait(call, deadline)
            except BaseException:
                with self.lock:
                    self._forget(call)
                raise
            if not answered:
                self._abandon(call, begun)
        if call.error is not None:
            raise call.error
        return call.answer

    def _forget(self, call: Call) -> None:
        """Nobody waits for the call any more; except where its answer is noted by itself, whoever waits."""
        if call.on_done is None:
            self.connection.abandon(call)

    def _abandon(self, call: Call, begun: float) -> None:
        with self.lock:
            if call.done:
                return
            self._forget(call)
            error = no_answer(self.route, self.cause, self.connection.ready, self.timeout_s)
            if self.last_received < begun:
                self._break(error)
            raise error

    def _wait_while_up(self, step: Wait) -> bool:
        answered = self.wait(step.call, time.monotonic() + step.seconds)
        if not answered and not self.connection.ready and time.monotonic() - self._down_since > self.timeout_s:
            raise no_answer(self.route, self.cause, False, self.timeout_s)
        return answered

    def start(self, call: Call, until: float = math.inf, deadline: float = math.inf) -> bool:
        """Send the request. False if others write `until` then, so that nothing of it left. A request that the broker
        has not taken whole by the `deadline` ends the connection."""
        if self._generation != _generation:
            raise Closed(MADE_BEFORE_FORK.format("client"))
        if not self.lock.acquire(timeout=-1 if until == math.inf else max(0.0, until - time.monotonic())):
            return False
        try:
            if self._closing.is_set():
                raise Closed(CLOSED)
            buffers = self.connection.submit(call)
            if buffers:
                self._write(buffers, deadline)
            return True
        finally:
            self.lock.release()

    def wait(self, call: Call, deadline: float, connect_s: float = 0.0) -> bool:
        """True when the call is answered, False at the deadline. A connection that has to be made first may take
        `connect_s`, if that is longer: repeated short waits would else never complete a slow one."""
        while not call.done:
            if self._pump.acquire(False):
                try:
                    while not call.done:
                        left_s = deadline - time.monotonic()
                        if left_s <= 0:
                            return False
                        self._pump_once(left_s, max(left_s, connect_s))
                finally:
                    self._leave_pump()
            elif not self._follow(call, deadline):
                return call.done
        return True

    def _follow(self, call: Call, deadline: float) -> bool:
        """Wait while another thread pumps. True: look again; False: it is too late."""
        turn = threading.Lock()
        turn.acquire()
        with self._turns:
            call.wake = lambda: self._let_go(call)
            self._waiters[call] = turn
        try:
            if call.done:  # before it knew whom to wake
                return True
            # The pump may have left before we were in the queue that it hands on to.
            if self._pump.acquire(False):
                self._pump.release()
                return True
            if turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return True
        except BaseException:
            self._give_way(call)
            # It may have been handed on to us in this very moment.
            self._hand_on()
            raise
        finally:
            self._give_way(call)
        # So it may have been here: then we look again, and hand it on when we find that it is too late.
        return turn.acquire(False)

    def _give_way(self, call: Call) -> None:
        with self._turns:
            call.wake = None
            self._waiters.pop(call, None)

    def _let_go(self, call: Call) -> None:
        with self._turns:
            if call in self._waiters:
                self._waiters.pop(call).release()

    def _leave_pump(self) -> None:
        self._pump.release()
        if self._waiters:
            self._hand_on()
        if self._dead and self._closing.is_set():  # whoever closes did not wait for us
            self._bury()

    def _hand_on(self) -> None:
        with self._turns:
            call = next(iter(self._waiters), None)
            if call is not None:
                self._waiters.pop(call).release()

    # The pump: only the thread that holds it

    def pump(self, timeout_s: float, also: int = -1) -> None:
        """Some progress, if no other thread pumps: read all there is, or try to connect. Returns early when the
        descriptor `also` is readable, and when a thread waits for an answer that did not come yet: the waiting thread
        takes over reading, and need not be woken for it."""
        if not self._pump.acquire(False):
            return
        try:
            transport = self._transport
            if transport is None:
                self._pump_once(timeout_s, CONNECT_S)
            for _ in range(_MAX_READS):
                transport = self._transport
                if transport is None or not (self._stash or transport.readable(timeout_s, also)):
                    break
                self._pump_once(0.0, CONNECT_S)
                if self._waiters:
                    break
                timeout_s = 0.0
        finally:
            self._leave_pump()

    def pump_until_ready(self, timeout_s: float) -> None:
        """Connect again, but for no longer than this."""
        until = time.monotonic() + timeout_s
        while not self.connection.ready and time.monotonic() < until:
            self.pump(_PAUSE_S)

    def _pump_once(self, timeout_s: float, connect_s: float) -> None:
        transport = self._transport
        if transport is None:
            self._connect(timeout_s, connect_s)
            return
        if self._dead:
            self._bury()
        if not self.connection.ready:
            timeout_s = min(timeout_s, max(0.0, self._opened_at + CONNECT_S - time.monotonic()))
        try:
            data = self._stash.popleft() if self._stash else transport.read(timeout_s)
            if data is None:
                self._check_greeting(transport)
                return
            if not data:
                raise ConnectionResetError("the broker closed the connection")
        except (OSError, ValueError) as error:
            self._gave_way(transport, error)
            return
        if not self.lock.acquire(timeout=_PAUSE_S):
            # Another thread writes: we may have to return before it is done.
            self._stash.appendleft(data)
            return
        try:
            if self._transport is not transport:
                return
            self.last_received = time.monotonic()
            try:
                out = self.connection.received(data)
            except TowlineError as error:
                self._break(error)
                return
            if out:
                self._write(out)
        finally:
            self.lock.release()

    def _check_greeting(self, transport: Transport) -> None:
        if not self.connection.ready and time.monotonic() >= self._opened_at + CONNECT_S:
            self._gave_way(transport, TimeoutError("the broker did not answer the greeting"))

    def _connect(self, timeout_s: float, connect_s: float) -> None:
        self._bury()
        with self.lock:
            if self._closing.is_set():
                self.connection.fail_all(Closed(CLOSED))
                return
        pause_s = self._retry_at - time.monotonic()
        if pause_s > 0:
            self._closing.wait(min(pause_s, timeout_s, _PAUSE_S))
            if pause_s > min(timeout_s, _PAUSE_S):
                return
        self._dialled = self.route.shown
        try:
            sock = self._dial(self.route, max(0.001, min(connect_s, CONNECT_S)))
        except OSError as error:
            with self.lock:
                self.cause = error
                final = never_better(self.route, error)
                if self.route.failed():
                    if final is not None:
                        self.connection.fail_all(final)
                    self._retry_at = time.monotonic() + max(0.01, self._backoff.next_s())
            return
        with self.lock:
            if self._closing.is_set():  # meanwhile, and nobody would close it any more
                sock.close()
                return
            self._stash.clear()
            self._opened_at = self.last_received = time.monotonic()
            self._transport = make_transport(sock)
            self.connection.address = self.route.name
            self._write(self.connection.open())

    def _bury(self) -> None:
        with self.lock:
            dead, self._dead = self._dead, []
        for transport in dead:
            transport.close()

    def _read_aside(self) -> bool:
        """Called while a write is stalled, with the lock held: read, lest both sides only write."""
        transport = self._transport
        if transport is None or not self._pump.acquire(False):
            return False
        try:
            data = transport.read(0.0)
            if data is not None:
                self._stash.append(data)
            return True
        finally:
            self._leave_pump()

    # With the lock held

    def _write(self, buffers: Sequence[Buffer], deadline: float = math.inf) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            transport.write(buffers, self._read_aside, deadline)
        except (OSError, ValueError) as error:
            self._break(error)
        except BaseException:
            # Interrupted within a message: nothing that follows would make sense to the broker.
            self._break(ConnectionAbortedError("interrupted"))
            raise
        else:
            self.last_sent = time.monotonic()

    def _gave_way(self, transport: Transport, error: Exception) -> None:
        with self.lock:
            if self._transport is transport:
                self._break(error)

    def _break(self, error: Exception) -> None:
        """The socket is of no use any more. Its descriptor is closed later, by the pump: it may be reading."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        now = time.monotonic()
        transport.shut_down()
        self._dead.append(transport)
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

    def follow(self) -> None:
        """Its route leads to brokers that share a store: switch to the one that serves the topic."""
        self.connection.follows = True
        self._backoff = Backoff(0.02, 0.3)

    @property
    def at(self) -> str:
        """The broker that it is connected to, or tries next, as `host:port`."""
        return self._dialled if self._transport is not None else self.route.shown

    def lead_to(self, address: str) -> None:
        """The topic is served there now, and the broker that was asked is silent: connect there at once."""
        if not self.lock.acquire(timeout=_PAUSE_S):
            # A thread is writing to a broker that stands still.
            self.cut()
            self.lock.acquire()
        try:
            self._break(NotOwner(f"what was asked for is served by the broker at {address}"))
            self.route.prefer(address)
            self._retry_at = 0.0
        finally:
            self.lock.release()

    def ask_for_sign(self) -> None:
        """Send a beat, unless that was done: a broker that is only busy answers at once."""
        transport = self._transport
        if transport is None or not (self._sign is None or self._sign.done) or not self.lock.acquire(blocking=False):
            return
        try:
            if self.connection.ready and not self._closing.is_set() and transport.takes_more():
                self._sign = Call(Beat())
                self.start(self._sign)
        finally:
            self.lock.release()

    def give_up(self, error: Exception) -> None:
        """Treat the connection as broken: the broker does not answer on it any more."""
        with self.lock:
            self._break(error)

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def cut(self) -> None:
        """Break the socket off, also while another thread holds the lock because the broker takes no more."""
        transport = self._transport
        if transport is not None:
            transport.shut_down()

    def close(self) -> None:
        if self._generation != _generation:
            # The socket is the parent's as well, and its locks may be held for ever: touch nothing.
            return
        with self.lock:
            if self._closing.is_set():
                return
            self._closing.set()
            self._break(Closed(CLOSED))
            self.connection.fail_all(Closed(CLOSED))
        # Threads that read come back now, because the stream has ended.
        if self._pump.acquire(timeout=1.0):
            try:
                self._bury()
            finally:
                self._pump.release()


def no_answer(
    route: Route, cause: Exception | None, ready: bool, timeout_s: float, *, sent: bool | None = None
) -> Unavailable:
    """The error when there is no answer: the connection stands, or does not. If it is known whether the request was
    `sent`, on this connection or one before it, a request that never left is told from one that may have been carried
    out."""
    if ready and sent is False:
        return Unavailable(f"{route.name} takes no more requests, for {timeout_s:g} seconds now")
    if ready:
        return Timeout(
            f"{route.name}: no answer within {timeout_s:g} seconds; it may have been carried out all the same"
        )
    kind = TooManyConnections if isinstance(cause, TooManyConnections) else Timeout if sent else Unavailable
    doubt = "; it may have been carried out all the same" if sent else ""
    return kind(f"{route.name} cannot be reached within {timeout_s:g} seconds: {explain(route, cause)}{doubt}")
