"""What one token may not make up in the name of another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.access.secured import Secured, secured
from tests.broker.raw_client import RawClient
from tests.inside.frame import encode
from tests.inside.protocol import AskSink, FrameHead, Publish, Published, Send, Sent, SinkState, Stage, Staged
from towline.errors import Refused

SINK = "spark-batch:nightly"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("forgery")
    with secured(folder, store=f"file:{folder}/data", durability="os") as one:
        one.admin.create_topic("orders")
        one.admin.create_topic("stock")
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors


def enter(broker: Secured, name: str, *rights: tuple[str, str, str]) -> RawClient:
    secret = broker.admin.access.create_token(name).secret
    for right in rights:
        broker.admin.access.allow(name, *right)
    return RawClient.hello(broker.process.port, name, secret)


def stage(client: RawClient, topic: str, token: bytes) -> int:
    frame = encode([b"x"], token=token)
    return client.call(Stage([FrameHead(topic, 1, len(frame))]), Staged, frame).record


def test_the_epochs_of_a_sink_are_its_own_tokens(broker: Secured) -> None:
    """Else an epoch without messages, made up by anybody, counts as published, and the true one is dropped."""
    sends = ("send", "topic", "orders")
    with enter(broker, "spark", sends) as spark, enter(broker, "thief", sends) as thief:
        assert thief.call(AskSink(SINK), SinkState).epoch == -1
        assert spark.call(Publish(SINK, 0, [stage(spark, "orders", b"spark")]), Published).messages == 1
        with pytest.raises(Refused, match="'thief' may not alter cluster"):
            thief.call(AskSink(SINK), SinkState)
        with pytest.raises(Refused, match="'thief' may not alter cluster"):
            thief.call(Publish(SINK, 1, []), Published)
        assert spark.call(Publish(SINK, 1, [stage(spark, "orders", b"spark")]), Published).messages == 1
        assert spark.call(AskSink(SINK), SinkState).epoch == 1


def test_a_sink_goes_to_another_token_with_the_right_to_alter_the_cluster(broker: Secured) -> None:
    sends, alters = ("send", "topic", "orders"), ("alter", "cluster", "*")
    with enter(broker, "old-job", sends) as old, enter(broker, "new-job", sends, alters) as new:
        assert not old.call(Publish("handed-on", 0, []), Published).duplicate
        assert new.call(AskSink("handed-on"), SinkState).epoch == 0
        assert not new.call(Publish("handed-on", 1, []), Published).duplicate
        with pytest.raises(Refused):
            old.call(AskSink("handed-on"), SinkState)


def send(client: RawClient, token: str, *sent: tuple[str, int, int]) -> Sent:
    """Frames of one request: where each goes, and the number of its producer and its own."""
    frames = [encode([b"x"], token=token.encode(), producer_id=producer, producer_seq=seq) for _, producer, seq in sent]
    heads = [FrameHead(topic, 1, len(frame)) for (topic, _, _), frame in zip(sent, frames, strict=True)]
    return client.call(Send(heads), Sent, b"".join(frames))


def test_nobody_sends_in_the_name_of_anothers_producer(broker: Secured) -> None:
    """Who reads a topic reads the numbers of its producers. Were the next number taken, the frame that has it would
    count as sent already, and be lost."""
    with (
        enter(broker, "shop", ("send", "topic", "orders")) as shop,
        enter(broker, "reader", ("consume", "topic", "orders"), ("send", "topic", "stock")) as reader,
    ):
        end = send(shop, "shop", ("orders", 77, 1)).firsts[0]
        for unit in ([("stock", 77, 2)], [("stock", 0, 0), ("stock", 77, 2)], [("stock", 5, 1), ("stock", 77, 2)]):
            with pytest.raises(Refused, match="producer 4d is one of another token"):
                send(reader, "reader", *unit)
        frame = encode([b"x"], token=b"reader", producer_id=77, producer_seq=2)
        with pytest.raises(Refused, match="producer 4d is one of another token"):
            reader.call(Stage([FrameHead("stock", 1, len(frame))]), Staged, frame)
        for seq, duplicate in ((2, False), (2, True), (3, False)):
            sent = send(shop, "shop", ("orders", 77, seq))
            assert (sent.firsts, sent.duplicate) == ([end + seq - 1], duplicate)


def test_what_was_staged_in_the_name_of_a_producer_before_it_was_heard_of_is_not_taken_for_its_own(
    broker: Secured,
) -> None:
    with (
        enter(broker, "till", ("send", "topic", "orders")) as till,
        enter(broker, "early", ("send", "topic", "stock")) as early,
    ):
        frame = encode([b"x"], token=b"early", producer_id=88, producer_seq=2)
        record = early.call(Stage([FrameHead("stock", 1, len(frame))]), Staged, frame).record
        assert not send(till, "till", ("orders", 88, 1)).duplicate
        assert early.call(Publish("early", 0, [record]), Published).messages == 1
        assert not send(till, "till", ("orders", 88, 2)).duplicate
