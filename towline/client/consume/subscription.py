"""A subscription, sans I/O: leases held, acks and nacks to be sent, pulls under way.

Pulls are numbered by the broker. A pull is noted as held the moment its answer arrives, so that a broken connection
never makes us forget one; any other pull that the broker counts as held was lost on the way here, and is given back.

Single acks and nacks are noted by the messages themselves, from any thread. Everything else here is done by one thread
at a time: a driver with threads runs every stretch of a flow, and every answer, under the lock of its link.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from towline.client.consume.ack_spool import AckSpool, SpooledAck
from towline.client.consume.broadcast_position import BroadcastPosition
from towline.client.consume.group_settings import EffectiveSettings, RequestedSettings
from towline.client.consume.lease import (
    Lease,
    LostLease,
    LostMessages,
    all_refused,
    drained,
    in_portions,
    lost_parts,
    merged,
)
from towline.client.consume.message import ACKED
from towline.client.consume.outcome import describe
from towline.client.consume.pull_size import PullLimits, PullSize, fits, is_behind, is_full, stands
from towline.client.link.connection import Call
from towline.client.link.flow import Flow, Start, Wait
from towline.errors import BadRequest, Closed, LeaseLost, ProtocolError, Timeout, TowlineError, Unavailable, from_code
from towline.model import AT_MOST_ONCE, GroupConfig, is_pattern
from towline.protocol import split_attachments
from towline.protocol.base import LISTS_MAX_BYTES
from towline.protocol.consume import ACK, GIVE_BACK
from towline.protocol.messages import Act, Attach, Attached, Beat, Detach, Held, Pull, Pulled, Settle, Settled

__all__ = ["Subscription"]

_POLL_S: Final = 60.0
"""A longer wait is made of several pulls."""
_MAX_HOLDING: Final = 10_000
_TAKEN: Final = "they were taken away"
_LATE_S: Final = 0.1
"""An interruption that has taken too long is reported first."""
_TELL_S: Final = 0.005
"""How long acts wait for company while a standing pull cannot carry them."""


class Subscription:
    """One consumer of one topic."""

    def __init__(
        self,
        topic: str,
        group: str,
        consumer: str,
        config: GroupConfig,
        *,
        unique: bool,
        timeout_s: float,
        limits: PullLimits,
        prefetch: int,
        idle_timeout_s: float | None,
        ack_interval_s: float,
        on_lost: Callable[[LostLease], None] | None,
        spool: AckSpool | None = None,
        requested: RequestedSettings = RequestedSettings(),  # noqa: B008 - it is a constant
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = 0
        self.topic = topic
        self.group = group
        self.consumer = consumer
        self.terms = EffectiveSettings(config, requested, prefetch)
        self.limits = limits
        self.by_prefix = is_pattern(topic)
        self.in_tasks = False
        """Coroutines work on its messages."""
        self.shards = 0
        """Of the topic, if it is an ordered one."""
        self.ack_interval_s = ack_interval_s
        self.losses = LostMessages(topic, group, on_lost)
        self.spool = spool
        self.deserted = False
        """It ends because its broker has gone, not because the user closed it: late acks are nobody's fault."""
        self._unique = unique
        self._timeout_s = timeout_s
        self._clock = clock
        self._idle_timeout_s = idle_timeout_s
        self._leases: dict[int, Lease] = {}
        self._progress = BroadcastPosition() if config.ephemeral else None
        self._told_by_place: set[int] = set()
        """Pulls whose acts are under way, and have reached the broker in another way: as our position."""
        self.nacks: deque[Act] = deque()
        self._dirty: deque[Lease] = deque()
        self._settling: dict[Call, None] = {}
        self._pulling: deque[Call] = deque()
        self._error: TowlineError | None = None
        self._fenced = False
        self._fence_error: TowlineError | None = None
        """Why, if that is still to be reported to the user."""
        self._leaving = False
        self._pull_size = PullSize(limits)
        self._at_work = Lease.none()
        """The lease handed out last."""
        self._told_at = 0.0
        self._unreported = 0
        """Messages that were handed out since."""
        self._tell_s = min(ack_interval_s, _TELL_S)

    @property
    def config(self) -> GroupConfig:
        return self.terms.config

    @property
    def holds(self) -> bool:
        """Leases are held or acts to be sent, so that the heartbeat has to look after it."""
        return bool(self._leases or self.nacks or self._dirty)

    @property
    def has_acts(self) -> bool:
        return bool(self.nacks or self._dirty)

    @property
    def in_flight(self) -> int:
        return sum(lease.open_count for lease in list(self._leases.values()))

    @property
    def owed(self) -> int:
        """Messages that were settled here, and whose acts the broker may not have yet."""
        acked = [section.flags.count(ACKED) for lease in {*self._dirty} for section in lease.sections]
        calls = [*self._settling, *(call for call in self._pulling if not call.sent)]
        acts = [act for call in calls for act in call.request.acts]  # type: ignore[attr-defined]
        return sum(acked) + sum(_reach(act, self._leases.get(act.pull)) for act in [*self.nacks, *acts])

    def left_open(self, owed: int, why: object) -> str:
        """Its consumer was not closed, and now it is too late."""
        return (
            f"consumer {self.consumer} of topic {self.topic}, group {self.group}, was not closed before the process "
            f"ended, and lost the acks and nacks of {owed:,} messages, which come again: {why}"
        )

    # Attach

    def attach(self, max_bytes: int = LISTS_MAX_BYTES) -> Attach:
        holding = [*self._leases] if self.spool is None else [*self.spool.pulls(), *self._leases]
        places = None if self._progress is None else self._progress.places(self._leases.values(), max_bytes)
        return Attach(self.topic, self.group, self.consumer, self.config, holding[-_MAX_HOLDING:], places)

    def attached(self, answer: Attached) -> None:
        self.id = answer.subscription
        self.shards = answer.shards
        self.terms.attached(answer)
        held = set(answer.held)
        if self.spool is not None:
            self.spool.still_held(held)
        if self._progress is not None:
            self._begun_anew(self._progress.attached(answer.places))
        for lease in list(self._leases.values()):
            # One that is settled already may be gone because of just that: the acts under way will tell.
            if lease.pull not in held and lease.open_count and not self._is_once(lease):
                self._lose(lease, "they were given to others while the connection was broken")

    def _begun_anew(self, topics: set[str]) -> None:
        """The broker has forgotten our group, and knows by our position what we have settled. The rest comes again."""
        over = {lease.pull: lease for lease in self._leases.values() if lease.topic in topics}
        acts: list[Act] = [act for call in self.unanswered() for act in call.request.acts]  # type: ignore[attr-defined]
        self._told_by_place = {act.pull for act in acts if act.pull in over or act.pull in self._told_by_place}
        # One by one: messages add to them from any thread.
        waiting = [act for act in drained(self.nacks) if act.pull not in over]
        self.nacks.extendleft(reversed(waiting))
        for lease in over.values():
            if self._is_once(lease):
                continue
            if lease.open_count:
                self._lose(lease, "the broker does not know us any more, and delivers them again")
            else:
                lease.take_acks()
                self._forget(lease)

    def expelled(self, error: TowlineError) -> None:
        self._error = error
        for lease in list(self._leases.values()):
            self._lose(lease, str(error))

    # Leases

    def beat(self) -> Call:
        """Send a heartbeat, and learn what was taken away meanwhile."""
        holding = [pull for pull, lease in list(self._leases.items()) if lease.open_count]
        return Call(Beat(self.id, holding[-_MAX_HOLDING:]), (), self, self._on_beat)

    def _on_beat(self, call: Call) -> None:
        if call.error is not None:
            if isinstance(call.error, LeaseLost) and not self._leaving and not self._fenced:
                self._fence_error = None if self._unique else call.error
                self._fence(call.error)
            return
        if not isinstance(call.answer, Held):
            return
        why: dict[int, str] = {}
        for pull, lane, first, count, reason in call.answer.lost:
            why.setdefault(pull, reason)
            lease = self._leases.get(pull)
            if lease is not None:
                self.losses.note(pull, lease.lose_part(lane, first, count, reason), reason or _TAKEN)
                self._forget_if_finished(lease)
        held = set(call.answer.held)
        for pull in call.request.holding:  # type: ignore[attr-defined]
            lease = self._leases.get(pull)
            if lease is not None and pull not in held and lease.open_count:
                self._lose(lease, why.get(pull) or _TAKEN)

    def judge(self, now: float, silent_s: float) -> None:
        """Drop leases that are lost for certain: those not settled in time; and all, when the broker cannot have heard
        of us for `silent_s`, after which it gives a consumer up."""
        for lease in list(self._leases.values()):
            if not lease.open_count or self._is_once(lease):
                continue
            late = 0 < lease.ends_at <= now - _LATE_S
            if not late and not silent_s:
                continue
            why = f"no contact with the broker for {silent_s:.3g} s"
            if late:
                why = f"timeout: not settled within {self.terms.of(lease.topic).timeout_s:g} s"
            self.losses.note(lease.pull, lease.open_count, why)
            acts = lease.forgo(why)
            if not late:
                # It may have heard of us all the same. Late leases it takes away by itself.
                self.nacks.extend(acts)
            else:
                self._forget_if_finished(lease)

    def _is_once(self, lease: Lease) -> bool:
        """Messages delivered at most once are ours for good."""
        return self.terms.of(lease.topic).mode == AT_MOST_ONCE

    def _forget_if_finished(self, lease: Lease) -> None:
        if lease.finished:
            self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.pull, None)
        lease.let_go()

    def start(self) -> Flow[None]:
        answer = yield Call(self.attach())
        if not isinstance(answer, Attached):
            raise ProtocolError(f"an attach was answered by {type(answer).__name__}")
        self._fenced, self._fence_error = False, None
        self.attached(answer)

    def take_up(self) -> Flow[None]:
        """Send what an earlier consumer of this name could not. The connection is attached by now."""
        if self.spool is not None:
            yield from self.spool.tell_left(self)

    def unkept(self, *, ready: bool) -> list[SpooledAck]:
        """Acts to be written to the spool, because the connection is not ready to send them."""
        if self.spool is None:
            return []
        if not ready:
            return self.spool.collect([*self._settling, *self._pulling], self._leases)
        self.spool.told()
        return []

    def close(self) -> Flow[None]:
        """Send all acts, give back what nobody has seen, and leave."""
        self._leaving = True
        for lease in self._leases.values():  # before the last acks are collected: none that comes later is one of them
            lease.closed = not self.deserted
        for call in self._pulling:
            self._give_back(call)
        if self._error is not None or self._fenced:
            return
        yield from self.flush()
        yield Call(Detach(self.id), (), self)

    def nack_handed_out(self, error: Exception, last: Lease, unseen: int) -> None:
        """The messages that the user was given and did not settle have failed; of one lease, `unseen` messages were not
        given yet."""
        reason = describe(error)
        for lease in [] if self._leaving else list(self._leases.values()):
            if lease.handed_out:
                lease.nack_seen(unseen if lease is last else 0, reason)

    # Pull

    def pull(self, limits: PullLimits, wait_s: float) -> Flow[Lease | None]:
        if not 0 <= wait_s <= 86400:
            raise BadRequest(f"wait={wait_s}: give seconds from 0 to 86,400")
        deadline = self._clock() + wait_s
        self._pull_size.asked(self._clock())
        while True:
            left_s = max(deadline - self._clock(), 0.0)
            # There may be one under way: left by an iteration, or by a pull that was interrupted.
            if all(stands(call) and not fits(call, limits) for call in self._pulling):
                for call in self._pulling:
                    call.patience_s = 0.0  # another pull ends it: it is answered at once
                most = max(self._pull_size.size, limits.min_messages) if limits.adapts else limits.max_messages
                yield from self._start_pull(limits, min(most, limits.max_messages), min(left_s, _POLL_S))
            elif self.nacks and not self._pulling[0].done:
                yield from self.start_settles()  # nothing carries what is given back
            call = self._pulling[0]
            patience_s = left_s if call.patience_s > left_s else call.patience_s + self._timeout_s
            if not (yield Wait(call, patience_s)):
                if self._clock() >= deadline + self._timeout_s:
                    raise Timeout(f"no answer to a pull within {self._timeout_s:g} seconds")
                return None
            self._pulled(call)
            if not fits(call, limits) and not self._is_final(call):
                self._give_back(call)
                continue
            lease = self._opened(call, limits.max_messages)
            if lease is not None and limits.adapts:
                self._hand_out(lease)
            if lease is not None or (self._clock() >= deadline and not self._pulling):
                return lease

    def next(self, *, single: bool = False) -> Flow[Lease | None]:
        """The next batch of an iteration; None after the idle timeout. The one after it is under way already, if there
        is more to be had. With `single` its messages are handed out one by one, so that messages delivered at most once
        are fetched one by one as well: the rest of a batch would be lost when the iteration is left."""
        idle_from = self._clock()
        most = 1 if single and self.terms.at_most_once else None
        self._pull_size.asked(idle_from)
        while True:
            call = self._pulling[0] if self._pulling else (yield from self._start_prefetch(idle_from, most))
            if (self.shards or self.by_prefix) and not call.done:
                # Acts sent now free the shards that this pull may be waiting for.
                yield from self.start_settles()
            tell_s, waited = self.ack_interval_s, not call.done
            if stands(call):
                # Nothing carries them that would be sent anyway; and maybe nothing comes before they are sent.
                tell_s = self._tell_s
                crowded = 2 * self._unreported >= self.config.max_in_flight
                if self.has_acts and (crowded or idle_from - self._told_at >= tell_s):
                    yield from self.start_settles()
            while not call.done:
                # No act waits longer than the interval, though nothing comes that could carry it.
                if not (yield Wait(call, tell_s if self.has_acts else _POLL_S)):
                    yield from self.start_settles()
            self._pulled(call)
            lease = self._opened(call, most)
            if lease is not None:
                ahead = self.terms.prefetch
                if len(self._pulling) < ahead and is_full(call) and all(other.done for other in self._pulling):
                    yield from self._start_prefetch(None)
                behind = is_behind(self._pulling)
                self._hand_out(lease, one_by_one=waited and len(lease) == 1 and not behind)
                if behind:
                    yield from self._start_prefetch(None)
                return lease
            if self._idle_timeout_s is not None and self._clock() - idle_from >= self._idle_timeout_s:
                return None

    def _hand_out(self, lease: Lease, *, one_by_one: bool = False) -> None:
        self._at_work = lease
        self._pull_size.handed_out(self._clock(), len(lease), one_by_one=one_by_one)

    def _note_done(self) -> None:
        """A handler that has settled all is done with it, however long it takes until more is asked for."""
        if not self._at_work.open_count:
            self._pull_size.asked(self._clock())

    def _start_prefetch(self, idle_from: float | None, most: int | None = None) -> Flow[Call]:
        wait_s = _POLL_S
        if self._idle_timeout_s is not None:
            idle_s = 0.0 if idle_from is None else self._clock() - idle_from
            wait_s = min(wait_s, max(self._idle_timeout_s - idle_s, 0.0))
        # Where acts free a shard, they must not wait; with no prefetch, nothing is to come ahead; and a full answer is
        # the last one anyway.
        once = self.shards or self.by_prefix or not self.terms.prefetch or self._pull_size.size <= 2
        return self._start_pull(
            self.limits, most or self._pull_size.size, wait_s, 1 if once else self._pull_size.answers
        )

    def _start_pull(self, limits: PullLimits, max_messages: int, wait_s: float, answers: int = 1) -> Flow[Call]:
        """Pull messages; acts to be sent ride along."""
        if self._error is not None:
            raise self._error
        if (told := self._fence_error) is not None:
            self._fence_error = None
            raise told
        if self._fenced:
            yield from self.start()
        if answers > 1:
            # Its first answer is not to wait until acts are durable.
            yield from self.start_settles()
        *others, acts = self._take_portions() or [[]]
        for portion in others:
            yield Start(self._settle(portion))
        least = min(limits.min_messages, max_messages)
        wait_ms = round(wait_s * 1000)
        request = Pull(self.id, max_messages, limits.max_bytes, wait_ms, least, acts, answers, scattered=True)
        call = Call(request, (), self, self._on_pulled)
        call.patience_s = wait_s
        # Noted first: whatever interrupts us here, its answer finds a taker.
        self._pulling.append(call)
        yield Start(call)
        return call

    def _pulled(self, call: Call) -> None:
        if self._leaving:
            raise Closed("the consumer was closed")
        self._pulling.remove(call)

    def _on_pulled(self, call: Call) -> None:
        acts = call.request.acts  # type: ignore[attr-defined]
        if call.error is not None:
            self._answered(acts, Settled(all_refused(acts, call.error)))
            if isinstance(call.error, LeaseLost) and not self._leaving:
                self._fence(call.error)
            return
        answer = call.answer
        if not isinstance(answer, Pulled):
            raise ProtocolError(f"a pull was answered by {type(answer).__name__}")
        self._answered(acts, answer)
        if call.next is not None:
            self._pulling.insert(self._pulling.index(call) + 1, call.next)
        if answer.groups:
            self.terms.learn(answer.groups)
        if answer.pull:
            assert call.attachments is not None, "an answered call has its attachments, maybe empty"
            frames = split_attachments(call.attachments, [part.length for part in answer.parts])
            raw = list(zip(answer.parts, frames, strict=True))
            lease = self._leases[answer.pull] = Lease(answer.pull, raw, self.nacks, self._dirty)
            lease.in_tasks = self.in_tasks
            lease.topic, lease.shards = answer.topic or self.topic, answer.shards or self.shards
            if timeout_s := self.terms.of(lease.topic).timeout_s:
                lease.ends_at = self._clock() + timeout_s
            if self._progress is not None:
                self._progress.given(lease, answer.parts, once=self._is_once(lease))

    def _is_final(self, call: Call) -> bool:
        """Its messages are delivered at most once, and cannot be given back."""
        lease = None if call.answer is None else self._leases.get(call.answer.pull)
        return lease is not None and self.terms.of(lease.topic).mode == AT_MOST_ONCE

    def _give_back(self, call: Call) -> None:
        """Nobody will look at the answer of this pull. (If it is not there yet, then leaving gives it back.)"""
        if call.answer is not None and (lease := self._leases.get(call.answer.pull)) is not None:
            self.put_back(lease)

    def _opened(self, call: Call, most: int | None = None) -> Lease | None:
        if call.error is not None:
            if isinstance(call.error, LeaseLost) and self._unique:
                return None
            raise call.error
        lease = self._leases.get(call.answer.pull)
        if lease is None or lease.lost:
            return None
        if self._is_once(lease):
            del self._leases[lease.pull]
            if most is not None and (rest := lease.cut(most)) is not None:
                # A larger pull was interrupted, and this is its answer. It cannot be given back.
                self._leases[lease.pull] = rest
                self._pulling.appendleft(call)
            lease.open()
            lease.settle_all(ACK)
            lease.let_go()
        else:
            lease.open()
            self._unreported += len(lease)
        return lease if lease.sections else None

    # Settle

    def settle_now(self, lease: Lease, act: Act) -> Flow[None]:
        """Settle a whole pull, and wait until that is durable."""
        if lease.lost:
            raise LeaseLost
        if self._is_once(lease):
            return
        *others, acts = self._take_portions() or [[]]
        for portion in others:
            yield Start(self._settle(portion))
        settled = [lease, *(self._older(act) if act.up_to else ())]
        for one in settled:
            one.settle_all(act.what)
            one.lost_count = one.taken
        self._note_done()
        call = self._settle([*acts, act], confirmed=act)
        try:
            yield call
        except Unavailable:
            if self.spool is not None and self.spool.keep(self.unkept(ready=False)):
                # It is on the local disk, which is as good.
                return
            raise
        for index, code, text in call.answer.refused:
            if index == len(acts) and act.pull not in self._told_by_place:
                raise from_code(code, text)
        if (lost := lost_parts(settled)) is not None:
            raise lost

    def flush(self) -> Flow[None]:
        """Send all acts, and wait until they are durable."""
        yield from self.start_settles()
        for call in list(self._settling):
            try:
                yield call
            except LeaseLost:
                # Noted when it was answered, and reported.
                pass

    def start_settles(self) -> Flow[None]:
        self._told_at = self._clock()
        self._note_done()
        for portion in self._take_portions():
            yield Start(self._settle(portion))

    def _take_portions(self) -> list[list[Act]]:
        """The acts to send now: nacks first, in their order, then acks."""
        self._unreported = 0
        acts = merged(drained(self.nacks)) if self.nacks else []
        while self._dirty:
            lease = self._dirty.popleft()
            if not lease.lost:
                acts += lease.take_acks()
        for act in acts:
            held = self._leases.get(act.pull)
            if held is not None:
                held.unanswered += 1
        return in_portions(acts)

    def _settle(self, acts: list[Act], confirmed: Act | None = None) -> Call:
        def on_done(call: Call) -> None:
            self._settling.pop(call, None)
            answer = call.answer if call.error is None else Settled(all_refused(acts, call.error))
            self._answered(acts, answer, confirmed)

        if confirmed is not None and (lease := self._leases.get(confirmed.pull)) is not None:
            lease.unanswered += 1
        call = Call(Settle(self.id, acts), (), self, on_done)
        self._settling[call] = None
        return call

    def _answered(self, acts: list[Act], answer: Pulled | Settled, confirmed: Act | None = None) -> None:
        for pull, lane, first, count, why in answer.lost:
            lease = self._leases.get(pull)
            found = 0 if lease is None else lease.lose_part(lane, first, count, why)
            if confirmed is not None and (pull == confirmed.pull or (confirmed.up_to and pull < confirmed.pull)):
                # A caller that waits for the answer gets an error.
                self.losses.messages += found
            else:
                self.losses.note(pull, found, why or _TAKEN)
        for index, code, text in answer.refused:
            if 0 <= index < len(acts):
                self._refused(acts[index], code, text, quiet=acts[index] is confirmed)
        vain = {index for index, _, _ in answer.refused}
        for number, act in enumerate(acts):
            lease = self._leases.get(act.pull)
            if lease is None:
                continue
            if self._progress is not None and number not in vain:
                self._progress.answered(lease, act, self.terms.of(lease.topic).retry.max_attempts)
            if act.up_to:
                for older in self._older(act):
                    self._forget(older)
                    if self._progress is not None:
                        self._progress.settled(older.topic, older.acked())
            lease.unanswered -= 1
            self._forget_if_finished(lease)

    def _refused(self, act: Act, code: str, text: str, *, quiet: bool) -> None:
        if code == Closed.code or act.what == GIVE_BACK or act.pull in self._told_by_place:
            return
        lease = self._leases.get(act.pull)
        if lease is not None:
            lease.lost = True
            self._forget(lease)
        if not quiet:
            self.losses.note(act.pull, _reach(act, lease), text)

    def _fence(self, error: TowlineError) -> None:
        """The broker has given us up: it did not hear of us for too long, or another came under our name. The next pull
        attaches us again; but the user gets an error first, unless our name is nobody else's."""
        self._fenced = True
        for lease in list(self._leases.values()):
            self._lose(lease, str(error))

    def _lose(self, lease: Lease, reason: str) -> None:
        lease.lost, lease.why = True, reason
        self._forget(lease)
        self.losses.note(lease.pull, lease.open_count, reason)

    # Handover

    def lease(self, pull: int) -> Lease | None:
        return self._leases.get(pull)

    def unanswered(self) -> list[Call]:
        """The requests under way that may carry acts."""
        return [*self._settling, *self._pulling]

    def withdraw(self, acts: list[Act]) -> None:
        """These acts are not under way any more."""
        for act in acts:
            lease = self._leases.get(act.pull)
            if lease is not None:
                lease.unanswered -= 1

    def settled_elsewhere(self, pull: int, spans: list[tuple[int, int, int]]) -> None:
        """Another broker has taken over these messages."""
        lease = self._leases.get(pull)
        if self._progress is not None and lease is not None:
            self._progress.settled(lease.topic, spans)

    def put_back(self, lease: Lease) -> None:
        """Nobody will look at the messages of this pull."""
        lease.drop()
        self.nacks.append(Act(GIVE_BACK, lease.pull))

    def _older(self, act: Act) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.pull < act.pull]


def _reach(act: Act, lease: Lease | None) -> int:
    """The number of messages of an act."""
    return sum(count for _, _, count in act.spans) or (len(lease) if lease is not None else 0)
