"""Passwords: hashed with argon2, which takes time and memory on purpose, so it runs in threads, two at a time, and one
for each origin (see `login_attempts`): nobody can take all of it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from towline.broker.access.login_attempts import LoginAttempts
from towline.broker.fair_executor import FairExecutor
from towline.clock import Clock
from towline.errors import BadRequest, Conflict

__all__ = ["NOBODYS_HASH", "PASSWORD_MIN", "Passwords"]

PASSWORD_MIN: Final = 8
AT_ONCE: Final = 2
REMEMBER_S: Final = 60.0
"""A password that was right this long ago or less is right without argon2: a program opens several connections."""
REMEMBER_MAX: Final = 1_000
COST: Final[Any] = {"time_cost": 3, "memory_cost": 64 << 10, "parallelism": 4}
NOBODYS_HASH: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$1iIyDGk56wRVtY+uhOLcwA$w/g63yr8y0I5xGJ+mYx2geTyle80ReESQug53uyxzTU"
)
"""The hash of an unknown password, at the same cost: compared where there is none, so that both take as long."""


class Passwords:
    def __init__(self, clock: Clock, gateways: str = "") -> None:
        self._clock = clock
        self._turns = FairExecutor(AT_ONCE)
        self._tries = LoginAttempts(clock, gateways)
        self._key = os.urandom(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._changing: set[str] = set()
        self._looking: dict[tuple[str, str, bytes], asyncio.Task[bool]] = {}

    def origin(self, origin: str, caller: str) -> str:
        """The origin under which wrong passwords of this caller are counted, see `login_attempts`."""
        return self._tries.origin(origin, caller)

    async def hash(self, password: str, origin: str) -> str:
        if len(password) < PASSWORD_MIN:
            raise BadRequest(f"a password has at least {PASSWORD_MIN} characters")
        return await self._turns.run(origin, _hash, password)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """A user changes its own password under this lock: one at a time, so that nobody waits behind hundreds."""
        if name in self._changing:
            raise Conflict(f"the password of {name} is being changed already: one at a time")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.remove(name)

    async def verify(self, name: str, hashed: str, password: str, origin: str) -> bool:
        """Whether it is the password of this hash. Raises `NotLetIn` when too many from this origin were wrong."""
        proof = hmac.digest(self._key, f"{hashed}\0{password}".encode(), hashlib.sha256)
        if self._was_right(proof):
            return True
        # A program opens several connections at once: that is one try.
        key = (origin, name, proof)
        looking = self._looking.get(key)
        if looking is None:
            self._tries.count(origin, name)
            looking = asyncio.create_task(self._look(name, hashed, password, origin, proof))
            self._looking[key] = looking
            looking.add_done_callback(lambda _: self._looking.pop(key))
        return await asyncio.shield(looking)

    def _was_right(self, proof: bytes) -> bool:
        return self._clock.steady_s() - self._right.get(proof, -math.inf) < REMEMBER_S

    async def _look(self, name: str, hashed: str, password: str, origin: str, proof: bytes) -> bool:
        right = await self._turns.run(origin, _verify, hashed, password)
        if right:
            self._tries.was_right(origin, name)
            self._right[proof] = self._clock.steady_s()
            self._right.move_to_end(proof)
            if len(self._right) > REMEMBER_MAX:
                self._right.popitem(last=False)
        return right


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise BadRequest(
            "users with passwords need argon2, which is not installed here: pip install 'towline[console]'"
        ) from None
    return PasswordHasher(**COST)


def _hash(password: str) -> str:
    hashed: str = _hasher().hash(password)
    return hashed


def _verify(hashed: str, password: str) -> bool:
    if hashed == NOBODYS_HASH and find_spec("argon2") is None:
        return False  # No user has a password here.
    hasher = _hasher()
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return bool(hasher.verify(hashed, password))
    except (InvalidHashError, VerificationError):
        return False
