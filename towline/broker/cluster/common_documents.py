"""Documents that all brokers on one database share: the account store, alarm rules, the topic template.

They are changed at any broker and kept in the database; the others look every two seconds (`EVERY_S`), so that a
revoked token is refused everywhere soon after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from towline.model import TOPICS_FILE
from towline.store.memory import MemoryStore

if TYPE_CHECKING:
    from towline.store.sql import SharedDocuments

__all__ = ["EVERY_S", "CommonDocuments"]

EVERY_S: Final = 2.0
_PLACES: Final = {
    "access.json": ("access.json",),
    "alarms.json": ("shared-alarms.json", "alarms.json"),
    "template.json": ("template.json",),
    "main-topics.json": (TOPICS_FILE,),
}
"""The place of a shared document, and the places where it is looked for if it is not there: the document that a broker
has left in its realm when it was alone on the database counts until there is a newer one."""


class CommonDocuments(MemoryStore):
    """The store of a node: it has no messages, and of its documents the database keeps the shared ones."""

    def __init__(self, documents: SharedDocuments) -> None:
        super().__init__(1_000, 1 << 20)
        self._shared = documents

    async def load(self, name: str) -> bytes | None:
        if name not in _PLACES:
            return await super().load(name)
        for place in _PLACES[name]:
            found = await self._shared.load(place)
            if found is not None:
                return found
        return None

    async def save(self, name: str, document: bytes) -> None:
        if name not in _PLACES:
            await super().save(name, document)
        else:
            await self._shared.save(_PLACES[name][0], document)
