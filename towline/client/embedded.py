"""A broker inside this process, behind `memory:` and `file:DIR`: the same protocol, over a pair of sockets.

For a blocking client the broker runs on an event loop in a thread of its own, for an asyncio client on the client's
loop. Clients of the same `memory:NAME`, or of the same folder, share one broker; the last that leaves closes it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

from towline.broker.broker import Broker
from towline.broker.open_store import open_store
from towline.broker.server.listener import Server
from towline.client.link.url import Target
from towline.errors import BadRequest, TowlineError, Unavailable
from towline.settings import BrokerSettings, load_settings

__all__ = ["Embedded", "acquire", "acquire_here"]


class Embedded:
    """A broker on an event loop, with a count of its users."""

    def __init__(self, target: Target, settings: BrokerSettings, key: str) -> None:
        self._target = target
        self._settings = settings
        self._key = key
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None
        self._server: Server | None = None
        self._opened = threading.Event()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Embedded {self._target}, {self._users} users>"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        return self._target.options

    @property
    def is_gone(self) -> bool:
        """Its loop was closed without `release`, as `asyncio.run` does with what is left open."""
        return self._loop is not None and self._loop.is_closed()

    # Serving, from any thread

    def dial(self) -> socket.socket:
        """A new connection to it."""
        ours, theirs = socket.socketpair()
        try:
            if self._loop is None or self._server is None:
                raise ConnectionRefusedError("the broker in this process was closed")
            asyncio.run_coroutine_threadsafe(self._server.serve_socket(theirs), self._loop)
        except BaseException as error:
            ours.close()
            theirs.close()
            raise ConnectionRefusedError(str(error)) from None
        return ours

    # Opening and closing

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            store = await open_store(self._settings)
            self._broker = await Broker.open(store, self._settings)
            self._server = Server(self._broker)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._opened.set()

    async def shut(self) -> None:
        server, self._server = self._server, None
        broker, self._broker = self._broker, None
        if server is not None:
            await server.drain_and_close()
        if broker is not None:
            await broker.close()

    def open_in_thread(self, timeout_s: float) -> None:
        self._thread = threading.Thread(target=self._run, name="towline-broker", daemon=True)
        self._thread.start()
        self.wait_open(timeout_s)

    def wait_open(self, timeout_s: float) -> None:
        """Wait until another thread has opened it."""
        if not self._opened.wait(timeout_s):
            raise Unavailable(f"{self._target} did not open within {timeout_s:g} seconds")
        if self._error is not None:
            raise _told_again(self._error)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                runner.run(self._live())
            except BaseException as error:
                self._error = error
                self._opened.set()

    async def _live(self) -> None:
        self._ended = asyncio.Event()
        await self.open()
        await self._ended.wait()
        await self.shut()

    def release(self) -> None:
        """A user leaves, from outside the loop."""
        if self._leave() and self._thread is not None and self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    async def release_here(self) -> None:
        """A user leaves, on an event loop."""
        if not self._leave():
            return
        if self._thread is None:
            await self.shut()
        else:
            self._loop_ended()
            await asyncio.to_thread(self._thread.join)

    def _loop_ended(self) -> None:
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)

    def join(self) -> None:
        self._users += 1

    def _leave(self) -> bool:
        """True for the last."""
        with _LOCK:
            self._users -= 1
            if self._users:
                return False
            if _SHARED.get(self._key) is self:
                del _SHARED[self._key]
            return True


_LOCK = threading.Lock()
_SHARED: dict[str, Embedded] = {}


def acquire(target: Target, timeout_s: float) -> Embedded:
    """The broker of a target, on a thread of its own unless it runs already."""
    embedded, is_new = _find(target)
    try:
        if is_new:
            embedded.open_in_thread(timeout_s)
        else:
            embedded.wait_open(timeout_s)
    except BaseException:
        embedded._leave()
        raise
    return embedded


async def acquire_here(target: Target, timeout_s: float) -> Embedded:
    """The broker of a target, on this event loop unless it runs already."""
    embedded, is_new = _find(target)
    try:
        if is_new:
            await embedded.open()
        else:
            await asyncio.to_thread(embedded.wait_open, timeout_s)
    except BaseException:
        embedded._leave()
        raise
    return embedded


def _find(target: Target) -> tuple[Embedded, bool]:
    settings, key = _settings(target), _key(target)
    with _LOCK:
        found = _SHARED.get(key) if key else None
        if found is not None and found.is_gone:
            found = None
        if found is not None and found.options != target.options:
            raise BadRequest(f"{target} is open in this process already, with other options")
        embedded = found or Embedded(target, settings, key)
        embedded.join()
        if key:
            _SHARED[key] = embedded
        return embedded, found is None


def _key(target: Target) -> str:
    """The key under which a broker is shared; None for one that is not shared."""
    if target.scheme == "file":
        return f"file:{Path(target.path).resolve()}"
    return f"memory:{target.path}" if target.path else ""


def _settings(target: Target) -> BrokerSettings:
    store = f"file:{target.path}" if target.scheme == "file" else "memory:"
    given = dict(target.options)
    if "store" in given or "listen" in given:
        raise BadRequest("the options store and listen have no meaning for a broker in this process")
    # Not from the environment: that configures brokers that are processes.
    return load_settings(
        {**given, "store": store}, environment={}, given_as=lambda name: f"option {name} of the URL {target}"
    )


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _told_again(error: BaseException) -> BaseException:
    """The same error for another thread."""
    if isinstance(error, TowlineError):
        return type(error)(str(error))
    return Unavailable(f"the broker in this process did not open: {error}")
