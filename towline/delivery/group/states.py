"""The one table of a message's states and transitions within a group.

`Group.apply` moves messages by this table and by nothing else; docs/delivery-states.md is generated from it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from towline.delivery.group.events import (
    Acked,
    Buried,
    Event,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Pulled,
    Released,
    Resent,
    Returned,
    Skipped,
)

__all__ = ["RULES", "TRANSITIONS", "State", "Transition", "describe"]


class State(enum.Enum):
    """The state of a message in one group, and how that is kept."""

    WAITING = "not delivered yet: at or behind the group's position in the lane; costs nothing to keep"
    LEASED = "delivered to one consumer, who has neither acked nor nacked it: an open part of a pull"
    RETRYING = "to be delivered again, at once or when its time has come: an entry of the retry queue"
    DYING = "given up, and about to be copied to the dead letters"
    DONE = "consumed: behind the position, and in no list"
    DEAD = "copied to the dead letters, from where it can be sent again"
    GONE = (
        "dropped by retention, unreadable (the broker's log reports both), expired, or passed over by a seek or a purge"
    )

    @property
    def status(self) -> str:
        """The status that users see."""
        return _STATUS[self]

    def status_in(self, attempt: int) -> str:
        """The status, in this delivery of the message: a message that waits for its first one has never failed. It was
        given back."""
        return State.WAITING.status if self is State.RETRYING and attempt <= 1 else self.status


_STATUS = {
    State.WAITING: "NEW",
    State.LEASED: "RUNNING",
    State.RETRYING: "FAIL",
    State.DYING: "FAIL",
    State.DONE: "SUCCESS",
    State.DEAD: "DEAD",
    State.GONE: "GONE",
}


class Transition(NamedTuple):
    event: type[Event]
    sources: tuple[State, ...]
    target: State
    when: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(Pulled, (State.WAITING, State.RETRYING), State.LEASED, "a consumer pulls it"),
    Transition(Acked, (State.LEASED,), State.DONE, "its consumer acks it"),
    Transition(Failed, (State.LEASED,), State.RETRYING, "its consumer nacks it; due after the back-off, attempt + 1"),
    Transition(
        GaveUp,
        (State.LEASED,),
        State.DYING,
        "it failed or was lost for the last time, its consumer says it is dead, or it expired and the group keeps such",
    ),
    Transition(
        Returned,
        (State.LEASED,),
        State.RETRYING,
        "its consumer leaves in order or gives it back; due at once, same attempt",
    ),
    Transition(
        Released,
        (State.LEASED,),
        State.RETRYING,
        "its consumer vanished or took too long; due at once, attempt + 1",
    ),
    Transition(Buried, (State.DYING,), State.DEAD, "its copy is in the dead letters"),
    Transition(
        Skipped,
        (State.LEASED, State.DYING),
        State.GONE,
        "its bytes are damaged or were trimmed away, or its lifetime is over",
    ),
    Transition(Overrun, (State.WAITING,), State.GONE, "retention dropped it before the group came to it"),
    Transition(Resent, (State.DEAD,), State.WAITING, "it is sent again: a copy waits on the group's own lane"),
    Transition(
        Moved,
        (State.LEASED, State.RETRYING, State.DYING, State.DONE, State.DEAD, State.GONE),
        State.WAITING,
        "the group is moved back to it, or to before it: it is delivered again, as for the first time",
    ),
    Transition(
        Moved,
        (State.WAITING, State.LEASED, State.RETRYING, State.DYING),
        State.GONE,
        "the group is moved forwards to behind it, or the topic is purged",
    ),
    Transition(
        Moved,
        (State.LEASED,),
        State.RETRYING,
        "others of its pull were moved, so the pull ended; due at once, same attempt",
    ),
)
"""`Started`, `Paused` and `Resumed` are not here: they move no message. What `Started` names is RETRYING from the
beginning."""

RULES: dict[type[Event], Transition] = {rule.event: rule for rule in TRANSITIONS if rule.event is not Moved}
"""For events that name the messages they move. `Moved` names positions: see `seek`."""


def describe() -> str:
    """The table as Markdown, with a diagram."""
    lines = ["| state | status | meaning |", "|---|---|---|"]
    for state in State:
        first = state.status_in(1)
        shown = state.status if first == state.status else f"{state.status}; {first} if it has never failed"
        lines.append(f"| {state.name} | {shown} | {state.value} |")
    lines += ["", "| event | from | to | when |", "|---|---|---|---|"]
    for rule in TRANSITIONS:
        sources = ", ".join(source.name for source in rule.sources)
        lines.append(f"| {rule.event.__name__} | {sources} | {rule.target.name} | {rule.when} |")
    lines += ["", "```mermaid", "stateDiagram-v2", "    [*] --> WAITING: sent"]
    lines += [
        f"    {source.name} --> {rule.target.name}: {rule.event.__name__}"
        for rule in TRANSITIONS
        for source in rule.sources
    ]
    lines += ["```"]
    return "\n".join(lines) + "\n"
