"""The client's side of the protocol, without any socket."""

from __future__ import annotations

import pytest

from towline.client.link.connection import Call, Connection, State
from towline.errors import BadRequest, Closed, ProtocolError, Refused, TowlineError, Unavailable, Unsupported
from towline.model import GroupConfig
from towline.protocol import PREFACE, Decoder, decode_request, encode_envelope
from towline.protocol.backup import BeginBackup
from towline.protocol.messages import (
    VERSION,
    Answer,
    Attach,
    Attached,
    Done,
    Failed,
    Hello,
    Pull,
    Pulled,
    Request,
    Stat,
    Stated,
    Welcome,
)

WELCOME = Welcome(VERSION, "b", 1, 1 << 20, 30.0)


class Wire:
    """The broker's end of a connection: what was written to it, and what it answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.asked: list[tuple[int, Request, bytes]] = []
        self._decoder = Decoder(1 << 20)
        opening = b"".join(connection.open())
        assert opening.startswith(PREFACE)
        self.take(opening[len(PREFACE) :])

    def take(self, data: bytes) -> None:
        for envelope in self._decoder.feed(data):
            self.asked.append((envelope.number, decode_request(envelope), bytes(envelope.attachments)))

    def submit(self, call: Call) -> None:
        self.take(b"".join(self.connection.submit(call)))

    def answer(self, answer: Answer, which: int = -1, attached: bytes = b"") -> None:
        number = self.asked[which][0]
        self.say(encode_envelope(number, answer, len(attached)) + attached)

    def say(self, data: bytes) -> None:
        self.take(b"".join(self.connection.received(data)))


class Someone:
    """A consumer."""

    def __init__(self) -> None:
        self.id = 1
        self.topic = "orders"
        self.answers: list[Attached] = []
        self.error: TowlineError | None = None

    def attach(self, max_bytes: int) -> Attach:
        return Attach("orders", "g", "me", None, [41])

    def attached(self, answer: Attached) -> None:
        self.id = answer.subscription
        self.answers.append(answer)

    def expelled(self, error: TowlineError) -> None:
        self.error = error


def ready() -> tuple[Connection, Wire]:
    connection = Connection("me", "s3cret")
    wire = Wire(connection)
    wire.answer(WELCOME)
    return connection, wire


def test_the_first_words_are_the_preface_and_hello() -> None:
    connection = Connection("me", "s3cret")
    wire = Wire(connection)
    ((number, hello, _),) = wire.asked
    assert isinstance(hello, Hello)
    assert (hello.token, hello.secret, connection.state) == ("me", "s3cret", State.GREETING)
    assert number != 0
    wire.answer(WELCOME)
    assert connection.ready
    assert connection.welcome == WELCOME


def test_the_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(Connection("me", "s3cret"))


def test_a_call_waits_until_the_greeting_is_over() -> None:
    connection = Connection()
    wire = Wire(connection)
    call = Call(Stat())
    wire.submit(call)
    assert len(wire.asked) == 1
    wire.answer(WELCOME)
    assert isinstance(wire.asked[-1][1], Stat)
    wire.answer(Stated({"a": 1}))
    assert call.done
    assert call.answer == Stated({"a": 1})
    assert not call.resent


def test_answers_find_their_calls_in_any_order() -> None:
    _, wire = ready()
    calls = [Call(Stat(), [b"ab", b"c"]) for _ in range(3)]
    for call in calls:
        wire.submit(call)
    assert wire.asked[-1][2] == b"abc"
    for number in (2, 0, 1):
        wire.answer(Stated({"n": number}), which=1 + number, attached=b"xyz")
    assert [call.answer.figures["n"] for call in calls] == [0, 1, 2]
    assert bytes(calls[0].attachments or b"") == b"xyz"


def test_answers_may_come_in_any_portions() -> None:
    _, wire = ready()
    call = Call(Stat())
    wire.submit(call)
    for byte in encode_envelope(call.number, Stated({"a": "b" * 100})):
        assert not call.done
        wire.say(bytes([byte]))
    assert call.done


def test_what_is_unanswered_is_asked_again_on_the_next_socket_in_order() -> None:
    connection, wire = ready()
    calls = [Call(Stat(), [b"%d" % number]) for number in range(3)]
    for call in calls:
        wire.submit(call)
    wire.answer(Stated({}), which=2)
    connection.broken(ConnectionResetError())
    assert connection.state is State.DOWN
    late = Call(Stat(), [b"late"])
    assert connection.submit(late) == []

    wire = Wire(connection)
    wire.answer(WELCOME)
    assert [attached for _, _, attached in wire.asked[1:]] == [b"0", b"2", b"late"]
    assert [call.resent for call in (*calls, late)] == [True, False, True, False]


def test_a_consumer_is_attached_again_before_anything_else() -> None:
    connection, wire = ready()
    member = connection.member = Someone()
    pull = Call(Pull(1, 10, 10), (), member)
    wire.submit(pull)
    connection.broken(ConnectionResetError())

    wire = Wire(connection)
    wire.answer(WELCOME)
    assert connection.state is State.ATTACHING
    assert wire.asked[-1][1:] == (Attach("orders", "g", "me", None, [41]), b"")
    assert len(wire.asked) == 2
    wire.answer(Attached(9, [41], GroupConfig("orders", "g")))
    assert [answer.held for answer in member.answers] == [[41]]
    # The pull names the consumer as the new connection knows it.
    assert wire.asked[-1][1:] == (Pull(9, 10, 10), b"")
    wire.answer(Pulled(0, []))
    assert pull.done


def test_a_consumer_that_is_not_taken_back_fails_with_its_calls_but_not_the_connection() -> None:
    connection, wire = ready()
    member = connection.member = Someone()
    pull, stat = Call(Pull(1, 10, 10), (), member), Call(Stat())
    wire.submit(pull)
    wire.submit(stat)
    connection.broken(ConnectionResetError())
    wire = Wire(connection)
    wire.answer(WELCOME)
    wire.answer(Failed("not-found", "no such group"))
    assert str(member.error) == "no such group"
    assert str(pull.error) == "no such group"
    assert connection.ready
    wire.answer(Stated({}))
    assert stat.done


def test_a_refusal_fails_everything_that_waits() -> None:
    connection = Connection()
    wire = Wire(connection)
    call = Call(Stat())
    wire.submit(call)
    with pytest.raises(Refused) as caught:
        wire.answer(Failed("refused", "no"))
    connection.broken(caught.value)
    assert isinstance(call.error, Refused)
    assert connection.unanswered == 0


def test_a_broker_that_stops_leaves_the_call_to_the_next() -> None:
    connection, wire = ready()
    call = Call(Stat())
    wire.submit(call)
    with pytest.raises(Unavailable) as caught:
        wire.answer(Failed("unavailable", "stopping"))
    connection.broken(caught.value)
    assert not call.done
    wire = Wire(connection)
    wire.answer(WELCOME)
    wire.answer(Stated({}))
    assert call.answer == Stated({})


def test_the_last_word_of_a_broker_is_heard() -> None:
    connection, wire = ready()
    call = Call(Stat())
    wire.submit(call)
    with pytest.raises(BadRequest) as caught:
        wire.say(encode_envelope(0, Failed("too-large", "over the limit")))
    connection.broken(caught.value)
    assert str(call.error) == "over the limit"


def test_an_abandoned_call_is_neither_answered_nor_asked_again() -> None:
    connection, wire = ready()
    call = Call(Stat())
    wire.submit(call)
    connection.abandon(call)
    wire.answer(Stated({}))
    assert not call.done
    connection.broken(ConnectionResetError())
    wire = Wire(connection)
    wire.answer(WELCOME)
    assert len(wire.asked) == 1


def test_an_error_is_the_calls_alone() -> None:
    connection, wire = ready()
    call = Call(Stat())
    wire.submit(call)
    wire.answer(Failed("conflict", "there already"))
    assert type(call.error).__name__ == "Conflict"
    assert connection.ready


@pytest.mark.parametrize("answer", [Done(), Welcome(0, "b", 1, 1, 1.0), Welcome(99, "b", 1, 1, 1.0)])
def test_a_greeting_that_makes_no_sense_is_an_error(answer: Answer) -> None:
    wire = Wire(Connection())
    with pytest.raises(ProtocolError):
        wire.answer(answer)


def test_what_an_older_broker_cannot_do_fails_here_and_harms_no_other_call() -> None:
    connection = Connection()
    wire = Wire(connection)
    early, other = Call(BeginBackup()), Call(Stat())
    wire.submit(early)
    wire.submit(other)
    connection.address = "10.0.0.1:7400"
    wire.answer(Welcome(1, "left", 1, 1 << 20, 30.0))
    late = Call(BeginBackup())
    wire.submit(late)
    for call in (early, late):
        with pytest.raises(
            Unsupported,
            match=r"broker left at 10\.0\.0\.1:7400 cannot be backed up while it runs: that came with version 2 of the "
            r"protocol \(Towline [0-9a-z.]+\), and the broker speaks version 1 of the protocol \(Towline 0\.1\.0\): "
            r"upgrade it",
        ):
            raise call.error or AssertionError
    wire.answer(Stated({}))
    assert other.done
    assert connection.version == 1


def test_bytes_that_make_no_sense_are_an_error() -> None:
    _, wire = ready()
    with pytest.raises(TowlineError):
        wire.say(b"\x05\x00\x00\x00" * 8)


def test_numbers_go_round_without_meeting_an_unanswered_one() -> None:
    connection, wire = ready()
    slow = Call(Stat())
    wire.submit(slow)
    connection._number = 0xFFFFFFFE
    numbers = []
    for _ in range(slow.number + 2):
        call = Call(Stat())
        wire.submit(call)
        numbers.append(call.number)
        wire.answer(Stated({}))
    assert slow.number not in numbers
    assert numbers[0] == 0xFFFFFFFF
    assert 0 not in numbers
    assert not slow.done


def test_closing_fails_all() -> None:
    connection, wire = ready()
    call = Call(Stat())
    woken: list[bool] = []
    call.wake = lambda: woken.append(True)
    wire.submit(call)
    connection.fail_all(Closed())
    assert isinstance(call.error, Closed)
    assert woken == [True]
