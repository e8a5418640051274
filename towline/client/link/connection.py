"""A client's side of the protocol, sans I/O: greeting, numbering, matching answers, and continuing on a new socket.

    DOWN ──open()──► GREETING ──Welcome──► ATTACHING ──Attached──► READY
      ▲                  │    └──────── (no consumer) ──────────►    │
      └──── broken() ────┴──────────────────┴────────────────────────┘

A `Connection` outlives its sockets. Unanswered requests stay with it, in order; on the next socket it greets, attaches
its consumer again, and sends them again under the same numbers. Every request is made so that sending it twice does no
harm: sends carry the producer's sequence, acts are idempotent, and attaching states the pulls that we know of, so that
one whose answer got lost goes back to the group.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, Protocol

import msgspec

from towline.errors import (
    BadRequest,
    NotLetIn,
    NotOwner,
    ProtocolError,
    Refused,
    Stopping,
    TowlineError,
    Unavailable,
    Unsupported,
    from_code,
)
from towline.protocol import PREFACE, Decoder, Envelope, decode_answer, encode_envelope
from towline.protocol.hello import CALLER_MAX
from towline.protocol.messages import (
    VERSION,
    VERSION_MIN,
    Answer,
    Attach,
    Attached,
    Failed,
    Hello,
    Pull,
    Pulled,
    Request,
    Welcome,
)
from towline.protocol.versions import show_version

__all__ = ["Buffer", "Call", "Connection", "Member", "State"]

Buffer = bytes | memoryview

_GREETING_LIMIT: Final = 64 << 10
_ANSWER_LIMIT: Final = 1 << 30
_UNAVAILABLE: Final = Unavailable.code

CLOSED_UNMET_MAX: Final = 6
"""A broker that was never met, and closes so many connections in a row without a word, is none, or speaks TLS."""


class State(enum.Enum):
    DOWN = "down"
    GREETING = "greeting"
    ATTACHING = "attaching"
    READY = "ready"


class Member(Protocol):
    """A consumer as its connection sees it: enough to attach it again."""

    id: int
    topic: str

    def attach(self, max_bytes: int) -> Attach:
        """The request to attach again, in so many bytes: it names the pulls that are held."""

    def attached(self, answer: Attached) -> None:
        """Take over the answer: the pulls that are still held."""

    def expelled(self, error: TowlineError) -> None:
        """The broker does not know this consumer any more."""


class Call:
    """One request and, later, its answer."""

    __slots__ = (
        "answer",
        "attachments",
        "buffers",
        "done",
        "error",
        "member",
        "next",
        "number",
        "on_done",
        "patience_s",
        "request",
        "sent",
        "wake",
    )

    def __init__(
        self,
        request: Request,
        buffers: Sequence[Buffer] = (),
        member: Member | None = None,
        on_done: Callable[[Call], None] | None = None,
    ) -> None:
        self.request = request
        self.buffers = buffers
        self.member = member
        self.on_done = on_done
        self.number = -1
        self.next: Call | None = None
        """The call for the next answer, if this was not the last to its request."""
        self.answer: Any = None
        self.attachments: memoryview | None = None
        self.error: TowlineError | None = None
        self.done = False
        self.sent = 0
        self.patience_s = 0.0
        """How long the broker may take on purpose, besides the time that any answer may take."""
        self.wake: Callable[[], object] | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self.done else f"failed: {self.error}" if self.error else "answered"
        return f"<Call {self.number} {type(self.request).__name__}, {state}>"

    @property
    def resent(self) -> bool:
        """It was sent more than once: the first time may have been carried out."""
        return self.sent > 1

    def following(self) -> Call:
        """A call for the next answer to the same request; the acts that went with it were carried out."""
        request = self.request
        assert isinstance(request, Pull), "only pulls are answered again"
        if request.acts:
            request = msgspec.structs.replace(request, acts=[])
        call = Call(request, (), self.member, self.on_done)
        call.number, call.sent, call.patience_s = self.number, 1, self.patience_s
        return call

    def finish(self, answer: Answer, attachments: memoryview) -> None:
        self.answer = answer
        self.attachments = attachments
        self._end()

    def fail(self, error: TowlineError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self.buffers = ()
        if self.on_done is not None:
            try:
                self.on_done(self)
            except TowlineError as error:
                # An answer that the caller cannot decode.
                self.error = error
        self.done = True
        wake = self.wake
        if wake is not None:
            wake()


class Connection:
    def __init__(self, token: str = "", secret: str = "", caller: str = "") -> None:
        self.address = ""
        """The address of the last broker, for people."""
        self._hello = Hello(VERSION_MIN, VERSION, token, secret, "towline-python", caller[:CALLER_MAX])
        self.state = State.DOWN
        self._closed_unmet = 0
        self.follows = False
        """Of the brokers of one store, it switches to the one that serves its topic."""
        self.version = VERSION
        """Of the protocol: the highest that the broker speaks as well."""
        self.welcome: Welcome | None = None
        self.member: Member | None = None
        self.answered = 0
        """Calls that were answered on this socket."""
        self._decoder = Decoder(_GREETING_LIMIT)
        self._calls: dict[int, Call] = {}
        self._greeting: dict[int, Callable[[Envelope], list[Buffer]]] = {}
        self._number = 0
        self.ready = False
        """Its state is READY: a flag of its own, because every request and every read asks."""

    def __repr__(self) -> str:
        return f"<Connection {self.state.value}, {len(self._calls)} unanswered>"

    @property
    def unanswered(self) -> int:
        return len(self._calls)

    @property
    def topic(self) -> str | None:
        """The topic that it is needed for: that of its consumer, or of the first unanswered call. None if there is
        none, or it is not about one topic."""
        if self.member is not None:
            return self.member.topic
        request = next((call.request for call in list(self._calls.values())), None)
        frames = getattr(request, "frames", None)
        found: str | None = frames[0].topic if frames else getattr(request, "topic", None)
        return found

    # Requests

    def submit(self, call: Call) -> list[Buffer]:
        """Add a call. Returns the bytes to write now: none while the connection is not ready."""
        call.number = number = self._take_number()
        self._calls[number] = call
        return self._encoded(call) if self.ready else []

    def abandon(self, call: Call) -> None:
        """Nobody waits for this call any more; its answer, if there is one, is dropped. Called without the link's lock,
        which another thread may hold: it may happen within all else here."""
        if self._calls.get(call.number) is call:
            self._calls.pop(call.number, None)

    def _take_number(self) -> int:
        number = self._number
        while True:
            number = number + 1 & 0xFFFFFFFF
            # Answers under 0 are about the connection itself.
            if number and number not in self._calls and number not in self._greeting:
                self._number = number
                return number

    def _encoded(self, call: Call) -> list[Buffer]:
        """The bytes of a call; none if it cannot be encoded, such as half a character: then it has failed, and harms no
        other."""
        request, buffers, member = call.request, call.buffers, call.member
        call.sent += 1
        try:
            if member is not None and request.subscription != member.id:  # type: ignore[attr-defined]
                request = msgspec.structs.replace(request, subscription=member.id)
            size = sum(map(len, buffers)) if buffers else 0
            return [encode_envelope(call.number, request, size, self.version), *buffers]
        except Unsupported as error:
            self._calls.pop(call.number, None)
            call.fail(self._unsupported(error))
            return []
        except (OverflowError, TypeError, ValueError) as error:
            self._calls.pop(call.number, None)
            call.fail(BadRequest(f"{type(call.request).__name__} cannot be sent: {error}"))
            return []

    def _unsupported(self, error: Unsupported) -> Unsupported:
        broker = self.welcome.broker if self.welcome is not None else ""
        return Unsupported(
            f"broker {broker} at {self.address} {error}, and the broker speaks {show_version(self.version)}: upgrade it"
        )

    # The socket

    def open(self) -> list[Buffer]:
        """A new socket is connected: the first bytes to write to it."""
        assert self.state is State.DOWN, self.state
        self.state = State.GREETING
        self.answered = 0
        self._decoder = Decoder(_GREETING_LIMIT)
        number = self._take_number()
        self._greeting = {number: self._on_welcome}
        return [PREFACE, encode_envelope(number, self._hello)]

    def broken(self, error: Exception) -> None:
        """The socket is gone. Unanswered requests wait for the next one, unless that would fare no better."""
        met = self.state is not State.GREETING or self.welcome is not None
        self.state, self.ready = State.DOWN, False
        self._greeting = {}
        if isinstance(error, TowlineError) and not error.retriable:
            self.fail_all(error)
        self._closed_unmet = 0 if met or not isinstance(error, ConnectionError) else self._closed_unmet + 1
        if self._closed_unmet >= CLOSED_UNMET_MAX:
            # Waiting any longer would not make it another one.
            self._closed_unmet = 0
            self.fail_all(
                Unavailable(
                    "what listens there closes the connection instead of answering: does it speak TLS? Then use "
                    "towlines://; or it is no Towline broker"
                )
            )

    def fail_all(self, error: TowlineError) -> None:
        calls, self._calls = self._calls, {}
        for call in list(calls.values()):
            # One for each: an exception that is raised in several places grows with every one of them.
            call.fail(from_code(error.code, str(error)))

    # Answers

    def received(self, data: Buffer) -> list[Buffer]:
        """Take bytes from the broker and finish the calls they answer. Returns the bytes to write now.

        Raises when the socket is to be given up: bytes that make no sense, or a broker that ends the connection.
        """
        out: list[Buffer] = []
        going: TowlineError | None = None
        kept: set[Call] = set()
        for envelope in self._decoder.feed(data):
            call = self._calls.get(envelope.number)
            if call is None:
                handler = self._greeting.pop(envelope.number, None)
                if handler is not None:
                    out += handler(envelope)
                elif envelope.number == 0:
                    self._on_last_word(envelope, kept)
                continue
            answer = decode_answer(envelope)
            self.answered += 1
            if type(answer) is Failed:
                if answer.code == _UNAVAILABLE or (self.follows and answer.code == NotOwner.code):
                    # A broker that is going away, or not the right one. The call stays with us, for the next broker;
                    # but other answers of this moment still count.
                    call.sent -= 1
                    kept.add(call)
                    going = going or answer.error
                    continue
                self._calls.pop(envelope.number, None)
                call.fail(answer.error)
            else:
                if type(answer) is Pulled and answer.more and type(call.request) is Pull:
                    self._calls[envelope.number] = call.next = call.following()
                else:
                    self._calls.pop(envelope.number, None)
                call.finish(answer, envelope.attachments)
        if going is not None:
            raise going
        return out

    def _on_last_word(self, envelope: Envelope, kept: Set[Call]) -> None:
        """The broker ends the connection, with the reason in an answer to no request."""
        answer = decode_answer(envelope)
        if isinstance(answer, Failed):
            error = answer.error
            if isinstance(error, Stopping) and self.ready:
                # It has done nothing of all that is not answered: another broker may.
                for call in list(self._calls.values()):
                    call.sent -= call not in kept
            raise error

    def _on_welcome(self, envelope: Envelope) -> list[Buffer]:
        answer = decode_answer(envelope)
        if isinstance(answer, Failed):
            no_token = answer.code in (Refused.code, NotLetIn.code) and not self._hello.token
            raise from_code(answer.code, answer.message + "; no token was given" * no_token, answer.exact)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"a greeting was answered by {type(answer).__name__}")
        if not VERSION_MIN <= answer.version <= VERSION:
            raise ProtocolError(
                f"the broker speaks version {answer.version} of the protocol, this client {VERSION_MIN} to {VERSION}"
            )
        self.welcome, self.version = answer, answer.version
        self._decoder.limit = _ANSWER_LIMIT
        if self.member is None:
            return self._take_up()
        self.state = State.ATTACHING
        number = self._take_number()
        self._greeting[number] = self._on_attached
        return [encode_envelope(number, self.member.attach(answer.max_request_bytes), 0, self.version)]

    def _on_attached(self, envelope: Envelope) -> list[Buffer]:
        answer, member = decode_answer(envelope), self.member
        assert member is not None, "only a connection with a consumer attaches"
        if isinstance(answer, Failed):
            error = answer.error
            if answer.code in (_UNAVAILABLE, NotOwner.code):
                raise error
            self.member = None
            member.expelled(error)
            for call in [call for call in list(self._calls.values()) if call.member is member]:
                self._calls.pop(call.number, None)
                call.fail(error)
        elif isinstance(answer, Attached):
            member.attached(answer)
        else:
            raise ProtocolError(f"an attach was answered by {type(answer).__name__}")
        return self._take_up()

    def _take_up(self) -> list[Buffer]:
        """Everything is as before: send unanswered requests again."""
        self.state, self.ready = State.READY, True
        out: list[Buffer] = []
        for call in list(self._calls.values()):
            out += self._encoded(call)
        return out
