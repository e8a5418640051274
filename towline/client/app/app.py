"""Handlers by decorator: `towline.App`."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from towline.client._async.client import Client, connect
from towline.client.app.handler import Handler, batch_size
from towline.client.app.runner import HandlerRunner
from towline.client.link.url import parse_url
from towline.errors import BadRequest, Closed, Unavailable
from towline.model import RetryPolicy

__all__ = ["App"]

log = logging.getLogger("towline.app")

F = TypeVar("F", bound=Callable[[Any], Any])

_MAX_HANDLERS: Final = 1_000


class App:
    """Handlers of messages, and their consumers.

        app = towline.App("towline://127.0.0.1:7400")

        @app.on("orders", group="billing", concurrency=8, timeout=30)
        def bill(message): ...

        app.run()                       # until SIGTERM or SIGINT; or `await app.serve()`, or `async with app:`

    A handler that returns acks its message; one that raises nacks it, with the exception as the reason. `Retry` and
    `Reject` say more. Handlers that run when the app stops may end within `stop_timeout` seconds; the rest goes back.
    With a `name`, the consumers of the app are known by it; with a `spool_dir` as well, acks that cannot be sent are
    kept there.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        token: str = "",
        secret: str = "",
        timeout: float = 30.0,
        stop_timeout: float = 30.0,
        spool_dir: str | Path | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        self._target = parse_url(url)
        if not 0 <= stop_timeout <= 86400:
            raise BadRequest(f"stop_timeout={stop_timeout}: give seconds from 0 to 86,400")
        self._name = name
        self._spool_dir = spool_dir
        self._stop_timeout_s = stop_timeout
        self._connect: Callable[[], Any] = lambda: connect(
            url,
            token=token,
            secret=secret,
            timeout=timeout,
            ssl_context=ssl_context,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._handlers: list[Handler] = []
        self._handlings: list[HandlerRunner] = []
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._serving: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<App of {self._target}, {len(self._handlers)} handlers>"

    # Handlers

    def on(
        self,
        topic: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        batch: bool | int = False,
        name: str | None = None,
        max_messages: int = 1000,
        max_stuck: int | None = None,
        start: Literal["earliest", "latest"] | None = None,
        mode: Literal["at-least-once", "at-most-once"] = "at-least-once",
    ) -> Callable[[F], F]:
        """Handle the messages of a topic with this function: `async def` runs on the loop, any other in threads.

        `concurrency` calls run at a time, each for up to `timeout` seconds: then its message is nacked, a coroutine is
        cancelled, and a thread is interrupted and replaced. When `max_stuck` of them do not end (as many as run at a
        time, at least 2, unless given), the handler takes no more messages until one does. With `batch`, it gets lists
        of up to so many messages. `max_messages` is the most that one pull may bring; slow handlers get fewer. `retry`
        becomes the policy of the group; `start` and `mode` count when the group is made by this handler."""

        def register(function: F) -> F:
            handler = Handler(
                function,
                topic,
                group,
                name or self._name,
                concurrency,
                timeout,
                retry,
                batch_size(batch),
                max_messages,
                max(2, concurrency) if max_stuck is None else max_stuck,
                start,
                mode,
            ).checked()
            if any((other.topic, other.group) == (topic, group) for other in self._handlers):
                raise BadRequest(f"topic {topic}, group {group}: there is a handler already: raise its concurrency")
            if self._loop is not None or len(self._handlers) >= _MAX_HANDLERS:
                raise BadRequest(f"handlers are added before the app runs, {_MAX_HANDLERS:,} at most")
            self._handlers.append(handler)
            return function

        return register

    # State

    @property
    def client(self) -> Client:
        """The client of the running app: async handlers may send with it."""
        if self._client is None:
            raise Closed("the app is not running")
        return self._client

    @property
    def healthy(self) -> bool:
        return not self.problems()

    def problems(self) -> list[str]:
        """Problems, one sentence each."""
        return [
            f"handler {one.handler.label} of topic {one.handler.topic} takes no messages: {one.stuck} calls are stuck"
            for one in self._handlings
            if not one.healthy
        ]

    def figures(self) -> dict[str, dict[str, int]]:
        """By handler: calls running, done, failed, timed out and stuck."""
        return {
            f"{one.handler.topic}/{one.handler.group or '~'}": {
                "running": one.running,
                "done": one.done,
                "failed": one.failed,
                "timed_out": one.timed_out,
                "stuck": one.stuck,
            }
            for one in self._handlings
        }

    # Running

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`. A second signal does not wait for running handlers."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        serving = asyncio.create_task(self.serve())
        loop = asyncio.get_running_loop()
        caught = 0

        def on_signal() -> None:
            nonlocal caught
            caught += 1
            if caught == 1:
                self.stop()
            else:
                serving.cancel()

        signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, on_signal)
        try:
            await serving
        except asyncio.CancelledError:
            if caught < 2:
                raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def serve(self) -> None:
        """Call the handlers until `stop` is called."""
        if not self._handlers:
            raise BadRequest("the app has no handlers: decorate one with @app.on(topic, group=...)")
        with self._lock:
            if self._loop is not None:
                raise BadRequest("the app runs already")
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            if self._stop_asked:
                self._stopping.set()
        try:
            client = await self._meet(self._stopping)
            if client is not None:
                async with client:
                    await self._handle(client, self._stopping)
        finally:
            with self._lock:
                self._loop = self._stopping = None
                self._stop_asked = False
            self._client = None

    def stop(self) -> None:
        """No new messages; running handlers may end, then `run` and `serve` return. From any thread."""
        with self._lock:
            self._stop_asked = True
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve(), name="towline-app")
        # Let it begin, so that a stop from now on finds it.
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            if not serving.done():
                self.stop()
            await serving

    async def _meet(self, stopping: asyncio.Event) -> Client | None:
        """The broker may start after us: wait for it, until the stop."""
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                connecting = asyncio.ensure_future(_opened(self._connect()))
                await asyncio.wait([connecting, stop], return_when=asyncio.FIRST_COMPLETED)
                if not connecting.done():
                    connecting.cancel()
                    await asyncio.wait([connecting])
                    return None
                try:
                    return connecting.result()
                except Unavailable as error:
                    log.warning("%s; still trying", error)
        finally:
            stop.cancel()
        return None

    async def _handle(self, client: Client, stopping: asyncio.Event) -> None:
        self._client = client
        for one in self._handlers:
            where = f"group {one.group}" if one.group else "no group"
            log.info("%s handles topic %s, %s, %d at a time", one.label, one.topic, where, one.concurrency)
        self._handlings = [HandlerRunner(handler, client, stopping, self._stop_timeout_s) for handler in self._handlers]
        tasks = [asyncio.create_task(one.run(self._consumer_options(one.handler))) for one in self._handlings]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            stopping.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _consumer_options(self, handler: Handler) -> dict[str, Any]:
        return {"name": handler.name, "spool_dir": self._spool_dir}


async def _opened(opening: Any) -> Client:
    client: Client = await opening
    return client
