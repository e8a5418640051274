"""Broken connections, on both clients, against a broker that breaks them by script."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.client.either import do, entered
from tests.client.peer import Peer, Visitor
from tests.inside.frame import Frame
from tests.inside.protocol import CreateTopic, DeleteTopic, Send, Sent
from tests.ports import free_port
from towline.errors import Conflict, ProtocolError, QueueFull, Refused, Timeout, TooLarge, Unavailable


def frame_of(visitor: Visitor) -> Frame:
    visitor.expect(Send)
    return Frame(visitor.attached)


async def test_an_unanswered_send_is_sent_again_under_the_same_sequence(connect: Any) -> None:
    seen = []

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        seen.append(frame_of(visitor))
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet(epoch=2)
        seen.append(frame_of(visitor))
        visitor.answer(Sent([5], 123, True))
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            assert (await do(mq.send("orders", b"x"))).seq == 5
    first, again = seen
    assert first.producer_id == again.producer_id > 0
    assert first.producer_seq == again.producer_seq > 0
    assert bytes(first.data) == bytes(again.data)


async def test_two_sends_have_two_sequences(connect: Any) -> None:
    seen = []

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        for _ in range(2):
            seen.append(frame_of(visitor))
            visitor.answer(Sent([0], 0))
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            await do(mq.send("orders", b"x"))
            await do(mq.send("orders", b"x"))
    assert seen[0].producer_id == seen[1].producer_id
    assert seen[0].producer_seq != seen[1].producer_seq


async def test_a_broker_that_stops_is_left_for_the_next(connect: Any) -> None:
    def stops(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        visitor.expect(Send)
        visitor.fail("unavailable", "the broker is shutting down")
        visitor.until_gone()

    def takes_over(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.greet()
        visitor.expect(Send)
        visitor.answer(Sent([9], 0))
        visitor.until_gone()

    with Peer(stops) as one, Peer(takes_over) as two:
        async with entered(connect(f"towline://{one.address},{two.address}")) as mq:
            assert (await do(mq.send("orders", b"x"))).seq == 9


async def test_an_address_where_nobody_is_is_passed_over(connect: Any) -> None:
    port = free_port()

    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(f"towline://127.0.0.1:{port},{peer.address}")) as mq:
            assert "127.0.0.1" in repr(mq)


async def test_who_cannot_be_reached_is_named(connect: Any) -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}.*0\.3 seconds: \S+"):
        async with entered(connect(f"towline://127.0.0.1:{port}", timeout=0.3)):
            pass
    assert time.monotonic() - began < 30


async def test_a_refused_client_does_not_try_again(connect: Any) -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.sock.recv(8, socket.MSG_WAITALL)
        visitor.next()
        visitor.fail("refused", "wrong secret")
        visitor.until_gone()

    with Peer(script) as peer, pytest.raises(Refused, match="wrong secret") as caught:
        async with entered(connect(peer.url, token="me", secret="s3cret")):
            pass
    assert "s3cret" not in repr(caught.value)


async def test_a_server_of_something_else_is_told_at_once(connect: Any) -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        visitor.sock.recv(1000)

    with Peer(script) as peer, pytest.raises((TooLarge, ProtocolError)):
        async with entered(connect(peer.url)):
            pass


async def test_no_answer_is_a_timeout_that_says_what_is_in_doubt(connect: Any) -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        visitor.expect(Send)
        with pytest.raises(EOFError):
            visitor.next()

    with Peer(script) as peer, pytest.raises(Timeout, match="may have been carried out"):
        async with entered(connect(peer.url, timeout=3)) as mq:
            await do(mq.send("orders", b"x"))


async def test_what_the_broker_answers_is_not_tried_again(connect: Any) -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        visitor.expect(Send)
        visitor.fail("queue-full", "no room")
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            with pytest.raises(QueueFull, match="no room"):
                await do(mq.send("orders", b"x"))


async def test_a_conflict_after_asking_twice_counts_as_done(connect: Any) -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        for request, code in ((CreateTopic, "conflict"), (DeleteTopic, "not-found")):
            visitor.expect(request)
            visitor.hang_up()
            visitor = peer.accept()
            visitor.greet()
            visitor.expect(request)
            visitor.fail(code)
        visitor.expect(CreateTopic)
        visitor.fail("conflict")
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            await do(mq.create_topic("orders"))
            await do(mq.delete_topic("orders"))
            with pytest.raises(Conflict):
                await do(mq.create_topic("orders"))


# Producers


async def test_a_producer_keeps_order_through_a_full_queue_and_a_break(connect: Any) -> None:
    seen: list[list[bytes]] = []

    def script(peer: Peer) -> None:
        client = peer.accept()
        client.meet()
        visitor = peer.accept()
        visitor.greet()
        first = frame_of(visitor)
        visitor.fail("queue-full")
        again = frame_of(visitor)
        assert bytes(again.data) == bytes(first.data)
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet()
        at = 0
        while at < 100:
            frame = frame_of(visitor)
            seen.append(frame.bodies())
            visitor.answer(Sent([at], 0))
            at += frame.count
        assert seen[0] == first.bodies()
        visitor.until_gone()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.producer(max_batch_messages=10)) as producer:
            pending = [await do(producer.send("orders", b"%d" % number)) for number in range(100)]
            await do(producer.flush(timeout=60))
            assert [one.result().seq for one in pending] == list(range(100))
    assert [body for bodies in seen for body in bodies] == [b"%d" % number for number in range(100)]


async def test_what_cannot_be_delivered_in_time_fails(connect: Any) -> None:
    def script(peer: Peer) -> None:
        client = peer.accept()
        client.meet()
        visitor = peer.accept()
        visitor.greet()
        visitor.expect(Send)
        visitor.until_gone_silently()

    with Peer(script) as peer:
        async with entered(connect(peer.url)) as mq:
            producer = mq.producer(delivery_timeout=2)
            pending = await do(producer.send("orders", b"x"))
            with pytest.raises(Timeout):
                await do(producer.flush(timeout=60))
            assert isinstance(pending.exception(), Timeout)
            await do(producer.close())
