"""What a consumer settles as a whole, of which a part is not its any more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from towline.delivery.group.events import Part
from towline.delivery.group.group import Group
from towline.delivery.group.lease import Lease

__all__ = ["missing"]

MISSING_MAX: Final = 1_000


def missing(group: Group, consumer: str, pull: int, *, up_to: bool) -> list[tuple[int, Part, str]]:
    """Messages of a pull, or also of those before it, that were taken away from their consumer; with the number of
    their pull, and why. The first so many ranges of them."""
    lease = group.leases.get(pull) or group.settled.get(pull)
    robbed = [] if lease is None or not lease.taken or lease.consumer != consumer else [lease]
    if up_to:
        before = chain(group.leases.values(), group.settled.robbed.values())
        robbed += [one for one in before if one.taken and one.consumer == consumer and one.pull < pull]
    return list(islice(_parts(robbed), MISSING_MAX))


def _parts(leases: list[Lease]) -> Iterator[tuple[int, Part, str]]:
    for lease in leases:
        for part in lease.gone:
            yield lease.pull, part, lease.why
