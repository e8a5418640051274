"""Commands to a group. A command changes nothing by itself: `Group.decide` answers with events."""

from __future__ import annotations

import msgspec

from towline.delivery.group.events import Part
from towline.model import Span

__all__ = [
    "Ack",
    "Bury",
    "Command",
    "Expire",
    "Forfeit",
    "GiveBack",
    "Lapse",
    "Leave",
    "Move",
    "Nack",
    "Pull",
    "Resend",
    "Skip",
    "Start",
    "Withdraw",
]


class Start(msgspec.Struct, frozen=True):
    """Begin a new group at these sequence numbers, one for each lane; and before them, with these messages."""

    positions: tuple[int, ...]
    open: tuple[Part, ...] = ()


class Pull(msgspec.Struct, frozen=True):
    """A consumer asks for messages."""

    consumer: str
    pull: int
    """The number that the pull gets if there is anything to deliver; never used before."""
    max_messages: int
    max_bytes: int
    min_messages: int = 1
    """Answer with nothing while fewer messages than this are there."""


class Ack(msgspec.Struct, frozen=True):
    """A consumer succeeded with messages of a pull; no spans mean all that are still open."""

    consumer: str
    pull: int
    spans: tuple[Span, ...] = ()
    up_to: bool = False
    """Also everything open of this consumer's earlier pulls."""


class Nack(msgspec.Struct, frozen=True):
    """A consumer failed with messages of a pull."""

    consumer: str
    pull: int
    spans: tuple[Span, ...] = ()
    reason: str = ""
    delay_s: float | None = None
    dead: bool = False
    """Do not retry."""


class GiveBack(msgspec.Struct, frozen=True):
    """Messages of a pull that were not worked on: as if they had not been pulled."""

    consumer: str
    pull: int
    spans: tuple[Span, ...] = ()


class Leave(msgspec.Struct, frozen=True):
    """A consumer leaves: in order (its open messages were not worked on), or it vanished (they may be why). The first
    few of them are taken back: repeat it until nothing is left."""

    consumer: str
    vanished: bool
    reason: str = ""


class Lapse(msgspec.Struct, frozen=True):
    """Time has passed: take away the pulls whose deadline is over, then some messages whose own time is. As many as
    `Leave` does: repeat it while something is late."""

    overdue: tuple[tuple[int, tuple[Span, ...], str], ...] = ()
    """Messages of a pull, and the reason."""


class Bury(msgspec.Struct, frozen=True):
    """Dying messages were copied to the dead letters, in this order, from dead letter `dead_first` on."""

    parts: tuple[Part, ...]
    dead_first: int


class Skip(msgspec.Struct, frozen=True):
    """Messages turned out to be unreadable: of a pull, or dying ones (`pull` is 0)."""

    pull: int
    spans: tuple[Span, ...]
    reason: str


class Expire(msgspec.Struct, frozen=True):
    """The lifetime of messages of a pull is over: they were not handed out."""

    pull: int
    spans: tuple[Span, ...]


class Forfeit(msgspec.Struct, frozen=True):
    """Retention waits no longer for leased or retrying messages before these numbers, by lane."""

    before: tuple[tuple[int, int], ...]
    pull: int
    """As in `Pull`: retrying messages are leased by it, for a moment, so that they can be given up."""
    reason: str


class Resend(msgspec.Struct, frozen=True):
    """Dead letters were copied to the group's own lanes, to be delivered again. `dead` are their numbers."""

    dead: tuple[int, ...]


class Withdraw(msgspec.Struct, frozen=True):
    """Take these pulls away from their consumers, because the group is about to move. As much as `Leave` does: repeat
    it until nothing of them is left."""

    pulls: tuple[int, ...]


class Move(msgspec.Struct, frozen=True):
    """Continue elsewhere: by lane, the next message to deliver."""

    moves: tuple[tuple[int, int], ...]
    reason: str = ""


Command = (
    Start | Pull | Ack | Nack | GiveBack | Leave | Lapse | Bury | Skip | Resend | Withdraw | Move | Expire | Forfeit
)
