"""Passwords: hashed with argon2, which takes time and memory on purpose, so it runs in threads, two at a time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections import OrderedDict
from typing import Any, Final

from towline.clock import Clock
from towline.errors import BadRequest, NotLetIn

__all__ = ["PASSWORD_MIN", "Passwords"]

PASSWORD_MIN: Final = 8
AT_ONCE: Final = 2
REMEMBER_S: Final = 60.0
"""A password that was right this long ago or less is right without argon2: a program opens several connections."""
REMEMBER_MAX: Final = 1_000
TRIES: Final = 10
"""So many wrong ones for a name are looked at within …"""
TRIES_S: Final = 60.0


class Passwords:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE)
        self._key = os.urandom(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def hash(self, password: str) -> str:
        if len(password) < PASSWORD_MIN:
            raise BadRequest(f"a password has at least {PASSWORD_MIN} characters")
        async with self._room:
            hashed: str = await asyncio.to_thread(_hasher().hash, password)
        return hashed

    async def verify(self, name: str, hashed: str, password: str) -> bool:
        """Whether it is the password of this hash. Raises `NotLetIn` when too many were wrong."""
        now_s = self._clock.steady_s()
        proof = hmac.digest(self._key, f"{hashed}\0{password}".encode(), hashlib.sha256)
        if now_s - self._right.get(proof, -REMEMBER_S) < REMEMBER_S:
            return True
        count, since_s = self._wrong.get(name, (0, now_s))
        if now_s - since_s > TRIES_S:
            count, since_s = 0, now_s
        if count >= TRIES:
            raise NotLetIn(f"too many wrong passwords for {name}: try again in a minute")
        # Counted before it is known to be wrong, so that many tries at once are many.
        self._note(self._wrong, name, (count + 1, since_s))
        async with self._room:
            right = await asyncio.to_thread(_verify, hashed, password)
        if right:
            self._wrong.pop(name, None)
            self._note(self._right, proof, now_s)
        return right

    def _note(self, table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value
        table.move_to_end(key)
        if len(table) > REMEMBER_MAX:
            table.popitem(last=False)


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise BadRequest(
            "users with passwords need argon2, which is not installed here: pip install 'towline[console]'"
        ) from None
    return PasswordHasher()


def _verify(hashed: str, password: str) -> bool:
    hasher = _hasher()
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return bool(hasher.verify(hashed, password))
    except (InvalidHashError, VerificationError):
        return False
