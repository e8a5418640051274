"""Wrong logins, counted by where they come from.

Never by name alone: whoever knows a name could lock its user out. So a right login from elsewhere passes, however often
others try.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

from towline.clock import Clock
from towline.errors import NotLetIn

__all__ = ["TRIES", "TRIES_OF_ORIGIN", "Tries"]

TRIES: Final = 10
"""So many wrong ones for a name from one origin are looked at within …"""
TRIES_S: Final = 60.0
TRIES_OF_ORIGIN: Final = 100
"""So many for all names together."""
GATEWAYS: Final = frozenset({"127.0.0.1", "::1"})
GATEWAY_FACTOR: Final = 10
"""So many times more from here: console and REST speak for people elsewhere, and count by their addresses."""
KNOWN_MAX: Final = 10_000
"""Beyond it the oldest are forgotten: of names, and of origins."""

_Key = TypeVar("_Key")


class Tries:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._by_origin: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def count(self, origin: str, name: str) -> None:
        """One more, before it is known to be wrong, so that many at once are many. Raises `NotLetIn` if that is too
        many: in the same words whether there is such a name or not."""
        own, of_name = self._of_minute(self._by_origin, origin), self._of_minute(self._by_name, (origin, name))
        factor = GATEWAY_FACTOR if origin in GATEWAYS else 1
        if of_name[0] >= TRIES * factor:
            raise NotLetIn(f"too many wrong passwords for {name} from {origin}: try again in a minute")
        if own[0] >= TRIES_OF_ORIGIN * factor:
            raise NotLetIn(f"too many wrong passwords from {origin}: try again in a minute")
        _note(self._by_origin, origin, (own[0] + 1, own[1]))
        _note(self._by_name, (origin, name), (of_name[0] + 1, of_name[1]))

    def was_right(self, origin: str, name: str) -> None:
        self._by_name.pop((origin, name), None)
        # Only this one: who has a password of their own could guess those of others for ever.
        count, since_s = self._by_origin.get(origin, (0, 0.0))
        if count > 1:
            self._by_origin[origin] = (count - 1, since_s)
        else:
            self._by_origin.pop(origin, None)

    def _of_minute(self, table: OrderedDict[_Key, tuple[int, float]], key: _Key) -> tuple[int, float]:
        now_s = self._clock.steady_s()
        count, since_s = table.get(key, (0, now_s))
        return (0, now_s) if now_s - since_s > TRIES_S else (count, since_s)


def _note(table: OrderedDict[_Key, tuple[int, float]], key: _Key, value: tuple[int, float]) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > KNOWN_MAX:
        table.popitem(last=False)
