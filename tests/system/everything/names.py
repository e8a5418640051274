"""What a pull log says of pulls, and what a ledger says of messages, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.broker.conftest import Got
from tests.inside.delivery import EXPIRED, Event, GaveUp, Part, Returned, Skipped
from tests.system.everything.model import SETUPS, TOPICS, Lane
from tests.unit.delivery.ledger import Ledger, Name
from towline.model import LANES

SETUP = {(one.topic, one.group): one for one in SETUPS}


class Ended(NamedTuple):
    """What of a pull was not handed over: its time was over, or it was too much."""

    expired: list[Name]
    returned: list[Name]

    @classmethod
    def of(cls, events: Sequence[Event], pull: int) -> Ended:
        found = cls([], [])
        for event in events:
            if isinstance(event, (Skipped, GaveUp)) and event.pull == pull:
                assert event.reason == EXPIRED
                found.expired.extend(names_in(event.parts))
            elif isinstance(event, Returned) and event.pull == pull:
                found.returned.extend(names_in(event.parts))
        return found


def names_in(parts: Sequence[Part]) -> dict[Name, int]:
    return {(part.lane, number): part.attempt for part in parts for number in range(part.first, part.end)}


def names_of(got: Got) -> dict[Name, int]:
    found = {(one.lane, one.first + index): one.attempt for one in got.parts for index in range(one.count)}
    assert len(found) == len(got.bodies), "a message is there twice"
    return found


def expected_states(ledger: Ledger) -> dict[Name, tuple[object, ...]]:
    holders = {name: pull for pull, one in ledger.deliveries.items() for name in one.open}
    return {
        name: (
            message.state,
            message.attempt,
            *([message.due_us] if message.state == "retrying" else []),
            *([holders[name]] if message.state == "leased" else []),
        )
        for name, message in ledger.messages.items()
        if message.state not in ("done", "dead", "gone")
    }


def stream_of(lane: Lane) -> str:
    name = str(lane[1]) if TOPICS[lane[0]] else LANES[lane[1]]
    return f"lane/{lane[0]}/{name}"
