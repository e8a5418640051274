"""The pool of clients that speak for REST callers: one for each, kept for a while."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from towline.client._async.client import Client, connect_for
from towline.clock import SYSTEM
from towline.console.security.origin import Hosts
from towline.console.sessions import Limiter
from towline.errors import NotLetIn, QueueFull, Refused, TowlineError

__all__ = ["Caller", "Callers", "Mq", "Who"]

CALLERS_MAX: Final = 200
IDLE_S: Final = 300.0
MESSAGE: Final = "give a token and its secret: `Authorization: Bearer NAME.SECRET`, or HTTP Basic"


class Caller:
    """One caller: known by its credentials, of which only a hash is kept beside the connection."""

    def __init__(self, key: str, client: Client) -> None:
        self.key = key
        self.client = client
        self.used_s = time.monotonic()
        self._secured: bool | None = None

    async def is_secured(self) -> bool:
        """Whether the broker asks for credentials."""
        if self._secured is None:
            self._secured = (await self.client.access.who_am_i()).security
        return self._secured


class Callers:
    """Connections by caller; the least recently used are closed when there are too many, or when nobody used them."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(options)
        self._shows_certificate = any(options.get(name) for name in ("cert_file", "ssl_context"))
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._opening: dict[str, asyncio.Lock] = {}
        self._forgotten: list[Caller] = []
        self._limiter = Limiter(SYSTEM)

    async def of(self, authorization: str | None, address: str) -> Caller:
        name, secret = _credentials(authorization)
        key = hashlib.sha256(f"{name}\0{secret}".encode()).hexdigest()
        try:
            async with self._opening.setdefault(key, asyncio.Lock()):
                found = self._callers.get(key)
                if found is None:
                    found = self._callers[key] = Caller(key, await self._log_in(name, secret, address))
        finally:
            self._opening.pop(key, None)
        found.used_s = time.monotonic()
        self._callers.move_to_end(key)
        return found

    async def _log_in(self, name: str, secret: str, address: str) -> Client:
        if not secret:
            return await self._open(name, secret, address)

        def refuse(wait_s: float) -> TowlineError:
            return QueueFull(f"too many wrong secrets from {address}: wait {wait_s:.0f} seconds")

        async with self._limiter.trying(address, name, refuse):
            return await self._open(name, secret, address)

    async def _open(self, name: str, secret: str, address: str) -> Client:
        client = await connect_for(address, self._url, **{**self._options, "token": name, "secret": secret})
        if secret or not self._shows_certificate:
            return client
        # The certificate identifies this process, and not its callers.
        if (await client.access.who_am_i()).security:
            await client.close()
            raise NotLetIn(MESSAGE)
        return client

    async def forget(self, caller: Caller) -> None:
        """It was refused: the next call logs in anew."""
        if self._callers.get(caller.key) is caller:
            del self._callers[caller.key]
            self._forgotten.append(caller)  # others may be using it still: it is closed in a while

    async def tidy(self, busy: set[str]) -> None:
        """Close clients that nobody used for a while. Those in `busy` hold messages, and stay."""
        forgotten, self._forgotten = self._forgotten, []
        for caller in forgotten:
            await _close(caller)
        now_s = time.monotonic()
        for key, caller in list(self._callers.items()):
            over = len(self._callers) > CALLERS_MAX
            if key not in busy and (over or now_s - caller.used_s > IDLE_S):
                del self._callers[key]
                await _close(caller)

    async def close(self) -> None:
        callers = [*self._callers.values(), *self._forgotten]
        self._callers, self._forgotten = OrderedDict(), []
        for caller in callers:
            await _close(caller)


async def _close(caller: Caller) -> None:
    try:
        await caller.client.close()
    except TowlineError:
        pass  # It goes anyway.


def _credentials(authorization: str | None) -> tuple[str, str]:
    if not authorization:
        return "", ""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        name, dot, secret = rest.strip().rpartition(".")
        if dot and name and secret:
            return name, secret
    elif scheme.lower() == "basic":
        try:
            name, colon, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise NotLetIn(MESSAGE) from None
        if colon:
            return name, secret
    raise NotLetIn(MESSAGE)


async def _who(request: Request) -> Caller:
    callers: Callers = request.app.state.callers
    caller = await callers.of(request.headers.get("authorization"), request.client.host if request.client else "")
    request.state.caller = caller
    hosts: Hosts | None = request.app.state.hosts
    problem = hosts.problem(request.headers.get("host", "")) if hosts is not None else ""
    # A foreign page, whose name points here for a moment, has no secret: it matters where none is asked for.
    if problem and not await caller.is_secured():
        raise Refused(problem)
    return caller


async def _mq(caller: Annotated[Caller, Depends(_who)]) -> Client:
    return caller.client


Who = Annotated[Caller, Depends(_who)]
Mq = Annotated[Client, Depends(_mq)]
