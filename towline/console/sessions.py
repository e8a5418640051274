"""Sessions of the console, each with a connection of its own to the broker.

The console has no credentials and decides nothing: a user is a client of the broker under their own name, with the
permissions that the broker gives. A broker without security asks for no login, and then one session serves everyone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from towline.client._async.client import Client, connect_for
from towline.clock import SYSTEM, Clock
from towline.console.search_turns import SearchTurns
from towline.errors import Refused, TooMany, TowlineError
from towline.model import origin_of

__all__ = ["Limiter", "Session", "Sessions"]

log = logging.getLogger("towline.console")

LIFE_S: Final = 12 * 3600.0
IDLE_S: Final = 1800.0
FRESH_S: Final = 300.0
"""For this long after a password was given, destructive acts need no other."""
TIDY_S: Final = 10.0
SESSIONS_MAX: Final = 200
TRIES: Final = 5
TRIES_S: Final = 60.0
TRIES_OF_ADDRESS: Final = 50
TRIES_KNOWN: Final = 10_000
PROBE_S: Final = 2.0
NOBODY: Final = "console"
"""The console's name at a broker that asks for no login."""


class Session:
    """One user who is logged in; or everyone, where no login is asked for."""

    def __init__(self, client: Client, name: str, *, secured: bool, now_s: float) -> None:
        self.client = client
        self.name = name
        self.secured = secured
        self.key = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        self.begun_s = now_s
        self.used_s = now_s
        """When a person last did something: pages that refresh themselves do not count."""
        self.proved_s = now_s
        """When the password was given last."""
        self.ended = False
        self.pages: dict[str, Callable[[], object]] = {}
        """The open pages, each with the way to the login."""


_Key = tuple[str, str | None]


