"""A broker by the book: a script says what it is asked and what it answers, and when it hangs up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.inside.frame import encode
from tests.inside.protocol import (
    PREFACE,
    VERSION,
    Answer,
    Attach,
    Attached,
    Beat,
    Brokers,
    Decoder,
    Done,
    Envelope,
    Failed,
    Hello,
    ListBrokers,
    Part,
    Pulled,
    Request,
    ShardCount,
    Sharded,
    Welcome,
    decode_request,
    encode_envelope,
)
from towline.model import GroupConfig

__all__ = ["Peer", "Visitor", "pulled"]

R = TypeVar("R", bound=Request)


class Visitor:
    """One connection, as the script sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder(64 << 20)
        self._waiting: list[Envelope] = []
        self._number = -1
        self.attached = b""

    def greet(self, heartbeat_s: float = 30.0, epoch: int = 1) -> Hello:
        preface = self.sock.recv(len(PREFACE), socket.MSG_WAITALL)
        assert preface == PREFACE, preface
        hello = self.expect(Hello)
        self.answer(Welcome(VERSION, "peer", epoch, 16 << 20, heartbeat_s))
        return hello

    def meet(self, **welcome: Any) -> None:
        """A client's first connection asks which brokers there are."""
        self.greet(**welcome)
        assert isinstance(self.next(), ListBrokers)
        self.answer(Brokers("peer", []))

    def attach(self, held: Sequence[int] = ()) -> Attach:
        attach = self.expect(Attach)
        self.answer(Attached(7, list(held), attach.config or GroupConfig(attach.topic, attach.group)))
        return attach

    def expect(self, *kinds: type[R]) -> R:
        """The next request, which is of one of these kinds; beats, and questions after shards, are answered before."""
        while True:
            request = self.next()
            if isinstance(request, kinds):
                return request
            if isinstance(request, ShardCount):
                self.answer(Sharded(0))
                continue
            assert isinstance(request, Beat), f"{kinds} was expected, but {request} came"
            self.answer(Done())

    def next(self) -> Request:
        while not self._waiting:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the client hung up")
            self._waiting += self._decoder.feed(data)
        envelope = self._waiting.pop(0)
        self._number = envelope.number
        self.attached = bytes(envelope.attachments)
        return decode_request(envelope)

    def answer(self, answer: Answer, frames: bytes = b"") -> None:
        self.sock.sendall(encode_envelope(self._number, answer, len(frames)) + frames)

    def fail(self, code: str, message: str = "no") -> None:
        self.answer(Failed(code, message))

    def hang_up(self) -> None:
        self.sock.close()

    def until_gone(self) -> None:
        """Answer everything by `Done`, until the client hangs up."""
        try:
            while True:
                self.next()
                self.answer(Done())
        except (EOFError, OSError):
            self.hang_up()

    def until_gone_silently(self) -> None:
        """Answer nothing, until the client hangs up."""
        try:
            while True:
                self.next()
        except (EOFError, OSError):
            self.hang_up()


class Peer:
    """Listens, and runs the script in a thread. What goes wrong there is raised on leaving."""

    def __init__(self, script: Callable[[Peer], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self._visitors: list[Visitor] = []
        self._error: BaseException | None = None
        self._script = script
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"towline://{self.address}"

    def accept(self) -> Visitor:
        sock, _ = self._listener.accept()
        sock.settimeout(60)
        self._visitors.append(Visitor(sock))
        return self._visitors[-1]

    def _run(self) -> None:
        try:
            self._script(self)
        except BaseException as error:
            self._error = error
        finally:
            # Whatever waits for an answer now fails quickly, and the test with it.
            self._close()

    def _close(self) -> None:
        self._listener.close()
        for visitor in self._visitors:
            visitor.hang_up()

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive(), "the script did not come to its end"
        if self._error is not None:
            raise self._error


def pulled(pull: int, bodies: Sequence[bytes], first: int = 0) -> tuple[Pulled, bytes]:
    frame = encode(bodies)
    return Pulled(pull, [Part(1, first, len(bodies), 0, len(frame), 1, 0, b"")]), frame
