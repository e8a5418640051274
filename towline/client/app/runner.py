"""Runner of one handler: pulls, calls and settles, on the loop of its app.

Each handler has a consumer and slots of its own, so that a slow one holds up nobody else. It asks for messages only
when it has none left that wait for a slot; a pull waits at the broker until there are some.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from towline.client._async.client import Client
from towline.client._async.consumer import Consumer
from towline.client.app.handler import Handler
from towline.client.app.threads import Job, Threads
from towline.client.consume.lease import LostLease
from towline.client.consume.message import Message
from towline.client.consume.outcome import Retry, describe, settle
from towline.client.link.backoff import Backoff
from towline.client.telemetry import processing
from towline.errors import BadRequest, Closed, Refused, TowlineError
from towline.model import AT_MOST_ONCE, is_pattern

__all__ = ["HandlerRunner"]

log = logging.getLogger("towline.app")

_WAIT_S: Final = 60.0
_BRIEF_S: Final = 0.5
"""The wait of a pull that is not to be broken off."""
_QUICK_S: Final = 0.1
_SLOW_S: Final = 0.5
_GRACE_S: Final = 1.0
"""How long a cancelled coroutine may clean up before it counts as stuck."""
_LOOK_S: Final = 1.0
"""How often a handler that stopped taking messages checks whether its stuck calls came back."""


class _Call(Protocol):
    """A running call of the handler, a thread's or a task."""

    def interrupt(self) -> None: ...


class _TaskCall:
    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task

    def interrupt(self) -> None:
        self.task.cancel()


