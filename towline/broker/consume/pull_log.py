"""A group's pull log: appending its events, some at once, some a moment later; and its recovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from towline.broker.journal import Journal, replayed
from towline.clock import SteadyClock, TimeSlice, in_steps
from towline.delivery import Event, Group, GroupSnapshot, decode_event, encode_event, mend, restore
from towline.delivery.group.events import Pulled, Started, shifted
from towline.errors import TowlineError, Unavailable
from towline.frame import encode_events
from towline.model import Durability, GroupConfig, pull_stream
from towline.store import Append, Appended, Lost, Store

if TYPE_CHECKING:
    from towline.delivery.group.snapshot import Rest

__all__ = ["LATE_S", "PullLog", "recover_group"]

log = logging.getLogger("towline.broker")

LATE_S: Final = 0.002
STANDING_LATE_S: Final = 0.01
"""For acks that follow a standing pull a few milliseconds later, and carry it."""
LATE_MAX: Final = 64
NEVER: Final = float("inf")


class PullLog(Journal[Event]):
    """A pull need not be in the log before it is answered: if a crash undoes it, its number is never given to anyone
    else, and the messages are delivered again. So it is appended after the answer: with the next event of the group,
    which mostly is the ack of just these messages, or a moment later, whatever comes first. Memory is ahead of the log
    by such events only. The group goes by a steady clock; in the log, events have the times of the wall clock."""

    __slots__ = ("_closed", "_due_s", "_failed", "_late", "_loop", "_time")

    def __init__(self, store: Store, stream: str, time: SteadyClock, apply: Callable[[Event], object]) -> None:
        super().__init__(store, stream, encode_event, decode_event, lambda event, _: apply(event))
        self._time = time
        self._loop: asyncio.AbstractEventLoop | None = None
        self._late: list[Event] = []
        self._due_s = NEVER
        """When late events are appended, by the loop's clock."""
        self._failed = False
        self._closed = False

    @property
    def position(self) -> int:
        """The number of the next event; all that was applied is before it."""
        self.catch_up()
        return self.next

    @property
    def count(self) -> int:
        """The number of events so far, written or not."""
        return self.next + len(self._late)

    def append(
        self,
        events: Sequence[Event],
        durability: Durability,
        also: Sequence[Append] = (),
        instead: Sequence[Event] | None = None,
    ) -> Appended:
        """Append events, and `also` in one unit with them, and apply them. If it is refused, nothing has happened; if
        `also` is refused late, as many others stand `instead`."""
        if self._closed:
            # The group may have been deleted, and its stream be another's by now.
            raise Unavailable(f"{self.stream} is closed")
        late = self._late
        if late and instead is not None:
            instead = [*late, *instead]
        own = self.entry([*late, *events] if late else events, instead)
        appended = self._store.append([*also, own], durability)
        self.next += len(late)
        late.clear()
        self._failed = False
        self.note(events, appended.at_us)
        return appended

    def append_soon(self, pulled: Pulled, *, stands: bool = False) -> None:
        """Apply it, and append it once its consumer is answered; a little later still for a standing pull."""
        if self._failed or len(self._late) >= LATE_MAX:
            self.catch_up()
        self._late.append(pulled)
        self._apply(pulled, 0)
        late_s = STANDING_LATE_S if stands else LATE_S
        if self._due_s is NEVER or not stands:
            loop = self._loop = self._loop or asyncio.get_running_loop()
            due_s = loop.time() + late_s
            if due_s < self._due_s:
                self._due_s = due_s
                loop.call_at(due_s, self._on_time)

    def catch_up(self) -> Appended | None:
        return self.append((), Durability.OS) if self._late else None

    def _on_time(self) -> None:
        self._due_s = NEVER
        try:
            self.catch_up()
        except TowlineError as error:
            # Nothing more is granted before this is in the log; see `append_soon`.
            self._failed = True
            log.error("%s: %d pulls are not in the pull log yet: %s", self.stream, len(self._late), error)

    def close(self) -> None:
        """Nothing more is written. Late events are as if a crash had undone them."""
        self._closed = True
        self._late.clear()

    def _frame(self, events: Sequence[Event]) -> bytes:
        if set_us := self._time.set_us:
            events = [shifted(event, set_us) for event in events]
        return encode_events([encode_event(event) for event in events], produced_at_us=events[0].at_us)


async def recover_group(
    store: Store,
    config: GroupConfig,
    document: GroupSnapshot | None,
    part: TimeSlice,
    *,
    shards: int = 0,
    rest: Rest | None = None,
) -> Group:
    """Recover a group: its snapshot, then event by event through the same `apply` as ever."""
    stream = pull_stream(config.topic, config.name)
    if document is not None and document.places(shards) is None:
        log.error("the snapshot of %s is of other lanes than the topic has: the pull log is replayed instead", stream)
        document = None
    back = _Recovery(Group(config, shards), stream)
    if document is not None:
        back.group = await in_steps(restore(config, document, shards, rest), part)
    position = 0 if document is None else document.position
    async for _, event, _ in replayed(store, stream, position, decode_event, part, lost=back.lost):
        if isinstance(event, Started):
            # The snapshot may be of a group that was deleted, and made anew under the same name.
            back.group, back.whole = Group(config, shards), True
        while isinstance(event, Pulled) and back.group.retries.ripen(event.at_us):
            await part.rest()
        back.apply(event)
    return back.group


class _Recovery:
    """A group as far as it has come back. Once events are lost, the rest is made to fit."""

    def __init__(self, group: Group, stream: str) -> None:
        self.group = group
        self.whole = True
        self._stream = stream

    def lost(self, lost: Lost) -> None:
        self.whole = False
        log.error("pull log %s: %d events from %d on are lost: %s", self._stream, lost.count, lost.first, lost.reason)

    def apply(self, event: Event) -> None:
        if self.whole:
            try:
                self.group.apply(event)
            except Exception:
                # A group that delivers some messages again is better than a broker that does not start.
                log.exception("pull log %s: an event does not fit those before it: %s", self._stream, event)
            else:
                return
        self.whole = False
        if mend(self.group, event):
            name = type(event).__name__
            log.warning("pull log %s: an event that followed lost ones was made to fit: %s", self._stream, name)
