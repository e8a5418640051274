"""Options of users and tokens: roles and quotas."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from towline.cli.options import Usage
from towline.protocol.access import Quota

__all__ = ["Connections", "InFlight", "Rate", "Roles", "quota_facts", "quota_of"]

Roles = Annotated[
    list[str] | None,
    Parameter(
        name="--role",
        help="A role: admin, operator, viewer, producer, consumer, or one that rules name (role:NAME); repeatable.",
        negative=(),
    ),
]
Rate = Annotated[int | None, Parameter(help="Bytes a second that it may send and receive; 0 is no limit.")]
Connections = Annotated[int | None, Parameter(help="Connections that it may have; 0 is no limit.")]
InFlight = Annotated[int | None, Parameter(help="Messages that it may hold unsettled; 0 is no limit.")]


def quota_of(old: Quota, bytes_per_s: int | None, connections: int | None, in_flight: int | None) -> Quota:
    given = (bytes_per_s, connections, in_flight)
    if any(one is not None and one < 0 for one in given):
        raise Usage("a quota is 0 (no limit) or more")
    kept = (old.bytes_per_s, old.connections, old.in_flight)
    return Quota(*(was if one is None else one for one, was in zip(given, kept, strict=True)))


def quota_facts(quota: Quota) -> dict[str, int]:
    return {"bytes_per_s": quota.bytes_per_s, "connections": quota.connections, "in_flight": quota.in_flight}
