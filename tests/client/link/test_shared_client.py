"""Threads, forks, and brokers inside the process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import towline
from tests.eventually import eventually
from towline.errors import BadRequest, Closed, NotFound, StoreLocked


def fork() -> int:
    """Newer Pythons warn of a fork while there are threads. That is just what is tried here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_threads_may_share_a_client(shared_broker: object, topic: str) -> None:
    url = f"towline://{shared_broker.address}"  # type: ignore[attr-defined]
    with towline.connect(url) as mq:
        receipts: list[int] = []

        def send() -> None:
            receipts.extend(mq.send(topic, b"x").seq for _ in range(100))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(receipts) == list(range(800))


def test_closing_ends_what_other_threads_wait_for(topic: str) -> None:
    errors: list[BaseException] = []
    mq = towline.connect("memory:")
    consumer = mq.consumer(topic, group="g")

    def wait() -> None:
        try:
            consumer.pull(wait=60)
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: mq.group(topic, "g").members[0].waiting)
    mq.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_child_process_is_told_to_connect_again(topic: str) -> None:
    with towline.connect("memory:") as mq:
        mq.send(topic, b"before")
        read_end, write_end = os.pipe()
        child = fork()
        if child == 0:
            # Nothing of pytest may run here.
            try:
                mq.send(topic, b"in the child")
            except Closed as error:
                os.write(write_end, str(error).encode())
            finally:
                mq._link.close()
                os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        assert b"before a fork" in os.read(read_end, 1000)
        os.close(read_end)
        # And the parent's connection is as it was.
        assert mq.send(topic, b"after").seq == 1


def test_memory_is_shared_by_name_only(topic: str) -> None:
    with towline.connect("memory:"), towline.connect("memory:") as two:
        assert two.topics() == []
    with towline.connect(f"memory:{topic}") as one, towline.connect(f"memory:{topic}") as two:
        one.send("orders", b"x")
        assert [message.body for message in two.browse("orders")] == [b"x"]
        one.close()
        assert two.send("orders", b"y").seq == 1
    with towline.connect(f"memory:{topic}") as mq, pytest.raises(NotFound):
        mq.topic("orders")


def test_a_folder_is_shared_and_kept(tmp_path: Path, topic: str) -> None:
    url = f"file:{tmp_path / 'data'}"
    with towline.connect(url) as one, towline.connect(f"file:{tmp_path}/../{tmp_path.name}/data") as two:
        one.send("orders", b"x")
        assert two.topic("orders").lanes[1].end == 1
        with pytest.raises(BadRequest, match="other options"):
            towline.connect(f"{url}?durability=os")
    with towline.connect(url) as mq:
        assert [message.body for message in mq.browse("orders")] == [b"x"]


def test_a_folder_that_another_process_has_is_refused(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'data'}"
    with towline.connect(url):
        child = fork()
        if child == 0:
            code = 1
            try:
                # A fresh process would know nothing of our broker.
                from tests.inside.client import embedded

                embedded._SHARED.clear()
                towline.connect(url)
            except StoreLocked:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("options", ["listen=1.2.3.4:5", "store=memory:", "no_such_setting=1", "durability=paper"])
def test_options_that_cannot_be_are_refused(options: str) -> None:
    with pytest.raises(BadRequest):
        towline.connect(f"memory:?{options}")


def test_the_environment_does_not_configure_a_broker_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWLINE_CAPACITY_MESSAGES", "nonsense")
    with towline.connect("memory:") as mq:
        mq.send("orders", b"x")


async def test_blocking_and_asyncio_clients_share_a_broker(tmp_path: Path, topic: str) -> None:
    for url in (f"memory:{topic}", f"file:{tmp_path / 'data'}"):
        async with towline.aio.connect(url) as mq:
            await mq.send("orders", b"from asyncio")

            def read(url: str = url) -> list[bytes]:
                with towline.connect(url) as other:
                    other.send("orders", b"from a thread")
                    return [message.body for message in other.browse("orders")]

            assert await asyncio.to_thread(read) == [b"from asyncio", b"from a thread"]


async def test_an_asyncio_pull_that_was_cancelled_loses_nothing(topic: str) -> None:
    async with towline.aio.connect("memory:") as mq, mq.consumer(topic, group="g") as consumer:
        for number in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await consumer.pull(wait=60)
            await mq.send(topic, b"%d" % number)
            batch = await consumer.pull(wait=60)
            assert batch.bodies() == [b"%d" % number]
            await batch.ack()


async def test_an_asyncio_client_may_be_awaited(topic: str) -> None:
    mq = await towline.aio.connect("memory:")
    consumer = await mq.consumer(topic, group="g")
    await mq.send(topic, b"x")
    assert (await consumer.pull(wait=60)).bodies() == [b"x"]
    await mq.close()
    with pytest.raises(Closed):
        await mq.send(topic, b"x")


async def test_an_asyncio_client_that_was_not_entered_says_so() -> None:
    opening = towline.aio.connect("memory:")
    with pytest.raises(Closed, match="async with"):
        await opening._thing.send("orders", b"x")


LEFT_OPEN = """
import asyncio, towline

async def leave_open():
    mq = await towline.aio.connect("memory:shared")
    await mq.send("orders", b"x")

asyncio.run(leave_open())
with towline.connect("memory:shared") as mq:
    assert mq.topics() == []
"""


def test_a_loop_that_was_left_open_does_not_keep_its_broker() -> None:
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", LEFT_OPEN], check=True, cwd=root, timeout=60)
