"""Whatever comes over the wire: a clear error or a closed connection, and nobody else notices."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.broker.steady_client import Bystander
from tests.inside.frame import encode
from tests.inside.protocol import (
    PREFACE,
    PREFIX,
    Act,
    Attach,
    Beat,
    Done,
    Failed,
    FrameHead,
    GroupInfo,
    Hello,
    Place,
    Places,
    Pull,
    Pulled,
    Request,
    Send,
    Sent,
    Settle,
    Settled,
    TopicInfo,
    Welcome,
    encode_envelope,
)
from tests.unit.protocol import samples
from towline.errors import BadFrame, BadName, BadRequest, Conflict, NotFound, ProtocolError, Refused, TooLarge
from towline.model import GroupConfig

MAX_FRAME = 1 << 20
RSS_MAX_MB = 150


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(max_frame_bytes=MAX_FRAME, capacity_bytes=32 << 20, max_pending_bytes=4 << 20) as broker:
        yield broker
        assert "internal error" not in broker.errors
        assert "Traceback" not in broker.errors, broker.errors


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[Bystander]:
    with Bystander(broker.port) as bystander:
        yield bystander
    assert broker.rss_mb < RSS_MAX_MB
    assert bystander.slowest_s < 5


pytestmark = pytest.mark.usefixtures("bystander")


def failed_after(broker: BrokerProcess, data: bytes) -> Failed:
    """Open a connection, send bytes behind Hello, and give the one answer before the broker closes."""
    with RawClient.hello(broker.port) as client:
        client.write(data)
        words = client.last_words()
    assert len(words) == 1
    assert isinstance(words[0], Failed)
    return words[0]


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\x00" * 100,
        b"TOWLINE2",
        b"X",
    ],
)
def test_another_protocol_is_closed_at_once_without_a_word(broker: BrokerProcess, greeting: bytes) -> None:
    with RawClient(broker.port) as client:
        client.write(greeting)
        assert client.last_words() == []


def test_a_stranger_is_logged_with_its_address(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        port = client.socket.getsockname()[1]
        client.write(b"EHLO mail")
        client.last_words()
    broker.wait_for_log(rf"127\.0\.0\.1:{port}: closed: this is not Towline's protocol, it begins with b'E")


def test_a_preface_in_single_bytes_is_fine(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        for byte in PREFACE + encode_envelope(1, Hello(1, 1, "me")):
            client.write(bytes([byte]))
        assert isinstance((client.read() or (0, 0))[1], Welcome)


def test_requests_right_behind_hello_are_answered(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE + encode_envelope(1, Hello(1, 1, "me")) + encode_envelope(2, Beat()) * 3)
        assert [type(answer) for _, answer in [client.read() or (0, 0) for _ in range(4)]] == [
            Welcome,
            Done,
            Done,
            Done,
        ]


@pytest.mark.parametrize("request_", samples.REQUESTS[1:], ids=lambda request: type(request).__name__)
def test_a_request_before_hello_is_refused_and_closes(broker: BrokerProcess, request_: msgspec.Struct) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE + encode_envelope(5, request_) + encode_envelope(6, Hello(1, 1, "me")))  # type: ignore[arg-type]
        number, answer = client.read() or (0, None)
        assert number == 5
        assert isinstance(answer, Failed)
        assert "Hello" in answer.message
        assert client.last_words() == []


@pytest.mark.parametrize(("low", "high"), [(3, 9), (0, 0), (-5, 0), (3, 1), (2, 1)])
def test_versions_without_overlap_are_named_on_both_sides(broker: BrokerProcess, low: int, high: int) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE)
        answer = client.call(Hello(low, high, "me"), Failed)
        assert answer.code == "protocol"
        assert f"versions {low} to {high}" in answer.message
        assert "versions 1 to 2" in answer.message
        assert client.last_words() == []


@pytest.mark.parametrize(("low", "high", "chosen"), [(1, 1, 1), (1, 2, 2), (1, 7, 2), (2, 2, 2), (2, 9, 2)])
def test_the_highest_version_that_both_speak_is_chosen(broker: BrokerProcess, low: int, high: int, chosen: int) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE)
        assert client.call(Hello(low, high, "me"), Welcome).version == chosen


def test_before_hello_only_little_is_taken(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE + struct.pack("<IIII", 5000, 1, 1, 4000))
        [answer] = client.last_words()
        assert isinstance(answer, Failed)
        assert (answer.code, "4096" in answer.message) == ("too-large", True)


@pytest.mark.parametrize("token", ["x" * 65, "é" * 33], ids=["too many characters", "too many bytes"])
def test_a_token_that_is_too_long_is_refused(broker: BrokerProcess, token: str) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE)
        client.call(Hello(1, 1, token), Failed)
        assert client.last_words() == []


def test_welcome_states_the_largest_request(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.write(PREFACE)
        assert client.call(Hello(1, 1, "me"), Welcome).max_request_bytes == MAX_FRAME + (64 << 10)


def test_hello_twice_is_an_error_but_no_reason_to_close(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(BadRequest, match="already"):
            client.call(Hello(1, 1, "me"), Welcome)
        client.call(Beat(), Done)


@pytest.mark.parametrize("length", [MAX_FRAME + (64 << 10) + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_an_oversize_length_is_refused_and_closes(broker: BrokerProcess, length: int) -> None:
    answer = failed_after(broker, struct.pack("<IIII", length, 1, 3, 10) + bytes(100_000))
    assert answer.code == "too-large"
    assert str(length) in answer.message


def test_a_client_in_the_midst_of_sending_still_hears_why_it_is_closed(broker: BrokerProcess) -> None:
    assert failed_after(broker, struct.pack("<IIII", 0x7FFFFFFF, 1, 3, 10) + bytes(8 << 20)).code == "too-large"


@pytest.mark.parametrize(("length", "head"), [(0, 0), (11, 0), (12, 1), (50, 0xFFFFFFFF)])
def test_lengths_that_do_not_fit_are_refused_and_close(broker: BrokerProcess, length: int, head: int) -> None:
    assert failed_after(broker, struct.pack("<IIII", length, 1, 3, head) + bytes(100)).code == "protocol"


def test_sends_before_a_broken_request_are_answered_first(broker: BrokerProcess) -> None:
    frame = encode([b"kept"])
    with RawClient.hello(broker.port) as client:
        send = encode_envelope(7, Send([FrameHead("broken", 0, len(frame))]), len(frame)) + frame
        client.write(send + struct.pack("<IIII", 0xFFFFFFFF, 8, 3, 0))
        sent, failed = client.last_words()
        assert isinstance(sent, Sent)
        assert isinstance(failed, Failed)
    with RawClient.hello(broker.port) as client:
        assert client.pull(client.attach("broken")) == [b"kept"]


@pytest.mark.parametrize("kind", [0, 98, 99, 127, 128, 131, 200, 254, 255])
def test_an_unknown_kind_is_an_error_but_no_reason_to_close(broker: BrokerProcess, kind: int) -> None:
    with RawClient.hello(broker.port) as client:
        client.write(PREFIX.pack(13, 77, kind, 1) + b"\x90")
        number, answer = client.read() or (0, None)
        assert (number, isinstance(answer, Failed)) == (77, True)
        client.call(Beat(), Done)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x90",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x91\xdd\x7f\xff\xff\xff\x93",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 60_000,
        b"\xa3\xff\xfe\xfd",
    ],
    ids=range(11),
)
@pytest.mark.parametrize("kind", [1, 3, 4, 5, 6, 8, 14, 17])
def test_a_malformed_head_is_an_error_but_no_reason_to_close(broker: BrokerProcess, kind: int, head: bytes) -> None:
    with RawClient.hello(broker.port) as client:
        client.write(PREFIX.pack(12 + len(head), 5, kind, len(head)) + head)
        number, answer = client.read() or (0, None)
        assert number == 5
        assert isinstance(answer, Failed)
        assert answer.code == "protocol"
        client.call(Beat(), Done)


def test_too_many_items_are_refused(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        for request in (
            Send([FrameHead("t", 0, 0)] * 10_001),
            Settle(1, [Act(0, 1)] * 10_001),
            Settle(1, [Act(0, 1, [(0, 0, 1)] * 10_001)]),
            Attach("t", "g", "c", None, list(range(10_001))),
            at(Place("t", 0, [(0, 1)] * 1_028)),
            at(Place("t", 0, [(1, 20_000)], [(1, number, 1, 1) for number in range(10_001)])),
            at(*[Place("t")] * 20_001),
        ):
            with pytest.raises(ProtocolError):
                client.call(request, Done)


@pytest.mark.parametrize("kind", [Pull, Settle, Attach])
def test_lists_that_would_keep_the_broker_busy_for_long_are_refused_unread(
    broker: BrokerProcess, kind: type[msgspec.Struct]
) -> None:
    spans = [(0, number, 1) for number in range(9_000)]
    acts = [Act(0, 1, spans)] * 20
    request: Request = Settle(1, acts) if kind is Settle else Pull(1, 1, 1, acts=acts)
    if kind is Attach:
        request = at(*[Place("t", 0, [(1, 9_000)], [(*span, 1) for span in spans])] * 17)
    with RawClient.hello(broker.port) as client:
        with pytest.raises(TooLarge, match="name fewer" if kind is Attach else "send several"):
            client.call(request, Done)
        client.call(Beat(), Done)


def at(*places: Place, topic: str = "t") -> Attach:
    """A consumer without a group, which says where it was."""
    return Attach(topic, "~me", "me", GroupConfig("t", "~me", ephemeral=True), [], Places(1, list(places)))


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (at(Place("t", 0, [(1, -1)])), ProtocolError, "Expected `int` >= 0"),
        (at(Place("t", 0, [(-1, 1)])), ProtocolError, "Expected `int` >= 0"),
        (at(Place("t", 0, [(1_027, 1)])), ProtocolError, "Expected `int` <= 1026"),
        (at(Place("t", 0, [(1, 1 << 63)])), ProtocolError, "does not decode"),
        (at(Place("t", 0, [(1, 5)], [(1, 0, 0, 1)])), ProtocolError, "Expected `int` >= 1"),
        (at(Place("t", 0, [(1, 5)], [(1, 0, 1, 0)])), ProtocolError, "Expected `int` >= 1"),
        (at(Place("t", 0, [(6, 1)])), BadRequest, "lane 6 of topic t, whose lanes are 0 to 5"),
        (at(Place("t", 2, [(0, 1)], [(5, 0, 1, 1)])), BadRequest, "lane 5 of topic t, whose lanes are 0 to 4"),
        (at(Place("t", 0, [(1, 1), (1, 2)])), BadRequest, "two places in a lane of topic t"),
        (at(Place("t", 0, [(1, 5)], [(1, 4, 2, 1)])), BadRequest, "messages 4 to 5 .* the next one is 5"),
        (at(Place("t", 0, [], [(1, 0, 1, 1)])), BadRequest, "messages 0 to 0 .* the next one is 0"),
        (at(Place("t", 0, [(1, 5)], [(1, 2, 2, 1), (1, 3, 1, 2)])), BadRequest, "message 3 .* named twice"),
        (at(Place("t", 0, [(1, 5)], [(1, 1, (1 << 63) - 1, 1)])), BadRequest, "the next one is 5"),
        (at(Place("other")), BadRequest, "topic other, which is not among the topics of t"),
        (at(Place("t"), Place("t")), BadRequest, "two places in topic t"),
        (at(Place("Upper")), BadName, "topic 'Upper'"),
        (at(Place("other.x"), topic="t.*"), BadRequest, r"topic other.x, which is not among the topics of t\.\*"),
        (at(Place("t.*"), topic="t.*"), BadName, r"topic 't\.\*'"),
    ],
)
def test_a_place_where_no_consumer_can_be_is_refused(
    broker: BrokerProcess, request_: Attach, error: type[Exception], words: str
) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(error, match=words):
            client.call(request_, Done)
        client.call(Beat(), Done)


def test_every_damage_of_a_frame_is_found(broker: BrokerProcess) -> None:
    frame = encode([b"a body", b"another"], keys=["k", None])
    with RawClient.hello(broker.port) as client:
        for at in range(len(frame)):
            damaged = bytearray(frame)
            damaged[at] ^= 0x10
            with pytest.raises((BadFrame, TooLarge)):
                client.call(Send([FrameHead("damage", 0, len(frame))]), Sent, bytes(damaged))
        with pytest.raises(NotFound):
            client.call(TopicInfo("damage"), Done)


@pytest.mark.parametrize("attached", [b"", b"x", b"TWF1" * 30, bytes(1000)])
def test_what_is_no_frame_is_refused(broker: BrokerProcess, attached: bytes) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises((BadFrame, TooLarge)):
            client.call(Send([FrameHead("none", 0, len(attached))]), Sent, attached)
        client.call(Beat(), Done)


@pytest.mark.parametrize("lengths", [[1], [10**9], [(1 << 63) - 1, 1], [0, 0]])
def test_attachments_that_are_not_as_announced_are_refused(broker: BrokerProcess, lengths: list[int]) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(ProtocolError, match="announced"):
            client.call(Send([FrameHead("t", 0, length) for length in lengths]), Sent, encode([b"x"]))
        client.call(Beat(), Done)


def test_attachments_where_none_belong_are_refused(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(BadRequest, match="follow"):
            client.call(Beat(), Done, b"what is this")
        client.call(Beat(), Done)


def test_a_frame_over_the_limit_is_refused_by_name(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(TooLarge):
            client.send("t", [bytes(MAX_FRAME)])
        client.call(Beat(), Done)


@pytest.mark.parametrize("topic", ["", "Upper", "a/b", "../etc", "x" * 51, "-x", "a\x00b", "ünicode"])
def test_names_that_are_not_allowed_are_refused(broker: BrokerProcess, topic: str) -> None:
    with RawClient.hello(broker.port) as client:
        with pytest.raises(BadName):
            client.send(topic, [b"x"])
        with pytest.raises(BadName):
            client.attach(topic)
        if topic:
            with pytest.raises(BadName):
                client.call(TopicInfo(topic), Done)
        with pytest.raises(BadName):
            client.call(Attach("topic", "g", topic if topic not in ("Upper",) else "~x"), Done)


def test_a_frame_under_another_token_is_refused(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port, "me") as client:
        client.send("tokens", [b"mine"], token=b"me")
        with pytest.raises(Refused, match="token"):
            client.send("tokens", [b"forged"], token=b"you")


def test_subscriptions_that_do_not_exist_are_not_found(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client, RawClient.hello(broker.port) as other:
        subscription = other.attach("subs")
        for request in (Pull(subscription + 5, 1, 1), Settle((1 << 63) - 1, [Act(0, 1)])):
            with pytest.raises(NotFound, match="attach first"):
                client.call(request, Done)
        with pytest.raises(NotFound):
            client.call(GroupInfo("subs", "nobody"), Done)


def test_a_second_pull_of_a_subscription_is_a_conflict(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        subscription = client.attach("conflict")
        first = client.post(Pull(subscription, 10, 1000, 60_000))
        with pytest.raises(Conflict, match="one at a time"):
            client.call(Pull(subscription, 10, 1000, 60_000), Pulled)
        with RawClient.hello(broker.port) as other:
            other.send("conflict", [b"x"])
        assert (client.read() or (0, 0))[0] == first


def test_acts_on_pulls_that_never_were_are_refused(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as client:
        subscription = client.attach("acts")
        acts = [Act(what, pull, spans) for what in range(4) for pull in (0, 5, (1 << 63) - 1)
                for spans in ([], [(0, 0, 1)], [(9, -5, -1)], [(1 << 60, 1 << 60, 1 << 60)])]  # fmt: skip
        refused = client.call(Settle(subscription, acts), Settled).refused
        assert [number for number, _, _ in refused] == list(range(len(acts)))
        client.call(Beat(), Done)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_random_bytes_end_in_an_error_or_a_closed_connection(broker: BrokerProcess, data: bytes) -> None:
    with RawClient.hello(broker.port) as client:
        client.write(data)
        client.socket.shutdown(1)
        for answer in client.last_words():
            assert isinstance(answer, Failed | Done), answer


_ENCODED = [encode_envelope(9, request) for request in samples.REQUESTS[1:]]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from(_ENCODED), at=st.integers(0, 10_000), byte=st.integers(0, 255), tail=st.binary(max_size=80))
def test_mutated_requests_are_answered_or_close(
    broker: BrokerProcess, base: bytes, at: int, byte: int, tail: bytes
) -> None:
    body = bytearray(base[4:] + tail)
    body[at % len(body)] = byte
    with RawClient.hello(broker.port) as client:
        client.write(struct.pack("<I", len(body)) + body + encode_envelope(10, Beat()))
        got = client.read()
        assert got is not None, "there is always an answer"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.integers(1, 19),
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=60)
        | st.binary(max_size=20) | st.sampled_from(["orders", "billing", "~x"]),
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=30,
    ),
)  # fmt: skip
def test_random_values_as_requests_are_answered(broker: BrokerProcess, kind: int, value: object) -> None:
    head = msgspec.msgpack.encode(value if isinstance(value, list) else [value])
    with RawClient.hello(broker.port) as client:
        client.write(PREFIX.pack(12 + len(head), 5, kind, len(head)) + head)
        got = client.read()
        assert got is not None
        assert got[0] == 5
        client.number = 9
        client.call(Beat(), Done)
