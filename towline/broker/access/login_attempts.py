"""Wrong logins, counted by origin.

Never by name alone: whoever knows a name could lock its user out. So a right login from elsewhere passes, however often
others try.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final, TypeVar

from towline.clock import Clock
from towline.errors import BadRequest, NotLetIn
from towline.model import origin_of

__all__ = ["TRIES", "TRIES_OF_ORIGIN", "LoginAttempts"]

TRIES: Final = 10
"""Wrong attempts for a name from one origin within …"""
TRIES_S: Final = 60.0
TRIES_OF_ORIGIN: Final = 100
"""Wrong attempts for all names together."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
GATEWAY_FACTOR: Final = 10
"""The factor for gateways: console and REST speak for users elsewhere, and state their addresses."""
VIA: Final = " via "
KNOWN_MAX: Final = 10_000
"""Beyond it the oldest are forgotten: of names, and of origins."""

_Key = TypeVar("_Key")


class LoginAttempts:
    """An origin is an address; or one and the gateway by way of which it came."""

    def __init__(self, clock: Clock, gateways: str = "") -> None:
        self._clock = clock
        self._gateways = [_network(one.strip()) for one in gateways.split(",") if one.strip()]
        self._by_name: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._by_origin: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def origin(self, origin: str, caller: str) -> str:
        """The origin to count under: of the users of a gateway, their own address. Each gateway has its own: it could
        claim anything."""
        return f"{origin_of(caller)}{VIA}{origin}" if caller and self._is_gateway(origin) else origin

    def _is_gateway(self, origin: str) -> bool:
        if origin in LOOPBACK:
            return True
        try:
            network = ipaddress.ip_network(origin)
        except ValueError:
            return False
        return any(one.version == network.version and one.overlaps(network) for one in self._gateways)

    def count(self, origin: str, name: str) -> None:
        """Count an attempt, before it is known to be wrong, so that many at once are many. Raises `NotLetIn` if that is
        too many: in the same words whether there is such a name or not."""
        of_name = self._of_minute(self._by_name, (origin, name))
        if of_name[0] >= TRIES * self._factor(origin):
            raise NotLetIn(f"too many wrong passwords for {name} from {origin}: try again in a minute")
        places = {one: self._of_minute(self._by_origin, one) for one in _places(origin)}
        for one, (count, _) in places.items():
            if count >= TRIES_OF_ORIGIN * self._factor(one):
                raise NotLetIn(f"too many wrong passwords from {one}: try again in a minute")
        for one, (count, since_s) in places.items():
            _note(self._by_origin, one, (count + 1, since_s))
        _note(self._by_name, (origin, name), (of_name[0] + 1, of_name[1]))

    def was_right(self, origin: str, name: str) -> None:
        self._by_name.pop((origin, name), None)
        # Only this one: otherwise a user with a password could guess those of others for ever.
        for one in _places(origin):
            count, since_s = self._by_origin.get(one, (0, 0.0))
            if count > 1:
                self._by_origin[one] = (count - 1, since_s)
            else:
                self._by_origin.pop(one, None)

    def _factor(self, origin: str) -> int:
        return GATEWAY_FACTOR if self._is_gateway(origin) else 1

    def _of_minute(self, table: OrderedDict[_Key, tuple[int, float]], key: _Key) -> tuple[int, float]:
        now_s = self._clock.steady_s()
        count, since_s = table.get(key, (0, now_s))
        return (0, now_s) if now_s - since_s > TRIES_S else (count, since_s)


def _places(origin: str) -> list[str]:
    """The origin, and the gateway by way of which it came: that one may claim of each attempt that it is somebody
    else's."""
    _, via, gateway = origin.rpartition(VIA)
    return [origin, gateway] if via else [origin]


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise BadRequest(f"setting gateways: {text!r} is neither an address nor a network, as 10.0.0.0/24") from None


def _note(table: OrderedDict[_Key, tuple[int, float]], key: _Key, value: tuple[int, float]) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > KNOWN_MAX:
        table.popitem(last=False)
