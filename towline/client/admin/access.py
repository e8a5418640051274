"""Grants and quotas, as an administrator's program gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from towline.protocol.access import Grant, Quota

__all__ = ["Grant", "Granted", "Quota", "as_grants"]

Granted = Sequence[Grant | tuple[str, str, str]]


def as_grants(given: Iterable[Grant | tuple[str, str, str]]) -> list[Grant]:
    return [one if isinstance(one, Grant) else Grant(*one) for one in given]
