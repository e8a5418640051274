"""The blocking driver: none of its sockets is left open, whenever it is closed; and who waits reads for himself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.peer import Visitor
from towline.client.link.blocking import Link
from towline.client.link.connection import Buffer, Call, Connection
from towline.client.link.dial import Route
from towline.client.link.transport import PlainTransport
from towline.client.link.url import parse_url
from towline.errors import Closed
from towline.protocol import encode_envelope
from towline.protocol.messages import Beat, Done


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


def test_who_pumps_for_nobody_hands_over_to_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    readers: list[str] = []
    looks: list[str] = []
    second_sent = threading.Event()

    class Watched(PlainTransport):
        def read(self, timeout_s: float) -> Buffer | None:
            data = super().read(timeout_s)
            if data:
                readers.append(threading.current_thread().name)
            return data

        def readable(self, timeout_s: float, also: int = -1) -> bool:
            looks.append(threading.current_thread().name)
            # Whoever looks for more, though somebody waits for it, finds it.
            return second_sent.wait(60) if looks.count("heartbeat") > 1 else super().readable(timeout_s, also)

    monkeypatch.setattr("towline.client.link.blocking.make_transport", Watched)
    link = Link(Route(parse_url("towline://127.0.0.1:1")), lambda route, timeout_s: ours, Connection(), 60.0)
    visitor = Visitor(theirs)
    greeter = threading.Thread(target=visitor.greet)
    greeter.start()
    while not link.connection.ready:
        link.pump(0.1)
    greeter.join(60)
    readers.clear()

    one, other = Call(Beat()), Call(Beat())
    heartbeat = threading.Thread(target=link.pump, args=(60.0,), name="heartbeat")
    heartbeat.start()
    while not _is_held(link._pump):
        time.sleep(0.001)
    askers = [threading.Thread(target=link.ask, args=(call,), name=f"asker {n}") for n, call in enumerate((one, other))]
    for asker in askers:
        asker.start()
    while len(link._waiters) < 2:
        time.sleep(0.001)
    theirs.sendall(encode_envelope(one.number, Done()))
    askers[0].join(60)
    theirs.sendall(encode_envelope(other.number, Done()))
    second_sent.set()
    askers[1].join(60)
    heartbeat.join(60)
    assert readers == ["heartbeat", "asker 1"]
    link.close()
    theirs.close()


class _Turn:
    """What one waits for who gives up in the very moment in which it comes."""

    def __init__(self, come: Callable[[], object], error: type[BaseException] | None) -> None:
        self._come = come
        self._error = error
        self._free = True

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if timeout is None:
            free, self._free = self._free, False
            return free
        self._come()
        assert self._free
        if self._error is not None:
            raise self._error
        return False

    def release(self) -> None:
        self._free = True


@pytest.mark.parametrize("error", [None, KeyboardInterrupt], ids=["late", "interrupted"])
def test_a_turn_that_comes_too_late_is_handed_on(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
) -> None:
    link = Link(Route(parse_url("towline://127.0.0.1:1")), lambda *_: socket.socket(), Connection(), 60.0)
    late, other, others_turn = Call(Beat()), Call(Beat()), threading.Lock()
    others_turn.acquire()
    pumping, leave = threading.Event(), threading.Event()

    def pump() -> None:
        assert link._pump.acquire(False)
        pumping.set()
        assert leave.wait(60)
        link._leave_pump()

    pumper = threading.Thread(target=pump)
    pumper.start()
    assert pumping.wait(60)

    def come() -> None:
        link._waiters[other] = others_turn
        leave.set()
        pumper.join(60)

    monkeypatch.setattr("towline.client.link.blocking.threading", SimpleNamespace(Lock=lambda: _Turn(come, error)))
    with nullcontext() if error is None else pytest.raises(error):
        assert not link.wait(late, time.monotonic())
    assert others_turn.acquire(False), "else nobody reads, and it waits in vain"


def test_one_who_reads_while_a_write_is_stalled_hands_over_to_one_who_waits() -> None:
    ours, theirs = socket.socketpair()
    link = Link(Route(parse_url("towline://127.0.0.1:1")), lambda *_: ours, Connection(), 60.0)
    link.pump(0.0)
    turn = threading.Lock()
    turn.acquire()
    link._waiters[Call(Beat())] = turn
    with link.lock:
        assert link._read_aside()
    assert turn.acquire(False), "it was turned away while we read, and nobody else reads"
    link.close()
    theirs.close()


@pytest.fixture
def met() -> Iterator[tuple[Link, socket.socket]]:
    """A link to a broker that greets, and then neither takes nor says anything."""
    ours, theirs = socket.socketpair()
    link = Link(Route(parse_url("towline://127.0.0.1:1")), lambda *_: ours, Connection(), 60.0)
    greeter = threading.Thread(target=Visitor(theirs).greet)
    greeter.start()
    while not link.connection.ready:
        link.pump(0.1)
    greeter.join(60)
    yield link, theirs
    link.close()
    theirs.close()


@contextmanager
def writing(link: Link) -> Iterator[None]:
    """Another thread writes, and the broker takes no more."""
    begun, done = threading.Event(), threading.Event()

    def write() -> None:
        with link.lock:
            begun.set()
            assert done.wait(60)

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        done.set()
        writer.join(60)


def test_one_who_waits_for_an_answer_keeps_his_time_while_another_writes(met: tuple[Link, socket.socket]) -> None:
    link, theirs = met
    reading, following = Call(Beat()), Call(Beat())
    link.start(reading)
    link.start(following)
    answered: list[bool] = []

    def wait() -> None:
        assert link._pump.acquire()
        try:
            answered.append(link.wait(reading, time.monotonic() + 0.2))
        finally:
            link._leave_pump()

    with writing(link):
        theirs.sendall(encode_envelope(reading.number, Done()))  # it comes, but cannot be looked at now
        reader = threading.Thread(target=wait)
        reader.start()
        assert not link.wait(following, time.monotonic() + 0.1)
        reader.join(60)
        assert not reader.is_alive(), "it waits for the one who writes"
        assert answered == [False]
    assert link.wait(reading, time.monotonic() + 60)


def test_what_finds_another_writing_does_not_leave_and_one_gives_up_in_time(met: tuple[Link, socket.socket]) -> None:
    link, _ = met
    call, before = Call(Beat()), Call(Beat())
    link.start(before)
    with writing(link):
        assert not link.start(call, until=time.monotonic() + 0.05)
        assert (call.number, call.sent) == (-1, 0)
        link.connection.abandon(before)
    assert not link.connection.unanswered


def test_what_is_not_taken_by_its_deadline_ends_the_connection(met: tuple[Link, socket.socket]) -> None:
    link, _ = met
    call = Call(Beat(), [bytes(8 << 20)])
    link.start(call, deadline=time.monotonic() + 0.05)
    assert not link.connection.ready
    assert (link.connection.unanswered, call.sent) == (1, 1), "it may be asked again, as what was on its way"


def _is_held(lock: Any) -> bool:
    if lock.acquire(False):
        lock.release()
        return False
    return True