class Limiter:
    """Limits of failed logins: by address and name, and by address. Never in all: that would lock everybody out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[_Key, deque[float]] = OrderedDict()
        self._under_way = Counter[_Key]()
        self._ended = asyncio.Condition()

    @asynccontextmanager
    async def trying(self, address: str, name: str, refuse: Callable[[float], TowlineError]) -> AsyncIterator[None]:
        """One try, which fails if this is left by `Refused`, or before the outcome is known. It counts before the
        broker is asked: a try that would be too many if all under way failed waits for them."""
        keys = _limits(address, name)
        async with self._ended:
            while any(self._is_taken(key, most) for key, most in keys):
                await self._ended.wait()
            wait_s = self.wait_s(address, name)
            if wait_s > 0:
                raise refuse(wait_s)
            self._under_way.update(key for key, _ in keys)
        try:
            yield
        except (Refused, asyncio.CancelledError):
            self.failed(address, name)
            raise
        else:
            self.succeeded(address, name)
        finally:
            for key, _ in keys:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
            async with self._ended:
                self._ended.notify_all()

    def _is_taken(self, key: _Key, most: int) -> bool:
        """Whether tries under way may be all that are left."""
        since_s = self._clock.steady_s() - TRIES_S
        failed = sum(one > since_s for one in self._failed.get(key, ()))
        return failed < most <= failed + self._under_way[key]

    def wait_s(self, address: str, name: str) -> float:
        """The time until another try is allowed."""
        now_s = self._clock.steady_s()
        waits = [
            tries[0] + TRIES_S - now_s
            for key, _ in _limits(address, name)
            if (tries := self._failed.get(key)) is not None and len(tries) == tries.maxlen
        ]
        return max([0.0, *waits])

    def failed(self, address: str, name: str) -> None:
        for key, most in _limits(address, name):
            self._failed.setdefault(key, deque(maxlen=most)).append(self._clock.steady_s())
            self._failed.move_to_end(key)
        while len(self._failed) > TRIES_KNOWN:
            self._failed.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        self._failed.pop((origin_of(address), name[:64]), None)


def _limits(address: str, name: str) -> tuple[tuple[_Key, int], ...]:
    origin = origin_of(address)
    return ((origin, name[:64]), TRIES), ((origin, None), TRIES_OF_ADDRESS)


def _too_many(wait_s: float) -> TowlineError:
    return TooMany(f"too many tries: wait {wait_s:.0f} seconds")


class Sessions:
    def __init__(self, url: str, options: dict[str, Any], clock: Clock = SYSTEM) -> None:
        self._url = url
        self._options = options
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._everyone: Session | None = None
        self._refused_s = -PROBE_S
        self._probing = asyncio.Lock()
        self.limiter = Limiter(clock)
        self.searches = SearchTurns()

    async def find(self, key: str | None) -> Session | None:
        """The session that a cookie names; or everyone's, if the broker asks for no login. None: log in."""
        session = self._sessions.get(key) if key else None
        now_s = self._clock.steady_s()
        if session is not None:
            if now_s - session.begun_s < LIFE_S and now_s - session.used_s < IDLE_S:
                return session
            await self.end(session)
        return await self._everyones()

    def used(self, session: Session) -> None:
        """The user did something."""
        session.used_s = self._clock.steady_s()

    async def _everyones(self) -> Session | None:
        if self._everyone is not None:
            return self._everyone
        async with self._probing:
            now_s = self._clock.steady_s()
            if self._probed() or now_s - self._refused_s < PROBE_S:
                return self._everyone
            try:
                self._everyone = await self._open(NOBODY, "")
            except Refused:
                self._refused_s = self._clock.steady_s()
            return self._everyone

    def _probed(self) -> bool:
        """Whether somebody else has found it out meanwhile."""
        return self._everyone is not None

    async def _open(self, name: str, secret: str, address: str = "") -> Session:
        client = await connect_for(address, self._url, token=name, secret=secret, **self._options)
        try:
            me = await client.access.who_am_i()
        except BaseException:
            await client.close()
            raise
        if not secret and me.security:
            await client.close()
            raise Refused("this broker asks who is calling")
        return Session(client, me.user or me.name or name, secured=me.security, now_s=self._clock.steady_s())

    async def everyone_changed(self) -> None:
        """The broker does not take us without a name any more: ask for logins."""
        session, self._everyone = self._everyone, None
        if session is not None:
            await self.end(session)

    async def login(self, address: str, name: str, secret: str) -> Session:
        """Raises `Refused` if the broker does not let them in, and `TooMany` if it was tried too often."""
        async with self.limiter.trying(address, name, _too_many):
            if not name or not secret or len(name) > 64 or len(secret) > 512:
                raise Refused("a name and a password, or a token and its secret")
            session = await self._open(name, secret, address)
        while len(self._sessions) >= SESSIONS_MAX:
            await self.end(self._least_needed())
        self._sessions[session.key] = session
        log.info("%s logged in from %s", session.name, address)
        return session

    def _least_needed(self) -> Session:
        """The longest unused of the user with the most: nobody logs others out by logging in again and again."""
        [(name, _)] = Counter(one.name for one in self._sessions.values()).most_common(1)
        return min((one for one in self._sessions.values() if one.name == name), key=lambda one: one.used_s)

    async def prove(self, session: Session, address: str, secret: str) -> None:
        """Check the password of the logged-in user again."""
        async with self.limiter.trying(address, session.name, _too_many):
            try:
                again = await self._open(session.name, secret, address)
            except Refused:
                raise Refused("that is not the password") from None
        await again.client.close()
        session.proved_s = self._clock.steady_s()

    def is_fresh(self, session: Session) -> bool:
        return not session.secured or self._clock.steady_s() - session.proved_s < FRESH_S

    async def end(self, session: Session) -> None:
        session.ended = True
        self._sessions.pop(session.key, None)
        for leave in list(session.pages.values()):
            leave()
        try:
            await session.client.close()
        except TowlineError as error:
            log.warning("a session could not be closed: %s", error)

    async def tidy(self) -> None:
        """Close unused sessions, again and again."""
        while True:
            await asyncio.sleep(TIDY_S)
            now_s = self._clock.steady_s()
            for session in list(self._sessions.values()):
                if now_s - session.used_s > IDLE_S or now_s - session.begun_s > LIFE_S:
                    await self.end(session)

    async def close(self) -> None:
        for session in [*self._sessions.values(), *([self._everyone] if self._everyone else [])]:
            await self.end(session)
