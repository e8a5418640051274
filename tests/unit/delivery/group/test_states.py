"""The table of states: it is what `apply` goes by, and what the documentation says.

Run `python -m tests.unit.delivery.group.test_states` to write docs/delivery-states.md anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.unit.delivery.driver import ANN, MIDDLE, NOON, Driver
from towline.delivery import Bury, Event, Part, Resend, Skip
from towline.delivery.group import states as table
from towline.delivery.group.events import (
    Acked,
    Buried,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Paused,
    Pulled,
    Released,
    Resent,
    Resumed,
    Returned,
    Skipped,
    Started,
)
from towline.delivery.group.states import RULES, TRANSITIONS, State, describe
from towline.model import Span

PAGE = Path(__file__).resolve().parents[4] / "docs" / "delivery-states.md"
BEGIN = (
    "<!-- begin: written by `python -m tests.unit.delivery.group.test_states` from "
    "towline/delivery/group/states.py -->\n"
)
END = "<!-- end -->\n"

PIECE = Part(MIDDLE, 0, 2, 1)


def page_with(description: str, page: str) -> str:
    """The page with the description between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + description + END + after


def in_state(state: State) -> Driver:
    """A group with two messages, both in this state, that are or were of pull 1."""
    mq = Driver()
    mq.append(MIDDLE, 2)
    if state is State.WAITING:
        return mq
    mq.pull(ANN)
    if state is State.RETRYING:
        mq.give_back()
    elif state is State.DONE:
        mq.ack()
    elif state is State.GONE:
        mq.do(Skip(1, (Span(MIDDLE, 0, 2),), "damaged"))
    elif state in (State.DYING, State.DEAD):
        mq.nack(dead=True)
        if state is State.DEAD:
            mq.do(Bury((PIECE,), 0))
    return mq


def state_of(mq: Driver) -> State:
    """The one state that both messages are in, as the group keeps it."""
    group = mq.group
    held = {
        State.WAITING: group.backlog(),
        State.LEASED: group.leased(),
        State.RETRYING: group.retries.messages,
        State.DYING: sum(part.count for part in group.dying),
        **group.counters,
    }
    [state] = [state for state, count in held.items() if count]
    assert held[state] == 2
    return state


def event_of(kind: type[Event], source: State) -> Event:
    """An event of this kind about both messages."""
    pull = 0 if source is State.DYING else 1
    events: list[Event] = [
        Pulled(NOON, 2, ANN, 0, (PIECE,)),
        Acked(NOON, 1, (PIECE,)),
        Failed(NOON, 1, (PIECE,), NOON, ""),
        GaveUp(NOON, 1, (PIECE,), ""),
        Returned(NOON, 1, (PIECE,)),
        Released(NOON, 1, (PIECE,), ""),
        Buried(NOON, (PIECE,), 0),
        Skipped(NOON, pull, (PIECE,), ""),
        Overrun(NOON, (PIECE,)),
    ]
    return next(event for event in events if isinstance(event, kind))


MOVING = [rule for rule in TRANSITIONS if rule.event not in (Resent, Moved)]
MOVED = [rule for rule in TRANSITIONS if rule.event is Moved]


def test_every_event_that_moves_messages_is_in_the_table_once_and_a_move_for_each_way() -> None:
    assert sorted([rule.event.__name__ for rule in TRANSITIONS if rule.event is not Moved] + ["Moved"]) == sorted(
        event.__name__ for event in get_args(Event) if event not in (Started, Paused, Resumed)
    )
    assert [rule.target for rule in MOVED] == [State.WAITING, State.GONE, State.RETRYING]


@pytest.mark.parametrize("source", State)
def test_a_move_brings_messages_from_all_states_of_the_table_to_the_one_it_says(source: State) -> None:
    back, forwards, beside = MOVED
    mq = in_state(source)
    if source in back.sources:
        mq.group.apply(Moved(NOON, ((MIDDLE, 0),)))
        assert mq.group.backlog() == 2
        assert not mq.group.lag() - 2
    mq = in_state(source)
    if source in forwards.sources:
        mq.group.apply(Moved(NOON, ((MIDDLE, 2),)))
        assert state_of(mq) is forwards.target
    mq = in_state(source)
    if source in beside.sources:
        mq.group.apply(Moved(NOON, ((MIDDLE, 1),)))
        assert (mq.group.backlog(), mq.retries(), mq.group.leased()) == (1, [(Part(MIDDLE, 0, 1, 1), 0)], 0)


def test_every_state_can_be_reached_and_only_the_last_ones_are_final() -> None:
    reached = {State.WAITING}
    for _ in State:
        reached |= {rule.target for rule in TRANSITIONS if reached & set(rule.sources)}
    assert reached == set(State)
    final = set(State) - {source for rule in TRANSITIONS if rule.event is not Moved for source in rule.sources}
    assert final == {State.DONE, State.GONE}


@pytest.mark.parametrize("state", State)
def test_a_group_keeps_each_state_in_its_own_way(state: State) -> None:
    assert state_of(in_state(state)) is state


@pytest.mark.parametrize(
    ("rule", "source"),
    [pytest.param(rule, source, id=f"{rule.event.__name__}-{source.name}") for rule in MOVING for source in State],
)
def test_an_event_moves_messages_as_the_table_says_and_in_no_other_way(rule: table.Transition, source: State) -> None:
    mq = in_state(source)
    event = event_of(rule.event, source)
    if source in rule.sources:
        mq.group.apply(event)
        assert state_of(mq) is rule.target
    else:
        with pytest.raises(AssertionError):
            mq.group.apply(event)


@pytest.mark.parametrize("rule", [rule for rule in MOVING if rule.target in (State.DONE, State.DEAD)])
def test_the_table_drives_apply(rule: table.Transition, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a table that says otherwise
    monkeypatch.setitem(RULES, rule.event, rule._replace(target=State.GONE))
    mq = in_state(rule.sources[0])
    # When the event is applied
    mq.group.apply(event_of(rule.event, rule.sources[0]))
    # Then it is as that table says
    assert state_of(mq) is State.GONE


def test_a_dead_letter_that_is_sent_again_is_dead_no_more_and_its_copy_waits() -> None:
    mq = in_state(State.DEAD)
    mq.do(Resend((0, 1)))
    mq.append(MIDDLE + 3, 2)
    assert state_of(mq) is RULES[Resent].target
    with pytest.raises(AssertionError):
        mq.group.apply(Resent(NOON, ((1, 1),)))


def test_every_state_has_a_status_that_users_know() -> None:
    assert {state.status for state in State} == {"NEW", "RUNNING", "FAIL", "SUCCESS", "DEAD", "GONE"}


def test_the_page_about_states_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(describe(), page), (
        f"{PAGE.name} is stale: run `python -m tests.unit.delivery.group.test_states` and look at the difference"
    )


if __name__ == "__main__":
    PAGE.write_text(page_with(describe(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
