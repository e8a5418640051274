"""Handlers by decorator, against every kind of broker."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.client.conftest import ROOT
from tests.eventually import eventually, eventually_done
from tests.inside.client import Consumer
from towline import Message, Reject, Retry, RetryPolicy
from towline.errors import BadRequest

QUICK = RetryPolicy(max_attempts=3, delays_s=(0.01,))


async def settled(mq: Any, topic: str, group: str = "g") -> Any:
    """The state of a group that has nothing left to do."""
    return await eventually_done(
        lambda: mq.group(topic, group), holds=lambda state: not state.lag and not state.in_flight
    )


async def buried(mq: Any, topic: str, count: int) -> list[Any]:
    """The dead letters. Dying ones do not lag, but on a database they can be read only once they are committed."""
    return list(await eventually_done(lambda: mq.dead_letters(topic, "g"), holds=lambda found: len(found) >= count))


async def test_sync_and_async_handlers_get_every_message_once(url: str, topic: str) -> None:
    seen: dict[str, list[bytes]] = {"sync": [], "async": []}
    threads = set()
    app = towline.App(url)

    @app.on(topic, group="sync", concurrency=4)
    def handle(message: Message) -> None:
        threads.add(threading.current_thread().name)
        seen["sync"].append(message.body)

    @app.on(topic, group="async", concurrency=4)
    async def handle_too(message: Message) -> None:
        await asyncio.sleep(0)
        seen["async"].append(message.body)

    bodies = [b"%d" % number for number in range(500)]
    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, bodies)
        async with app:
            await eventually_done(lambda: len(seen["sync"]) >= 500 and len(seen["async"]) >= 500)
        for kind in ("sync", "async"):
            assert sorted(seen[kind]) == sorted(bodies)
            assert (await settled(mq, topic, kind)).dead == 0
    assert all(name.startswith("towline-") for name in threads)


async def test_an_at_most_once_handler_takes_no_more_than_it_can_begin(url: str, topic: str) -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()
    app = towline.App(url)

    @app.on(topic, group="g", concurrency=2, mode="at-most-once")
    async def handle(message: Message) -> None:
        seen.append(message.body)
        await go_on.wait()
        raise ValueError("tried once, and never again")

    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, [b"%d" % number for number in range(10)])
        async with app:
            await eventually_done(lambda: len(seen) == 2)
            state = await mq.group(topic, "g")
            assert (state.lag, state.in_flight) == (8, 0), "the others wait at the broker, where they are safe"
            go_on.set()
            await eventually_done(lambda: len(seen) == 10)
        assert sorted(seen) == [b"%d" % number for number in range(10)]
        assert (await settled(mq, topic)).dead == 0


async def test_an_app_that_stops_handles_what_it_was_given_at_most_once(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    app = towline.App(url)

    @app.on(topic, group="g", concurrency=2, mode="at-most-once")
    async def handle(message: Message) -> None:
        seen.append(message.body)

    pull = Consumer.pull

    async def stopped_meanwhile(self: Consumer, *limits: Any, **more: Any) -> Any:
        """The app is told to stop when the broker has given messages, and they are not here yet."""
        batch = await pull(self, *limits, **more)
        if batch:
            app.stop()
            await asyncio.sleep(0.01)
        return batch

    monkeypatch.setattr(Consumer, "pull", stopped_meanwhile)
    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, [b"a", b"b", b"c"])
        async with asyncio.timeout(60):
            await app.serve()
        left = (await mq.group(topic, "g")).lag
    assert len(seen) == 3 - left == 2, "what left the broker was handled"


async def test_what_a_handler_raises_decides(url: str, topic: str) -> None:
    attempts: list[tuple[bytes, int]] = []
    app = towline.App(url)

    @app.on(topic, group="g", retry=QUICK, concurrency=3)
    def handle(message: Message) -> None:
        attempts.append((message.body, message.attempt))
        if message.body == b"never":
            raise Reject("no such customer")
        if message.body == b"later" and message.attempt == 1:
            raise Retry(delay=0.05)
        if message.body == b"fails":
            raise ValueError("wrong number")
        if message.body == b"wrong":
            raise Retry(delay=-1)

    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, [b"good", b"never", b"later", b"fails", b"wrong"])
        async with app:
            await eventually_done(lambda: len(attempts) >= 10)
            await settled(mq, topic)
        assert sorted(attempts) == [
            (b"fails", 1), (b"fails", 2), (b"fails", 3), (b"good", 1), (b"later", 1), (b"later", 2), (b"never", 1),
            (b"wrong", 1), (b"wrong", 2), (b"wrong", 3),
        ]  # fmt: skip
        reasons = {dead.body: dead.reason for dead in await buried(mq, topic, 3)}
    assert reasons.keys() == {b"never", b"fails", b"wrong"}
    assert reasons[b"wrong"].startswith("BadRequest: a delay of -1 seconds")
    assert reasons[b"never"] == "no such customer"
    first, *stack = reasons[b"fails"].splitlines()
    assert first == "ValueError: wrong number"
    assert any("test_app.py" in line and "handle" in line for line in stack)


async def test_a_batch_is_settled_as_a_whole_or_singly(url: str, topic: str) -> None:
    sizes: list[int] = []
    app = towline.App(url)

    @app.on(topic, group="g", batch=10, retry=QUICK)
    async def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        for message in messages:
            if message.body == b"13":
                message.dead("unlucky")
        if any(message.body == b"25" and message.attempt == 1 for message in messages):
            raise RuntimeError("the whole batch again")

    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, [b"%d" % number for number in range(30)])
        async with app:
            await eventually_done(lambda: sum(sizes) >= 40)
            await settled(mq, topic)
        (dead,) = await buried(mq, topic, 1)
    assert (dead.body, dead.reason) == (b"13", "unlucky")
    assert sum(sizes) == 40
    assert max(sizes) <= 10


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_call_that_takes_too_long_is_nacked_and_its_late_ack_ignored(
    topic: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"memory:{topic}"
    release, ended = threading.Event(), threading.Event()
    attempts: list[int] = []
    app = towline.App(url)

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            # Waits in the operating system, where no exception reaches it.
            release.wait(20)
            ended.set()

    async def handle_async(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            try:
                await asyncio.sleep(20)
            finally:
                ended.set()

    app.on(topic, group="g", timeout=1, retry=QUICK)(handle if kind == "sync" else handle_async)
    async with towline.aio.connect(url) as mq:
        sent = await mq.send(topic, b"x")
        async with app:
            # One slot only: the second attempt shows that the stuck one was replaced.
            await eventually_done(lambda: attempts == [1, 2])
            assert app.healthy
            release.set()
            await settled(mq, topic)
            if kind == "async":
                assert ended.is_set()
        assert (await mq.group(topic, "g")).dead == 0
    assert f"took longer than 1 s with {sent.id}" in caplog.text


async def test_a_busy_thread_is_interrupted(topic: str) -> None:
    interrupted: list[str] = []
    app = towline.App(f"memory:{topic}")

    @app.on(topic, group="g", timeout=1, retry=QUICK)
    def handle(message: Message) -> None:
        if message.attempt == 1:
            try:
                while True:
                    pass
            except BaseException as error:
                interrupted.append(type(error).__name__)
                raise

    async with towline.aio.connect(f"memory:{topic}") as mq:
        await mq.send(topic, b"x")
        async with app:
            await eventually_done(lambda: interrupted)
            await settled(mq, topic)
            assert app.figures()[f"{topic}/g"]["timed_out"] == 1
            await eventually_done(lambda: not app.figures()[f"{topic}/g"]["stuck"])
    assert interrupted == ["Interrupted"]


async def test_too_many_stuck_threads_stop_the_handler_and_it_recovers(topic: str) -> None:
    release = threading.Event()
    calls: list[bytes] = []
    app = towline.App(f"memory:{topic}")

    @app.on(topic, group="g", timeout=0.05, max_stuck=2, concurrency=2, retry=RetryPolicy(3, (600,)))
    def handle(message: Message) -> None:
        calls.append(message.body)
        if not release.is_set():
            release.wait(20)

    async with towline.aio.connect(f"memory:{topic}") as mq:
        await mq.send_many(topic, [b"1", b"2"])
        async with app:
            await eventually_done(lambda: not app.healthy)
            (problem,) = app.problems()
            assert topic in problem
            await mq.send(topic, b"3")
            # Another consumer gets what the unhealthy one does not take.
            async with mq.consumer(topic, group="g") as other:
                (message,) = await other.pull(wait=60)
                assert message.body == b"3"
                message.nack(delay=0.0)
            assert b"3" not in calls
            release.set()
            await eventually_done(lambda: b"3" in calls)
            await eventually_done(lambda: app.healthy)


async def test_a_slow_handler_does_not_hold_up_another(topic: str) -> None:
    release = threading.Event()
    quick: list[bytes] = []
    app = towline.App(f"memory:{topic}")

    @app.on(f"{topic}-slow", group="g", concurrency=2)
    def slow(message: Message) -> None:
        release.wait(20)

    @app.on(f"{topic}-quick", group="g")
    def handle(message: Message) -> None:
        quick.append(message.body)

    async with towline.aio.connect(f"memory:{topic}") as mq:
        await mq.send_many(f"{topic}-slow", [b"x"] * 100)
        async with app:
            for number in range(20):
                await mq.send(f"{topic}-quick", b"%d" % number)
                await eventually_done(lambda number=number: len(quick) == number + 1)  # type: ignore[misc]
            assert not release.is_set()
            release.set()


async def test_stopping_lets_handlers_end_and_gives_back_the_rest(url: str, topic: str) -> None:
    begun, release = threading.Event(), threading.Event()
    done: list[bytes] = []
    app = towline.App(url)

    @app.on(topic, group="g")
    def handle(message: Message) -> None:
        begun.set()
        release.wait(20)
        done.append(message.body)

    async with towline.aio.connect(url) as mq:
        await mq.send_many(topic, [b"%d" % number for number in range(10)])
        async with app:
            await eventually_done(begun.is_set)
            app.stop()
            release.set()
        assert len(done) == 1
        async with mq.consumer(topic, group="g") as consumer:
            left = await consumer.pull(100, wait=60, min_messages=9)
            assert sorted([*done, *left.bodies()]) == [b"%d" % number for number in range(10)]
            assert {message.attempt for message in left} == {1}
            await left.ack()


async def test_what_does_not_end_in_time_goes_back(topic: str) -> None:
    begun, release = threading.Event(), threading.Event()
    app = towline.App(f"memory:{topic}", stop_timeout=0.1)
    cancelled: list[bytes] = []

    @app.on(topic, group="sync")
    def handle(message: Message) -> None:
        begun.set()
        release.wait(20)

    @app.on(topic, group="async")
    async def handle_too(message: Message) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            cancelled.append(message.body)

    async with towline.aio.connect(f"memory:{topic}") as mq:
        await mq.send(topic, b"x")
        async with app:
            await eventually_done(lambda: begun.is_set() and all(one["running"] for one in app.figures().values()))
        assert cancelled == [b"x"]
        for group in ("sync", "async"):
            async with mq.consumer(topic, group=group) as consumer:
                (message,) = await consumer.pull(wait=60)
                assert message.attempt == 1
                message.ack()
        release.set()


async def test_handlers_are_checked() -> None:
    app = towline.App("memory:")
    app.on("orders", group="g")(print)
    for wrong in ({"concurrency": 0}, {"timeout": 0}, {"batch": -3}, {"max_messages": 0}, {"max_stuck": 0}):
        with pytest.raises(BadRequest):
            app.on("other", group="g", **wrong)(print)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="already"):
        app.on("orders", group="g")(print)
    with pytest.raises(BadRequest, match="no handlers"):
        await towline.App("memory:").serve()


APP = """
import sys, towline
app = towline.App({url!r}, stop_timeout=300)

