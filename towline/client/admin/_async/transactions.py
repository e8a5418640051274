"""Prepared transactions, from outside: list, find, resolve."""

from __future__ import annotations

from typing import Literal

from towline.client import requests
from towline.client.admin._async.router import Noun
from towline.protocol.transactions import TransactionState

__all__ = ["Transactions"]


class Transactions(Noun):
    async def transactions(self, *, parked: bool = False, limit: int = 1_000) -> list[TransactionState]:
        """The prepared transactions that are not decided yet, the oldest first; or only those that are parked, because
        nobody could tell what became of them."""
        return await self._router.here(requests.transactions("", parked, limit))

    async def find_transaction(self, transaction: str) -> TransactionState:
        """A prepared transaction by its id, decided or not."""
        [found] = await self._router.here(requests.transactions(transaction, False, 1))
        return found

    async def resolve_transaction(
        self, transaction: str, verdict: Literal["commit", "rollback"], *, reason: str = ""
    ) -> None:
        """Decide a prepared transaction by hand."""
        await self._router.here(requests.resolve_transaction(transaction, verdict, reason))
