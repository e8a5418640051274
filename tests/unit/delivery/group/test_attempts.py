"""How often a message is tried, where its sender said so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.delivery.driver import ANN, MIDDLE, Driver
from towline.delivery import Lapse, Leave, Nack, Part
from towline.delivery.group.events import Failed, GaveUp, Released
from towline.delivery.group.lease import Lease
from towline.model import Span


@given(st.data())
def test_every_message_is_judged_by_its_own_number_or_else_by_the_groups(data: st.DataObject) -> None:
    """Against the same, message by message."""
    lanes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    most = data.draw(st.integers(1, 4))
    own: dict[tuple[int, int], int] = {}
    spans: list[tuple[Span, int]] = []
    parts: list[Part] = []
    for lane, count in enumerate(lanes):
        at = 5
        while at < 5 + count:
            length = data.draw(st.integers(1, 5))
            limit = data.draw(st.integers(0, 4))
            if limit:
                spans.append((Span(lane, at, length), limit))
                own |= {(lane, seq): limit for seq in range(at, at + length)}
            at += length
        if count:
            cut = data.draw(st.integers(0, count))
            pieces = [Part(lane, 5, cut, data.draw(st.integers(1, 5))), Part(lane, 5 + cut, count - cut, 1)]
            parts += [piece for piece in pieces if piece.count]
    lease = Lease(1, ANN, 0, parts)
    lease.limit(data.draw(st.permutations(spans)))
    again, last = lease.by_attempt(parts, most)
    told = {(part.lane, seq): False for part in last for seq in range(part.first, part.end)}
    told |= {(part.lane, seq): True for part in again for seq in range(part.first, part.end)}
    truth = {
        (part.lane, seq): part.attempt < own.get((part.lane, seq), most)
        for part in parts
        for seq in range(part.first, part.end)
    }
    assert told == truth
    assert sum(part.count for part in again + last) == sum(part.count for part in parts)


def test_the_number_counts_for_nacks_and_for_consumers_that_vanish_or_are_too_slow() -> None:
    for how in ("nack", "vanish", "lapse"):
        driver = Driver(max_attempts=2, delays_s=(0.0,), timeout_s=10)
        driver.append(MIDDLE, 6)
        driver.pull(ANN)
        driver.group.leases[driver.pulls].limit([(Span(MIDDLE, 1, 2), 1), (Span(MIDDLE, 4, 1), 3)])
        if how == "nack":
            events = driver.do(Nack(ANN, driver.pulls, (), "no"))
        elif how == "vanish":
            events = driver.do(Leave(ANN, vanished=True))
        else:
            driver.pass_time(11)
            events = driver.do(Lapse())
        gone = [part for event in events if isinstance(event, GaveUp) for part in event.parts]
        kept = [part for event in events if isinstance(event, (Failed, Released)) for part in event.parts]
        assert gone == [Part(MIDDLE, 1, 2, 1)]
        assert sum(part.count for part in kept) == 4
        driver.restart()
        assert driver.group.retries.messages == 4
