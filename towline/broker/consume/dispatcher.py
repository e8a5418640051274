"""One group at work: delivery decides, the pull log records, waiting pulls are granted."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from towline.broker.consume.dead_letters import DeadLetterLog
from towline.broker.consume.fetch import Buffers, Fetched, at_hand, collect
from towline.broker.consume.message_limits import MessageLimits
from towline.broker.consume.pull_log import PullLog
from towline.broker.consume.settle import NOTHING, Settlement
from towline.broker.consume.waiting_pull import Taker, WaitingPull, in_turn
from towline.broker.refused_writes import Refusals
from towline.broker.topics.topic import Lane
from towline.clock import SECOND_US, Clock, SteadyClock, TimeSlice
from towline.delivery import Ack, Command, Event, Expire, GiveBack, Group, Lapse, Leave, Part, Pull, Skip, missing
from towline.delivery.group.events import Buried, Failed, GaveUp, Overrun, Pulled, Released, Resent
from towline.delivery.group.group import TAKE_MAX
from towline.errors import LeaseLost, NotFound, QueueFull, TooLarge, TowlineError, Unavailable, Unreadable
from towline.model import AT_MOST_ONCE, LANES, Durability, Span, own_stream, pull_stream
from towline.protocol import messages as wire

if TYPE_CHECKING:
    from towline.broker.consume.member import Member
    from towline.broker.loop_lag import LoopLag
    from towline.broker.topics.oldest_messages import Oldest
    from towline.store import Append, Appended, Store

__all__ = ["LOST_MAX", "ROOM_S", "Dispatcher", "NoRoom"]

log = logging.getLogger("towline.broker")

LISTED_MAX = 5
"""Ranges of messages in a log line."""
LOST_MAX = 1_000
"""Ranges of lost messages in the answer to a beat."""
PROBE_MIN_S = 0.1
PROBE_MAX_S = 5.0
REMIND_S = 300.0
DUE = "retries and timeouts that are due"
ROOM_S = 5.0
"""How long a pull that does not wait for messages waits for room for its answer."""


class NoRoom(QueueFull):
    """The answer budget has no room for this answer."""


class Outage:
    """The store cannot read what a group has to deliver: one pull at a time tries again, the others wait."""

    __slots__ = ("pause_s", "reason", "remind_s", "until_s")

    def __init__(self) -> None:
        self.reason = ""
        self.pause_s = PROBE_MIN_S / 2
        self.until_s = self.remind_s = 0.0


class Dispatcher:
    """All changes of a group go through `run`: decide, append to the pull log, apply, in one step."""

    def __init__(
        self,
        group: Group,
        lanes: Sequence[Lane],
        store: Store,
        clock: Clock,
        time: SteadyClock,
        *,
        next_pull: Callable[[], int],
        durability: Durability,
        lag: LoopLag,
    ) -> None:
        self.group = group
        self.clock = clock
        self.time = time
        """The clock of the group: setting the wall clock makes none of its waits shorter or longer."""
        self.made_us = min(group.config.created_at_us - time.set_us, time.now_us())
        """When the group was made, by the same clock."""
        self.store = store
        self.log = PullLog(store, pull_stream(group.config.topic, group.config.name), time, group.apply)
        owns = [Lane(store, own_stream(group.config.topic, group.config.name, lane)) for lane in LANES]
        self.lanes = [*lanes, *owns]
        self.streams = [lane.stream for lane in self.lanes]
        self._changed: set[int] = set()
        """Lanes that have grown since they were last observed."""
        for number, lane in enumerate(self.lanes):
            lane.watch(self._changed, number)
        self.members: dict[str, Member] = {}
        self.obituary = DeadLetterLog(self.label, clock)
        self.refusals = Refusals[Part](clock)
        """Dying messages that are too large for the dead letters."""
        self.copying: dict[asyncio.Future[None], tuple[Part, ...]] = {}
        """Units of copies being written, each with its event and the messages that die by it."""
        self.on_dying: Callable[[Dispatcher], None] = lambda _: None
        self.closed = False
        self._resting = 0
        """Moves that are under way, in which nothing is delivered."""
        self.stopping = False
        """The broker stops: nothing can be settled any more, and nothing is taken from anyone for that."""
        self.counts = {"pulled": 0, "bytes": 0, "acked": 0, "nacked": 0, "failed": 0}
        self.oldest: dict[int, Oldest] = {}
        """By lane, the oldest message as of the last look."""
        self.next_pull = next_pull
        self._durability = durability
        self._lag = lag
        self._waiters: deque[WaitingPull] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.outage: Outage | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._limits = MessageLimits(group)
        self._watching: list[Callable[[Dispatcher], None]] = []
        self._used_s = clock.steady_s()
        self._unused_before_s = 0.0

    @property
    def stream(self) -> str:
        return self.log.stream

    @property
    def position(self) -> int:
        """The number of the next event of the pull log."""
        return self.log.position

    @property
    def label(self) -> str:
        return f"group {self.group.config.name} on topic {self.group.config.topic}"

    @property
    def unused_s(self) -> float:
        """For how long nobody has used the group, while brokers ran."""
        return 0.0 if self.members else self._unused_before_s + self.clock.steady_s() - self._used_s

    def use(self, *, before_s: float = 0.0) -> None:
        """Somebody uses the group, or did so this long ago."""
        self._used_s, self._unused_before_s = self.clock.steady_s(), before_s

    @property
    def unreadable(self) -> str:
        """Why it waits for the store; empty if it does not."""
        return "" if self.outage is None else self.outage.reason

    def listed(self, ranges: Sequence[Part | Span]) -> str:
        """A log text for messages: there may be very many ranges of them."""
        shown = [f"{self.streams[one.lane]} {one.first} to {one.end - 1}" for one in ranges[:LISTED_MAX]]
        more = f", and {len(ranges) - LISTED_MAX} more ranges" if len(ranges) > LISTED_MAX else ""
        return f"{sum(one.count for one in ranges)} message(s), {', '.join(shown)}{more}"

    # Decide, append, apply

    def run(
        self, command: Command, durability: Durability = Durability.OS, also: Sequence[Append] = ()
    ) -> tuple[list[Event], Appended | None]:
        """Decide a command, append its events, and `also` in one unit with them; apply them. If the append is refused,
        nothing has happened. (A pull is granted by `_try`, and logged a moment later.)"""
        events = self.group.decide(command, self.time.now_us())
        return events, self.record(events, durability, also)

    def record(self, events: Sequence[Event], durability: Durability, also: Sequence[Append] = ()) -> Appended | None:
        if not events:
            return None
        appended = self.log.append(events, durability, also)
        dying = False
        for event in events:
            dying = dying or isinstance(event, GaveUp)
            if isinstance(event, Overrun):
                told = self.listed(event.parts)
                log.warning("%s: retention dropped messages before they were consumed: %s", self.label, told)
        if dying:
            self.on_dying(self)
        return appended

    def record_copies(
        self, event: Buried | Resent, reasons: Sequence[str], copies: Sequence[Append], durability: Durability
    ) -> Appended:
        """Record an event in one unit with the copies of its messages. If these are refused, now or late, nothing has
        happened."""
        nothing = msgspec.structs.replace(event, **({"parts": ()} if isinstance(event, Buried) else {"dead": ()}))
        # The caller has to know the outcome.
        appended = self.log.append([event], max(durability, Durability.OS), copies, [nothing])

        def finish(done: asyncio.Future[None]) -> None:
            del self.copying[done]
            if not done.cancelled() and isinstance(done.exception(), TooLarge):
                self.log.refusals += 1
                self.group.take_back(event, reasons)

        if not appended.done.done():
            self.copying[appended.done] = event.parts if isinstance(event, Buried) else ()
            appended.done.add_done_callback(finish)
        return appended

    def pins(self) -> dict[int, int]:
        """By lane, the oldest message that must not be dropped."""
        pins = self.group.pins()
        for part in chain.from_iterable(self.copying.values()):
            pins[part.lane] = min(part.first, pins.get(part.lane, part.first))
        return pins

    # Pulling

    async def pull(
        self,
        member: Member,
        request: wire.Pull,
        taker: Taker | None = None,
        *,
        least: int = 1,
        room_s: float = ROOM_S,
    ) -> tuple[wire.Pulled, Buffers]:
        """Grant messages, or wait for them; for a pull that does not wait, `least` is the number it takes, and `room_s`
        how long it waits for room. Messages that come while it waits may be taken to the consumer at once, besides
        being the answer in the end: to wake up the waiting task takes time that the consumer would have to wait as
        well. A standing pull goes on waiting then."""
        self._check(member)
        if self._limits.recalling and request.acts:
            await self._limits.recalled()
        settled, done = self._act(member, request.acts) if request.acts else (NOTHING, None)
        begun_s, wait_s = self.clock.steady_s(), request.wait_ms / 1000
        got, full = None, False
        while got is None and not (full or member.fenced or self.closed):
            pulled = self._try(member, request, request.min_messages if request.wait_ms else least)
            if pulled is None and request.wait_ms and not (taker is not None and taker.ending):
                if taker is not None:
                    taker.let_go()  # nobody waits for messages holding room
                waiter = await self._wait(member, request, done, None if settled.refused or settled.lost else taker)
                if waiter.taken is not None:
                    return waiter.taken
                pulled = waiter.future.result()
            elif pulled is not None and pulled.deadline_us:
                self.arm()
            if pulled is None:
                break
            room = request.max_bytes if taker is None else taker.set_aside(request.max_bytes)
            if taker is None or room:
                got = await self._read(member, request, pulled, taker, room)
                if got is None and taker is not None:
                    taker.let_go()
            else:
                full = not await self._wait_for_room(member, request, pulled, taker, begun_s + (wait_s or room_s))
            if got is None and wait_s:
                # All of it was lost or expired; maybe there is something else.
                left_s = begun_s + wait_s - self.clock.steady_s()
                request = msgspec.structs.replace(request, wait_ms=max(round(left_s * 1000), 0))
        if done is not None:
            await done
        if got is None:
            if not wait_s and not request.acts:
                self._check_flow(full=full)
            return wire.Pulled(0, [], settled.refused, lost=settled.lost), []
        pull, fetched = got
        return self._answer(pull, fetched.parts, settled), fetched.buffers

    def _check_flow(self, *, full: bool) -> None:
        """Before an empty answer: raise if messages may be there that could not be read, or had no room."""
        if self.outage is not None:
            raise Unreadable(f"{self.label} waits: {self.outage.reason}")
        if full and not self.stopping:
            raise NoRoom(
                f"{self.label} has messages, but clients have left so many answers that there is no room for another "
                "(max_unread_total_bytes): take those that were sent, then pull again, or raise it"
            )

    def _answer(
        self, pull: int, parts: list[wire.Part], settled: wire.Settled = NOTHING, *, more: bool = False
    ) -> wire.Pulled:
        for part in parts:
            self.counts["pulled"] += part.count
            self.counts["bytes"] += part.length
        return wire.Pulled(pull, parts, settled.refused, lost=settled.lost, more=more)

    def _grant(self, waiter: WaitingPull, pulled: Pulled) -> bool:
        """Answer now, if the granted messages are cached; else the waiting task reads them. True if the pull still
        stands then."""
        found = None
        if waiter.may_take and self.group.config.mode != AT_MOST_ONCE:
            found = at_hand(self.lanes, pulled.parts, waiter.request.max_bytes)
        if found is None:
            waiter.future.set_result(pulled)
            self._waiters.remove(waiter)
            return False
        if self.outage is not None:
            self._end_outage()
        part, buffers = found
        stands = waiter.member.keeps_up(part.count, self.clock.steady_s()) and waiter.stands
        stands = stands and 2 * part.count < waiter.request.max_messages
        answer = self._answer(pulled.pull, [part], more=stands)
        if not stands:
            waiter.future.set_result(pulled)
            self._waiters.remove(waiter)
            waiter.taken = answer, buffers
        assert waiter.taker is not None
        waiter.taker.take(answer, buffers)
        return stands

    async def _wait_for_room(
        self, member: Member, request: wire.Pull, pulled: Pulled, taker: Taker, until_s: float
    ) -> bool:
        """The answer budget has no room. Until it has, others may get the granted messages, and no lease of them
        runs."""
        self._give_back(member, pulled.pull)
        self.wake()
        left_s = until_s - self.clock.steady_s()
        return left_s > 0 and not self.stopping and await taker.wait_for_room(request.max_bytes, left_s)

    async def _read(
        self, member: Member, request: wire.Pull, pulled: Pulled, taker: Taker | None, room: int
    ) -> tuple[int, Fetched] | None:
        """Read a granted pull; None if nothing of it can be handed over, or it was taken away meanwhile."""
        try:
            fetched = await self._collect(request, pulled, taker, room)
        except Unreadable as error:
            self._give_back(member, pulled.pull)
            self._hold(error)
            return None
        except Exception:
            # The consumer gets the error, and never learns of the pull: nobody else would settle it.
            self._give_back(member, pulled.pull)
            raise
        if self.outage is not None:
            self._end_outage()
        if self.closed or pulled.pull not in self.group.leases:
            return None
        self._settle_fetched(member, pulled.pull, fetched)
        if not fetched.parts:
            return None
        if self.group.config.mode == AT_MOST_ONCE:
            # Before anybody sees them: a delivery that a crash undoes has not happened.
            _, appended = self.run(Ack(member.consumer, pulled.pull), self._durability)
            if appended is not None:
                await appended.done
        elif fetched.limits:
            self._limits.note(pulled.pull, fetched.limits, self.time.now_us())
            self.arm()
        return pulled.pull, fetched

    async def _collect(self, request: wire.Pull, pulled: Pulled, taker: Taker | None, room: int) -> Fetched:
        """Read granted messages, as far as there is room for them."""
        size = 0
        try:
            fetched = await collect(
                *(self.store, self.lanes, pulled.parts, room, self.clock.now_us()), scattered=request.scattered
            )
            size = sum(map(len, fetched.buffers))
        finally:
            if taker is not None:
                taker.read(room, size)
        return fetched

    # Unreadable stores

    def _hold(self, error: Unreadable) -> None:
        now_s, outage = self.clock.steady_s(), self.outage or Outage()
        outage.pause_s = min(outage.pause_s * 2, PROBE_MAX_S)
        outage.reason = str(error)
        if now_s >= outage.remind_s:
            outage.remind_s = now_s + REMIND_S
            log.error("%s waits, and skips nothing: %s. It goes on by itself", self.label, error)
        self.outage = outage
        self._probe_later(outage)

    def _probe_later(self, outage: Outage) -> None:
        outage.until_s = self.clock.steady_s() + outage.pause_s
        if self._probe is not None:
            self._probe.cancel()
        self._probe = asyncio.get_running_loop().call_later(outage.pause_s, self._lag.called, DUE, self._on_probe)

    def _may_probe(self, outage: Outage) -> bool:
        if self.clock.steady_s() < outage.until_s:
            return False
        self._probe_later(outage)
        return True

    def _on_probe(self) -> None:
        self._probe = None
        if self.outage is not None and not self.closed:
            if not self.group.lag():
                self.outage = None
                return
            self.outage.until_s = 0.0
            self.wake()

    def _end_outage(self) -> None:
        self.outage = None
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        log.warning("%s goes on: the store can be read again", self.label)
        asyncio.get_running_loop().call_soon(self.wake)

    async def recall_limits(self, spare_s: float) -> None:
        """After a start: read the limits of the messages that consumers still hold. None is overdue before that."""
        spared_us = self.time.now_us() + round(spare_s * SECOND_US)
        await self._limits.recall(self.store, self.streams, self.time, self.label, spared_us)
        self.arm()

    def observe(self) -> None:
        """Observe all lanes: appended and dropped messages. To be called after dropping any."""
        self._changed.update(range(len(self.lanes)))
        self.notice()

    def notice(self) -> None:
        """Observe the lanes that have grown."""
        if self._changed:
            for lane in sorted(self._changed):
                self.group.observe(lane, *self.lanes[lane].look())
            self._changed.clear()

    def _try(self, member: Member, request: wire.Pull, least: int) -> Pulled | None:
        if self._changed:
            self.notice()
        if self._resting or (self.outage is not None and not self._may_probe(self.outage)):
            return None
        command = Pull(member.consumer, self.next_pull(), request.max_messages, request.max_bytes, least)
        events = self.group.decide(command, self.time.now_us())
        if len(events) == 1 and isinstance(events[0], Pulled):
            self.log.append_soon(events[0], stands=request.answers > 1)
            return events[0]
        self.record(events, Durability.OS)
        return next((event for event in events if isinstance(event, Pulled)), None)

    async def _wait(
        self, member: Member, request: wire.Pull, acted: asyncio.Future[None] | None, taker: Taker | None
    ) -> WaitingPull:
        self.check_store()
        loop = asyncio.get_running_loop()
        waiter = WaitingPull(member, request, loop.create_future(), acted, taker)
        self._waiters.append(waiter)
        timer = loop.call_later(request.wait_ms / 1000, self._expire, waiter)
        member.waiting = True
        self.arm()
        try:
            await waiter.future
            return waiter
        except asyncio.CancelledError:
            self._undo(waiter)
            raise
        finally:
            member.waiting = False
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _undo(self, waiter: WaitingPull) -> None:
        """The consumer is gone in the very moment in which it was given something."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None and waiter.taken is None:
            pulled = future.result()
            if pulled is not None:
                self._give_back(waiter.member, pulled.pull)

    def _give_back(self, member: Member, pull: int) -> None:
        if pull in self.group.leases and not self.closed:
            self.run(GiveBack(member.consumer, pull))
            self.arm()

    def _expire(self, waiter: WaitingPull) -> None:
        if waiter.future.done():
            return
        try:
            fewer = waiter.request.min_messages > 1
            waiter.future.set_result(self._try(waiter.member, waiter.request, 1) if fewer else None)
            if fewer:
                self.arm()
        except TowlineError as error:
            waiter.future.set_exception(error)

    def serve(self) -> None:
        """Something may have become deliverable: grant waiting pulls, FIFO; standing pulls whose consumer is busy come
        last."""
        self.notice()
        waiters = deque(self._waiters if len(self._waiters) == 1 else in_turn(self._waiters))
        tried = False
        while waiters:
            # The first one finds out by trying, which is quicker where mostly one waits.
            if tried and not self.group.deliverable(self.time.now_us()):
                break
            waiter, tried = waiters.popleft(), True
            if waiter.future.done():
                continue
            try:
                pulled = self._try(waiter.member, waiter.request, waiter.request.min_messages)
            except TowlineError as error:
                waiter.future.set_exception(error)
                continue
            if pulled is not None and self._grant(waiter, pulled):
                waiters.append(waiter)
        self.arm()

    def bar(self, shards: Set[int]) -> None:
        """Bar these shards, and no others."""
        self.notice()
        if self.group.bar(frozenset(shards)):
            self.wake()

    def has_left(self, shard: int) -> bool:
        """Whether the group has not settled all of a shard."""
        self.notice()
        group = self.group
        assert group.shards is not None, self.label
        at = max(group.next[shard], group.firsts[shard])
        return at < self.lanes[shard].coming or group.shards.has_open(shard)

    def wake(self) -> None:
        if self._waiters:
            self.serve()
        for watcher in self._watching:
            watcher(self)

    def watch(self, watcher: Callable[[Dispatcher], None]) -> None:
        """Call this whenever something may have become deliverable."""
        self._watching.append(watcher)

    def unwatch(self, watcher: Callable[[Dispatcher], None]) -> None:
        if watcher in self._watching:
            self._watching.remove(watcher)

    def _settle_fetched(self, member: Member, pull: int, fetched: Fetched) -> None:
        """Settle granted messages that cannot be handed over."""
        by_reason: dict[str, list[Span]] = {}
        for span, reason in fetched.lost:
            by_reason.setdefault(reason, []).append(span)
        for reason, spans in by_reason.items():
            told = self.listed(spans)
            log.error("%s: messages cannot be delivered and are skipped: %s: %s", self.label, told, reason)
            self.run(Skip(pull, tuple(spans), reason))
        if fetched.expired:
            self.run(Expire(pull, tuple(fetched.expired)))
        if fetched.left and pull in self.group.leases:
            self.run(GiveBack(member.consumer, pull, tuple(fetched.left)))
            self.wake()

    # Settlement

    async def settle(self, member: Member, acts: Sequence[wire.Act]) -> wire.Settled:
        self._check(member)
        if self._limits.recalling:
            await self._limits.recalled()
        settled, done = self._act(member, acts)
        if done is not None:
            await done
        return settled

    def _act(self, member: Member, acts: Sequence[wire.Act]) -> tuple[wire.Settled, asyncio.Future[None] | None]:
        """Carry out acts; returns their answer, and when they are durable."""
        member.settled_s = self.clock.steady_s()
        if self.group.config.mode == AT_MOST_ONCE:
            # All was settled when it was delivered.
            return NOTHING, None
        return Settlement(self, member.consumer, self._durability).act(acts, self._limits)

    def count_failed(self, events: Sequence[Event]) -> None:
        """Count failed deliveries: messages, not acts."""
        failed = (event.parts for event in events if isinstance(event, (Failed, GaveUp, Released)))
        self.counts["failed"] += sum(part.count for parts in failed for part in parts)

    def held(self, member: Member, holding: Sequence[int]) -> wire.Held:
        """Which of these pulls a consumer still holds, and the messages that were taken away."""
        self._check(member)
        if self.group.config.mode == AT_MOST_ONCE:
            # They are the consumer's own since they were delivered.
            return wire.Held(list(holding))
        held: list[int] = []
        lost: list[wire.Lost] = []
        for pull in holding:
            lease = self.group.leases.get(pull)
            if lease is not None and lease.consumer == member.consumer:
                held.append(pull)
                if not lease.taken:
                    continue
            if len(lost) < LOST_MAX:
                gone = missing(self.group, member.consumer, pull, up_to=False)
                lost += [(pull, part.lane, part.first, part.count, why) for _, part, why in gone]
        return wire.Held(held, lost[:LOST_MAX])

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Deliver nothing meanwhile: the messages that are taken from consumers are about to be moved."""
        self._resting += 1
        try:
            yield
        finally:
            self._resting -= 1
            self.wake()

    # Members

    def attach(self, member: Member, holding: Sequence[int]) -> None:
        old = self.members.get(member.consumer)
        if old is not None:
            self._fence(old)
        while self._clear_some(member.consumer, holding):
            pass  # see `make_way`: mostly nothing is left by now
        self.members[member.consumer] = member
        self.use()
        member.held = sorted(lease.pull for lease in self.group.leases.values() if lease.consumer == member.consumer)
        self.wake()

    async def make_way(self, consumer: str, holding: Sequence[int]) -> bool:
        """For a consumer that is about to attach: take back in slices what was held under its name, but for the pulls
        that it still holds. Returns whether others ran meanwhile."""
        part, turns = TimeSlice(), False
        while not self.closed and self._clear_some(consumer, holding):
            if part.over:
                turns = True
                await part.rest()
        return turns

    def _clear_some(self, consumer: str, holding: Collection[int]) -> bool:
        """Returns whether there was anything. Of a leaving consumer, nothing is kept."""
        old = self.members.get(consumer)
        if old is not None and old.parting is not None and old.going:
            return self._take_some(Leave(consumer, *old.parting)) is not None
        keep = set(holding)
        some, room = dict[int, tuple[Span, ...]](), TAKE_MAX
        for lease in self.group.leases.values():
            if room <= 0:
                break
            if lease.consumer == consumer and lease.pull not in keep:
                # The messages behind them in a shard go back as well: there, a pull goes back whole.
                parts = [] if self.group.shards is not None else list(islice(lease.open, room))
                some[lease.pull] = tuple(Span(part.lane, part.first, part.count) for part in parts)
                room -= len(parts) or len(lease.open)
        if some and old is not None:
            self._fence(old)
        for pull, spans in some.items():
            self.run(GiveBack(consumer, pull, spans))
        return bool(some)

    def member(self, consumer: str) -> Member:
        found = self.members.get(consumer)
        if found is None:
            raise NotFound(f"{self.label} has no consumer {consumer[:80]!r}")
        return found

    async def leave(self, member: Member, *, vanished: bool, reason: str = "") -> asyncio.Future[None] | None:
        """A consumer leaves; its messages go to others, in slices. Returns when that is as durable as an ack. Until all
        of it is taken the consumer stays among the members, fenced; also if that cannot be recorded, or not be judged
        yet: see `parting_members`."""
        if self.members.get(member.consumer) is not member:
            return None
        self._fence(member)
        member.parting = vanished, reason
        if vanished and self._limits.recalling:
            return None
        taken, done = await self._take_back(Leave(member.consumer, vanished, reason), member)
        if taken:
            del self.members[member.consumer]
            self.use()
        return done

    async def drop(self, consumer: str, reason: str) -> bool:
        """Take the messages of a consumer that does not come back. False: not all of them yet, because their limits are
        not read again, or it did come back."""
        if self._limits.recalling:
            return False
        return (await self._take_back(Leave(consumer, True, reason), None))[0]

    async def _take_back(self, command: Leave, member: Member | None) -> tuple[bool, asyncio.Future[None] | None]:
        """Take back in slices, until another consumer comes under the name. Returns whether nothing is left, and when
        that is durable."""
        done, part = None, TimeSlice()
        while self.members.get(command.consumer) is member:
            appended = self._take_some(command)
            if appended is None:
                self.wake()
                return True, done
            if done is None and command.vanished:
                told = command.reason or f"{command.consumer} vanished"
                log.warning("%s: %s; its open messages are delivered again", self.label, told)
            done = appended.done
            if part.over:
                if member is not None:
                    member.going = True
                self.wake()
                await part.rest()
                if self.closed or (self.stopping and command.vanished):
                    break
        return False, done

    def _take_some(self, command: Leave) -> Appended | None:
        events, appended = self.run(command, Durability.OS if command.vanished else self._durability)
        if command.vanished:
            self.count_failed(events)
        return appended

    def _fence(self, member: Member) -> None:
        member.fenced = True
        member.cancel_grace()
        self.release(member)

    def release(self, member: Member) -> None:
        for waiter in self._waiters:
            if waiter.member is member and not waiter.future.done():
                waiter.future.set_result(None)

    def _check(self, member: Member) -> None:
        if self.closed:
            raise Unavailable(f"{self.label} is closed")
        if member.fenced:
            raise LeaseLost(
                f"consumer {member.consumer} of {self.label} was replaced by another of the same name, or was not "
                "heard of for too long: attach again"
            )

    # Time

    def arm(self) -> None:
        """Set the one timer of this group to the next time at which time alone makes a difference."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # While attempt limits are being read again, no lease ends.
        recalling = self._limits.recalling
        wake_us = self.group.next_retry_us() if recalling else self.group.next_wake_us()
        if not recalling and self._limits and (late_us := self._limits.next_us()) is not None:
            wake_us = late_us if wake_us is None else min(wake_us, late_us)
        if wake_us is not None and not self.closed:
            delay_s = (wake_us - self.time.now_us()) / SECOND_US
            self._timer = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self._lag.called, DUE, self._on_time)

    def _on_time(self) -> None:
        """Take what is late, as much of it as goes in one step; if there is more, the timer is due again at once."""
        self._timer = None
        if self.stopping:
            return
        try:
            if not self._limits.recalling:
                overdue = self._limits.overdue(self.time.now_us()) if self._limits else ()
                self.count_failed(self.run(Lapse(overdue))[0])
            self.group.retries.ripen(self.time.now_us())
            self.serve()
            for watcher in self._watching:
                watcher(self)
        except TowlineError as error:
            log.error("%s: %s", self.label, error)

    def extend_leases(self, seconds: float) -> None:
        """No lease times out before that."""
        self.group.extend_leases(self.time.now_us() + round(seconds * SECOND_US))

    def stop(self) -> None:
        """The broker is about to stop: leases are kept as they are."""
        self.stopping = True
        self.release_waiters()

    def release_waiters(self) -> None:
        """Answer all waiting pulls with nothing."""
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_result(None)

    def check_store(self) -> None:
        """Waiting pulls fail if nothing can come: the store takes no more writes."""
        if (failure := self.store.failure) is not None:
            raise type(failure)(str(failure))

    def fail_waiters(self, failure: TowlineError) -> None:
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(type(failure)(str(failure)))
        for watcher in self._watching:
            watcher(self)

    def close(self) -> None:
        self.closed = True
        self.log.close()
        self.obituary.tell()
        for lane in self.lanes:
            lane.unwatch(self._changed)
        for timer in (self._timer, self._probe):
            if timer is not None:
                timer.cancel()
        for member in self.members.values():
            member.cancel_grace()
        self.release_waiters()
