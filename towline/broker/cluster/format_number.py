"""The number of the format of a database that several brokers use.

A broker that knows a higher number than the database has does not raise it while brokers are there that do not know it:
they could not be started again, and one that was upgraded could not be taken back. It is raised once none of them has
been there for a while (`cluster_gone_s`). Until then nothing is stored that they could not read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from towline.errors import Unsupported
from towline.format import FORMAT
from towline.protocol.monitor import PutAlarm
from towline.protocol.versions import in_words_of
from towline.store.sql import BROKER, Database, Roster, raise_number, stated_number

if TYPE_CHECKING:
    from towline.clock import Clock
    from towline.protocol.messages import Request

__all__ = ["LOOK_S", "FormatNumber"]

log = logging.getLogger("towline.cluster")

LOOK_S: Final = 2.0
PRESENT_S: Final = 60.0
"""How long a killed broker stays in the table."""
_KEPT_BACK: Final = ("consumerOffset", "producers", "unused")
"""Prefixes of the names of documents that older brokers cannot read, or do not keep up to date: without them a start
replays more, and groups are younger."""
_VERSIONS: Final = {1: 1}
"""By the number of a format, the version of the protocol that came with it."""


class FormatNumber:
    def __init__(self, database: Database, number: int, patience_s: float, clock: Clock) -> None:
        self.number = number
        """The number in the database."""
        self._database = database
        self._roster = Roster(database)
        self._patience_s = patience_s
        self._clock = clock
        self._older_s = clock.steady_s()
        """When a broker that does not know our number was last there, or may have been."""
        if number < FORMAT:
            log.warning(
                "the database has format %d, and is upgraded to %d once no broker of a version before has been there "
                "for %g s: until then those may come back, and then no more", number, FORMAT, patience_s,
            )  # fmt: skip

    @classmethod
    async def of(cls, database: Database, patience_s: float, clock: Clock) -> FormatNumber:
        return cls(database, await stated_number(database), patience_s, clock)

    async def look(self) -> None:
        if not self.older_may_come:
            return
        self.number = await stated_number(self._database)
        present = await self._roster.present(BROKER, PRESENT_S)
        now_s = self._clock.steady_s()
        if any(one.data.get("format", 1) < FORMAT for one in present):
            self._older_s = now_s
        elif self.number < FORMAT and now_s - self._older_s > self._patience_s:
            await raise_number(self._database)
            log.warning(
                "the database is upgraded from format %d to %d: no version of Towline before this one can use it any "
                "more", self.number, FORMAT,
            )  # fmt: skip
            self.number = FORMAT

    @property
    def older_may_come(self) -> bool:
        """Whether brokers of a version before may take our realms."""
        return self.number < FORMAT

    def keeps_back(self, document: str) -> bool:
        """Whether brokers of a version before may be there, which could not read this document."""
        return self.older_may_come and document.startswith(_KEPT_BACK)

    def check(self, request: Request) -> None:
        """Refuse features that brokers of a version before could not read, as long as they may be there."""
        if isinstance(request, PutAlarm) and self.number in _VERSIONS:
            try:
                in_words_of(_VERSIONS[self.number], request)
            except Unsupported as error:
                raise Unsupported(
                    f"brokers on this database that are not upgraded yet {error}; it can be done when they are"
                ) from None