class HandlerRunner:
    def __init__(self, handler: Handler, client: Client, stopping: asyncio.Event, stop_timeout_s: float) -> None:
        self.handler = handler
        self.done = 0
        self.failed = 0
        self.timed_out = 0
        self._client = client
        self._stopping = stopping
        self._stop_timeout_s = stop_timeout_s
        self._threads = None if handler.is_async else Threads(handler.label)
        self._adrift: list[asyncio.Task[Any]] = []
        self._waiting: deque[list[Message]] = deque()
        self._running: dict[asyncio.Task[None], list[Message]] = {}
        self._calls: dict[asyncio.Task[None], _Call] = {}
        self._changed = asyncio.Event()
        self._function = processing(handler.function, handler.topic, handler.group)
        self._size = handler.concurrency
        self._full = False
        self._pulled_at = 0.0

    # Figures

    @property
    def stuck(self) -> int:
        """Calls that took too long and do not end."""
        self._adrift = [task for task in self._adrift if not task.done()]
        return len(self._adrift) + (0 if self._threads is None else self._threads.stuck)

    @property
    def healthy(self) -> bool:
        return self.stuck < self.handler.max_stuck

    @property
    def running(self) -> int:
        return len(self._running)

    # Consuming

    async def run(self, consumer_options: dict[str, Any]) -> None:
        """Until the app stops. Raises only errors that would come again and again."""
        watch = asyncio.create_task(self._watch_stop())
        backoff = Backoff(0.1, 5.0, eager=False)
        try:
            while not self._stopping.is_set():
                try:
                    await self._open_and_consume(consumer_options, backoff)
                except (BadRequest, Refused):
                    raise
                except TowlineError as error:
                    log.warning("handler %s of %s: %s", self.handler.label, self.handler.topic, error)
                    await self._pause(backoff.next_s())
                await self._recover()
        finally:
            watch.cancel()
            if self._threads is not None:
                self._threads.close()

    async def _open_and_consume(self, options: dict[str, Any], backoff: Backoff) -> None:
        handler = self.handler
        opening = self._client.consumer(
            handler.topic,
            handler.group,
            retry=handler.retry,
            start=handler.start,
            mode=handler.mode,
            on_lost=self._on_lost,
            **options,
        )
        consumer = await opening
        # Not `async with`: an error of the consumer is no fault of the messages that wait here for their turn.
        try:
            one = not is_pattern(handler.topic)
            if one and handler.retry is not None and consumer.config.retry != handler.retry:
                await self._client.put_group(msgspec.structs.replace(consumer.config, retry=handler.retry))
            backoff.reset()
            try:
                await self._consume(consumer)
            finally:
                if consumer.config.mode != AT_MOST_ONCE:
                    self._waiting.clear()
                await self._finish_running()
        finally:
            await consumer.close()

    async def _consume(self, consumer: Consumer) -> None:
        pull: asyncio.Task[list[list[Message]]] | None = None
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                if pull is not None and pull.done():
                    self._waiting += pull.result()
                    pull = None
                self._start_waiting()
                if not self.healthy:
                    log.error(
                        "handler %s of %s: %d calls are stuck: it takes no more messages until one ends",
                        self.handler.label, self.handler.topic, self.stuck,
                    )  # fmt: skip
                    break
                if pull is None and not self._waiting and len(self._running) < self.handler.concurrency:
                    pull = asyncio.create_task(self._pull(consumer))
                    pull.add_done_callback(lambda _: self._changed.set())
                await self._changed.wait()
            if pull is not None and consumer.config.mode == AT_MOST_ONCE:
                # Its messages count as consumed. It does not wait long.
                self._waiting += await pull
                self._start_waiting()
                pull = None
        finally:
            if pull is not None:
                # Its messages, if any, go back with the consumer.
                pull.cancel()
                await asyncio.gather(pull, return_exceptions=True)

    async def _pull(self, consumer: Consumer) -> list[list[Message]]:
        batch_size = self.handler.batch
        self._adapt()
        size, wait_s = self._size, _WAIT_S
        if consumer.config.mode == AT_MOST_ONCE:
            # Messages that wait here for their turn would be lost with us, and so would those that come while we leave.
            size, wait_s = min(size, self.handler.concurrency - len(self._running)), _BRIEF_S
        batch = await consumer.pull(batch_size or size, wait=wait_s)
        self._pulled_at = time.monotonic() if batch else 0.0
        messages = batch.messages
        self._full = 2 * len(messages) >= size
        return ([messages] if messages else []) if batch_size else [[message] for message in messages]

    def _adapt(self) -> None:
        """More at a time while the handler is quick, fewer when it is slow: messages that wait here are kept from
        others."""
        if not self._pulled_at:
            return
        took_s = time.monotonic() - self._pulled_at
        # A quick handler of a few messages may be slow with many.
        if took_s < _QUICK_S and self._full:
            self._size = min(2 * self._size, max(self.handler.max_messages, 1))
        elif took_s > _SLOW_S:
            self._size = max(self._size // 2, 1)
        self._size = min(self._size, self.handler.max_messages)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self.handler.concurrency and self.healthy:
            messages = self._waiting.popleft()
            if all(message.lost for message in messages):
                continue
            task = asyncio.create_task(self._handle(messages))
            self._running[task] = messages
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._calls.pop(task, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handler %s of %s: %s", self.handler.label, self.handler.topic, error, exc_info=error)

    # Calls

    async def _handle(self, messages: list[Message]) -> None:
        handler = self.handler
        argument = messages if handler.batch else messages[0]
        call: Job | _TaskCall
        future: asyncio.Future[Any]
        if self._threads is not None:
            call = self._threads.submit(self._function, argument)
            future = call.done
        else:
            call = _TaskCall(asyncio.create_task(self._function(argument)))
            future = call.task
        mine = asyncio.current_task()
        assert mine is not None, "a handler is called by a task"
        self._calls[mine] = call
        timeout_s = self._timeout_s(messages)
        ended, _ = await asyncio.wait([future], timeout=timeout_s)
        if not ended:
            assert timeout_s is not None, "without a limit there is no end of waiting"
            self._time_out(messages, call, timeout_s)
            if isinstance(call, _TaskCall):
                await self._let_end(call.task)
            return
        if future.cancelled() and all(message.lost for message in messages):
            log.warning("handler %s: %s: others have it now, and the work is dropped", handler.label, _named(messages))
            return
        error = _error_of(future)
        if error is None:
            self.done += 1
        else:
            self.failed += 1
            log.warning(
                "handler %s failed with %s, attempt %d: %s",
                handler.label, _named(messages), messages[0].attempt, describe(error).partition("\n")[0],
            )  # fmt: skip
        try:
            settle(messages, error)
        except Closed as late:
            log.warning("handler %s ended with %s too late: %s", handler.label, _named(messages), late)

    def _timeout_s(self, messages: Sequence[Message]) -> float | None:
        """The time limit of a call: the handler's, that of its messages together, and no longer than their lease."""
        limits = [] if self.handler.timeout_s is None else [self.handler.timeout_s]
        own = [message.timeout for message in messages]
        if None not in own:
            limits.append(sum(one for one in own if one is not None))
        limits += [left_s for message in messages if (left_s := message.lease_left) is not None]
        return min(limits, default=None)

    def _time_out(self, messages: Sequence[Message], call: _Call, timeout_s: float) -> None:
        """Nack first: whatever the call does from now on changes nothing any more."""
        handler = self.handler
        self.timed_out += 1
        settle(messages, Retry(f"timeout: handler {handler.label} took longer than {timeout_s:g} s"))
        call.interrupt()
        log.warning(
            "handler %s took longer than %g s with %s: nacked, and what it does with it later is ignored",
            handler.label, timeout_s, _named(messages),
        )  # fmt: skip

    async def _let_end(self, task: asyncio.Task[Any]) -> None:
        ended, _ = await asyncio.wait([task], timeout=_GRACE_S)
        if not ended:
            self._adrift.append(task)
        elif not task.cancelled():
            # Retrieved, or asyncio complains.
            task.exception()

    def _on_lost(self, lost: LostLease) -> None:
        """Others have these messages now: stop the work, as far as possible."""
        for task, messages in self._running.items():
            call = self._calls.get(task)
            if call is not None and all(message.lost for message in messages):
                call.interrupt()

    # Stopping

    async def _watch_stop(self) -> None:
        await self._stopping.wait()
        self._changed.set()

    async def _finish_running(self) -> None:
        """Running calls may end; those that do not are cut short, and their messages go back unsettled."""
        if not self._running:
            return
        timeout_s = self._stop_timeout_s if self._stopping.is_set() else None
        if timeout_s is None:
            stop = asyncio.create_task(self._stopping.wait())
            while self._running and not stop.done():
                await asyncio.wait([stop, *self._running], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            timeout_s = self._stop_timeout_s
        if self._running:
            await asyncio.wait(list(self._running), timeout=timeout_s)
        for task in list(self._running):
            call = self._calls.get(task)
            messages = self._running[task]
            log.warning("handler %s did not end in time: %s goes back", self.handler.label, _named(messages))
            task.cancel()
            if call is not None:
                call.interrupt()
            if isinstance(call, _TaskCall):
                await self._let_end(call.task)

    async def _recover(self) -> None:
        while not self.healthy and not self._stopping.is_set():
            await self._pause(_LOOK_S)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if future.cancelled():
        return RuntimeError("the handler was cancelled")
    if isinstance(future, asyncio.Task):
        return future.exception()
    error: BaseException | None = future.result()
    return error


def _named(messages: Sequence[Message]) -> str:
    return messages[0].id if len(messages) == 1 else f"{len(messages)} messages from {messages[0].id}"
