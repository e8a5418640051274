"""Garbage collection in a broker's process: a little at a time, and never of everything.

Nearly all objects are freed by their reference counts: a request, a connection, a group or a topic that is gone leaves
no cycles behind. The collector is there for the few cycles that come up nonetheless. It looks through recent objects,
and those that outlive that are set aside for good: to look through a million objects again and again would hold all
clients up for a second each time. They are looked through when nobody is connected.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

__all__ = ["LOOK_S", "YOUNG", "GarbageCollector"]

YOUNG: Final = 5_000
"""Objects made, and not freed, from one collection to the next."""
ROUNDS: Final = 5
"""After so many collections of the youngest, these are looked through together, and the survivors are set aside."""
NEVER: Final = 1 << 30
LOOK_S: Final = 30.0


class GarbageCollector:
    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        self._rounds = 0
        self._set_aside = 0
        self._idle = False

    def settle(self) -> None:
        """Begin; all objects that exist by now are set aside."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, ROUNDS, NEVER)
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # In Python 3.14.0 to 3.14.4 each collection takes in a part of the older ones.
        self._rounds += phase == "stop"
        if phase == "stop" and info["generation"] > 0 and self._rounds >= ROUNDS:
            self._rounds = 0
            self._set_aside += 1
            gc.freeze()

    async def look(self) -> None:
        """If nobody has been connected since the last look, look through all that was set aside."""
        idle, self._idle = self._idle, not self._connections()
        if idle and self._idle and self._set_aside:
            self._set_aside = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()
