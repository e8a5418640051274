"""Text that is none: half of a character, as Python has it in names of files that are not in UTF-8."""

from __future__ import annotations

from typing import Any

import pytest

import towline.aio
from tests.client.either import do, entered
from tests.inside.client import BatchSender, Call, Connection
from tests.inside.protocol import Find, Stat
from towline.errors import BadRequest, TowlineError
from towline.model import RetryPolicy

HALF = "b\udce4d.txt"
AT_ONCE = RetryPolicy(5, (0.0,))


@pytest.mark.parametrize("headers", [{"file": HALF}, {HALF: "file"}])
async def test_headers_that_are_no_text_are_refused_and_harm_no_other_message(
    connect: Any, url: str, topic: str, headers: dict[str, str]
) -> None:
    async with entered(connect(url)) as mq, entered(mq.producer()) as producer:
        before = await do(producer.send(topic, b"before"))
        for send in (producer.send, mq.send):
            with pytest.raises(BadRequest, match="is not valid text"):
                await do(send(topic, b"x", headers=headers))
        after = await do(producer.send(topic, b"after", headers={"file": "bäd.txt"}))
        await do(producer.flush(timeout=60))
        assert [one.result().seq for one in (before, after)] == [0, 1]


async def test_a_handler_may_fail_with_any_text(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"a", b"b"]))
        async with entered(mq.consumer(topic, group="g", retry=AT_ONCE)) as consumer:
            batch = await do(consumer.pull(2, min_messages=2, wait=60))
            with pytest.raises(ValueError, match="cannot read"), batch[0]:
                raise ValueError(f"cannot read {HALF}")
            batch[1].dead(HALF)
            await do(consumer.flush())
            batch = await do(consumer.pull(1, wait=60))
            assert (batch[0].body, batch[0].attempt) == (b"a", 2)
            await do(batch.nack(HALF))
            (again,) = await do(consumer.pull(1, wait=60))
            assert (again.body, again.attempt) == (b"a", 3)
            again.ack()
            await do(consumer.flush())
        (letter,) = await do(mq.dead_letters(topic, "g"))
        assert letter.reason == HALF.replace("\udce4", "?")


async def test_a_reason_that_is_no_text_settles_nothing(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"a"))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            (message,) = await do(consumer.pull(1, wait=60))
            wrong: Any = ValueError("no")
            with pytest.raises(TypeError, match="a reason is a str"):
                message.nack(wrong)
            message.ack()
            await do(consumer.flush())
        assert (await do(mq.group(topic, "g"))).lag == 0


def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    connection = Connection()
    calls = [Call(Stat()), Call(Find("orders", 0, HALF)), Call(Stat())]
    for call in calls:
        connection.submit(call)
    connection.open()
    out = connection._take_up()
    assert len(out) == 2
    assert [call.done for call in calls] == [False, True, False]
    assert isinstance(calls[1].error, BadRequest)
    assert connection.submit(late := Call(Find("orders", 0, HALF))) == []
    assert late.done
    assert connection.unanswered == 2


async def test_a_producer_whose_work_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    async with towline.aio.connect("memory:") as mq:
        producer = mq.producer()
        monkeypatch.setattr(BatchSender, "pack", fail)
        pending = await producer.send("orders", b"x")
        with pytest.raises(TowlineError, match="failed: broken"):
            await producer.flush(timeout=60)
        assert isinstance(pending.exception(), TowlineError)
        await producer.close()