@app.on("orders", group="billing")
def bill(message):
    print("billed", message.body.decode(), flush=True)
    import time; time.sleep(300 if message.body == b"slow" else 3)
    print("done", flush=True)
"""


def start_app(folder: Path, url: str) -> subprocess.Popen[str]:
    (folder / "workers.py").write_text(APP.format(url=url))
    return subprocess.Popen(
        [sys.executable, "-m", "towline", "run", "workers:app", "--app-dir", str(folder)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_towline_run_ends_gracefully_upon_a_signal(
    serve: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    broker = serve()
    url = f"towline://{broker.address}"
    with start_app(tmp_path, url) as process, towline.connect(url) as mq:
        mq.send_many("orders", [b"1", b"2"])
        assert process.stdout is not None
        assert process.stdout.readline() == "billed 1\n"
        process.send_signal(number)
        assert process.stdout.read() == "done\n"
        assert process.wait(60) == 0
        state = mq.group("orders", "billing")
        assert (state.lag, state.in_flight) == (1, 0)


def pending(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a signal has not reached the process yet, which may stand still."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.findall(r"(?:Sig|Shd)Pnd:\s*([0-9a-f]+)", status)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in found)


def test_a_second_signal_does_not_wait(serve: Callable[..., Any], tmp_path: Path) -> None:
    broker = serve()
    url = f"towline://{broker.address}"
    with start_app(tmp_path, url) as process, towline.connect(url) as mq:
        mq.send("orders", b"slow")
        assert process.stdout is not None
        assert process.stdout.readline() == "billed slow\n"
        process.send_signal(signal.SIGTERM)
        # The first one closed its pull: from now on no message is taken.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        eventually(lambda: not pending(process, signal.SIGTERM))  # else the two would count as one
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        state = mq.group("orders", "billing")
        assert (state.lag, state.in_flight) == (1, 0)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        code = "import towline\n" + block.replace("towline://127.0.0.1:7400", "memory:")
        (tmp_path / "example.py").write_text(code)
        runpy.run_path("example.py", run_name="example")


def test_an_app_outlives_its_broker(serve: Callable[..., Any], tmp_path: Path) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    seen: list[bytes] = []
    arrived = {b"before": threading.Event(), b"after": threading.Event()}
    app = towline.App(f"towline://{broker.address}")

    @app.on("orders", group="g")
    def handle(message: Message) -> None:
        # (One whose ack the kill undid comes again.)
        seen.append(message.body)
        arrived[message.body].set()

    thread = threading.Thread(target=app.run)
    thread.start()
    for body in (b"before", b"after"):
        with towline.connect(f"towline://{broker.address}") as mq:
            mq.send("orders", body)
        assert arrived[body].wait(60)
        if body == b"before":
            broker.stop(kill=True)
            broker = serve(*flags, port=broker.port)
    app.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert set(seen) == {b"before", b"after"}
