"""One client: its principal, its running requests, its consumers.

A client's resources are bounded: `max_pending_bytes` of frames not yet durable, its share of unread answers,
`RUNNING_MAX` requests, and one pull for each of `SUBSCRIPTIONS_MAX` subscriptions (`subscriptions.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from towline.broker.access.accounts import ACCOUNTS, carry_out
from towline.broker.access.authentication import Access, Principal
from towline.broker.access.authorization import Guard
from towline.broker.access.permissions import AUDITED, target_of
from towline.broker.answer_budget import ANSWER_BYTES, LISTS, LOOKUPS
from towline.broker.broker import Broker
from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.broker.server.connection import (
    HOLD_LOGIN,
    HOLD_PENDING,
    HOLD_QUOTA,
    HOLD_RUNNING,
    Buffers,
    Connection,
    ServerState,
    State,
)
from towline.broker.server.pulls import Pulls
from towline.broker.server.requests import NOW, READS, later
from towline.broker.server.subscriptions import Subscriptions, View
from towline.broker.server.tls import identities_of
from towline.errors import (
    BadRequest,
    Conflict,
    NotLetIn,
    NotOwner,
    OwnershipLost,
    ProtocolError,
    Refused,
    TooMany,
    TowlineError,
    Unavailable,
    WrongShard,
)
from towline.model import Durability, is_pattern
from towline.protocol.base import HEAD_ROOM
from towline.protocol.cluster import ClientState, HandBack, ListBrokers
from towline.protocol.envelope import Envelope, decode_request, split_attachments
from towline.protocol.messages import (
    VERSION,
    VERSION_MIN,
    Answer,
    Attach,
    Attached,
    Beat,
    Browse,
    Detach,
    Done,
    Failed,
    Find,
    Hello,
    Pull,
    Request,
    Send,
    Settle,
    Welcome,
)
from towline.protocol.publications import Publish, Stage, Unstage
from towline.protocol.scan import Scan
from towline.protocol.transactions import AwaitChecks, Decide, Prepare
from towline.version import __version__

__all__ = ["RUNNING_MAX", "Session"]

log = logging.getLogger("towline.server")

RUNNING_MAX = 1_000
REFUSAL_DELAY_S = 0.25
"""Guessing secrets is slow, and a refusal takes as long whatever was wrong."""

_DURABILITY = (Durability.RECEIVED, Durability.OS, Durability.FSYNC, None)  # -1 is the last


class Session(Connection):
    def __init__(self, line: ServerState, broker: Broker, access: Access) -> None:
        super().__init__(line)
        self._broker = broker
        """Of the request that is being taken: where there are several realms, each has its own."""
        self._realms = broker.realms
        self._access = access
        self._guard: Guard | None = None
        """With security: checks everything. Without it, None."""
        self._name = ""
        self._token = b""
        self._login: asyncio.Task[None] | None = None
        self._software = ""
        self._opened_s = self._seen_s = self._loop.time()
        self._sends = 0
        self._sending = 0
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits_for_news = False
        self._members = Subscriptions()
        self._pulls = Pulls(self._loop, self._settings.max_pending_bytes)
        self._awaiting: asyncio.Task[None] | None = None

    def is_busy(self) -> bool:
        return bool(self._sending or self._tasks or self._pulls or self._awaiting or self._looking)

    def who(self) -> str:
        some = [
            f"consumer {one.consumer} of group {one.config.name} on topic {one.resource}"
            for one in islice(self._members.values(), 3)
        ]
        more = len(self._members) - len(some)
        if more:
            some.append(f"and {more} more")
        return ", ".join(some) or f"client {self._name or self._software}"

    def describe(self) -> list[ClientState]:
        """The client's states for the membership: one for each consumer, or one for the connection."""
        now_s = self._loop.time()
        role = "broker" if self._software == "broker" else "producer" if self._sends else "client"
        open_s, silent_s, token = round(now_s - self._opened_s, 3), round(now_s - self._seen_s, 3), self._token.decode()
        about = ClientState(self.peer.address, role, token, self._software, open_s, silent_s, self._sends)
        return [member.describe(about) for member in self._members.values()] or [about]

    def beat(self) -> None:
        self._seen_s = self._loop.time()
        for member in self._members.values():
            member.broker.consumers.beat(member)

    def gone(self) -> None:
        # Only pulls are broken off, and waits for checks: nobody is there to take the messages, or to answer. All else
        # was asked for, and is carried out.
        self._pulls.cancel_all()
        if self._awaiting is not None:
            self._awaiting.cancel()
        for member in self._members.values():
            member.broker.consumers.disconnected(member)
        self._members.clear()
        if self._login is not None:
            self._login.cancel()
        if self._guard is not None:
            self._access.watchers.discard(self._recheck)
            self._guard.leave()
            self._guard = None

    # Hello

    def _welcome(self, envelope: Envelope) -> None:
        number = envelope.number
        try:
            request = decode_request(envelope)
            if not isinstance(request, Hello):
                raise ProtocolError("the first request on a connection is Hello")
            if max(VERSION_MIN, request.version_min) > min(VERSION, request.version_max):
                raise ProtocolError(
                    f"the client speaks versions {request.version_min} to {request.version_max} of the protocol, "
                    f"this broker versions {VERSION_MIN} to {VERSION}: upgrade the older one"
                )
        except TowlineError as error:
            self.end(error, number)
            return
        try:
            identities = identities_of(self._transport) if self._access.book is not None else ()
            principal = self._access.admit_at_once(request.token, request.secret, identities)
            if principal is not None:
                self._open(number, request, principal)
                return
        except (Refused, TooMany) as error:
            self._turn_away(number, request, error)
            return
        # It takes a while, in a thread; no other request of this client is taken meanwhile.
        self.hold(HOLD_LOGIN)
        work = self._log_in(
            number, request, self._access.admit_user(request.token, request.secret, self._origin(request))
        )
        self._login = self._loop.create_task(work)

    def _origin(self, request: Hello) -> str:
        return self._access.passwords.origin(self.peer.origin, request.caller)

    async def _log_in(self, number: int, request: Hello, verdict: Awaitable[Principal]) -> None:
        try:
            self._open(number, request, await verdict)
        except TowlineError as error:
            self._turn_away(number, request, error)
        self._login = None
        self.release(HOLD_LOGIN)

    def _turn_away(self, number: int, request: Hello, error: TowlineError) -> None:
        self.log_rarely(logging.WARNING, "login as %r refused", request.token)
        if self._access.audit is not None:
            self._access.audit.note(request.token, self.peer.address, "login", "", "refused", str(error))
        self.end(error, number, delay_s=REFUSAL_DELAY_S)

    def _open(self, number: int, request: Hello, principal: Principal) -> None:
        if self._access.book is not None:
            view = View(self._broker, self._members, principal.name.encode())
            self._guard = Guard(
                self._access,
                principal,
                view,
                self.peer.address,
                self._members.in_flight,
                origin=self._origin(request),
            )
            self._access.watchers.add(self._recheck)
            if principal.kind != "token" and self._access.audit is not None:
                self._access.audit.note(principal.name, self.peer.address, "login", f"by {principal.kind}")
        settings = self._settings
        self._name = principal.name
        self._token = principal.name.encode()  # of a certificate it is its user, whatever name the client gave
        self._software = request.software
        self._decoder.limit = settings.max_frame_bytes + HEAD_ROOM
        self.state = State.OPEN
        self.version = min(VERSION, request.version_max)
        welcome = Welcome(
            self.version, settings.name, self._broker.epoch, self._decoder.limit, settings.heartbeat_s, __version__
        )
        self.answer(number, welcome)

    # Permissions

    def sweep(self, now_s: float) -> None:
        super().sweep(now_s)
        guard = self._guard
        if guard is not None and guard.principal.expires_at_us and not self._access.is_valid(guard.principal):
            self.end(NotLetIn(f"token {guard.principal.name} has expired: make another one, or rotate it in time"))

    def _recheck(self) -> None:
        """The rules have changed: what is not allowed any more ends now."""
        guard = self._guard
        if guard is None or self.state is not State.OPEN:
            return
        if not guard.renew():
            self.end(
                NotLetIn(f"{guard.principal.name} is not let in any more: its token, password or user was revoked")
            )
            self._release_pulls()
            return
        for number, member in list(self._members.items()):
            topic, group = member.resource, member.config.name
            if isinstance(member, PrefixSubscription):
                member.broker._start(self._narrow(member.retain()), "looking at rules that have changed")
            if not (guard.may("consume", "topic", topic) and guard.may("consume", "group", group)):
                self._pulls.cancel(number)
                self._start_leaving(member)

    async def _narrow(self, going: AsyncIterator[Member]) -> None:
        async for one in going:
            self._start_leaving(one)

    def _release_pulls(self) -> None:
        """The end waits for running requests; a pull that only waits for messages is not worth it."""
        self._pulls.cancel_all()
        if self._awaiting is not None:
            self._awaiting.cancel()
        for member in self._members.values():
            self._start_leaving(member)
        self.finish()

    def _start_leaving(self, member: Member | PrefixSubscription) -> None:
        task = self._loop.create_task(self._leave(member))
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    async def _leave(self, member: Member | PrefixSubscription) -> None:
        try:
            await member.broker.detach(member)
        except TowlineError as error:
            log.warning("%s: %s", self.peer.address, error)

    # Requests

    def handle(self, envelope: Envelope) -> None:
        if self.state is not State.OPEN:
            self._welcome(envelope)
            return
        number, kind, attachments = envelope.number, envelope.kind, envelope.attachments
        try:
            request = decode_request(envelope)
            guard = self._guard
            if self._realms is not None:  # first: permissions depend on what exists, which its owner knows
                self._broker = self._realms.choose(request, self._members)
            if guard is not None:
                guard.check(request)
            if self._realms is not None and self.put_off(envelope, self._realms.look_first(request, self._broker)):
                return
            if guard is not None and attachments and guard.meter.quota.bytes_per_s:
                self.pay(guard, len(attachments))
            if isinstance(request, Send):
                self._send(number, request, attachments)
                return
            if isinstance(request, Prepare | Stage):
                self._keep(number, request, attachments)
                return
            if isinstance(request, HandBack):
                work = self._broker.hand_back(request, attachments, token=self._token)
                self._expect(number, len(attachments), self._loop.create_task(work))
                return
            if attachments:
                raise BadRequest(f"nothing goes behind a request of kind {kind}, but {len(attachments)} bytes follow")
            if kind in NOW:
                answer = self._still_held(request) or NOW[kind](self._broker, request)
                self.answer(number, answer if guard is None else guard.filter(kind, answer))
            elif isinstance(request, Pull):
                self._pulls.start(self, number, self._members.numbered(request.subscription), request, guard)
            elif isinstance(request, AwaitChecks):
                self._await_checks(number, request)
            else:
                self._start(number, request)
        except WrongShard as error:
            self._wrong_shard(envelope, error)
        except Exception as error:
            self.fail(number, error, kind)

    def _still_held(self, request: Request) -> Answer | None:
        """For a beat that asks for it: what its consumer still holds."""
        if not isinstance(request, Beat) or not request.subscription:
            return None
        member = self._members.numbered(request.subscription)
        held: Answer = member.broker.consumers.held(member, request.holding)
        return held

    def _wrong_shard(self, envelope: Envelope, error: WrongShard) -> None:
        """Before the refusal, other brokers are asked for topics that are not known here."""
        request: Any = decode_request(envelope)
        if not self.put_off(envelope, self._broker.topics.look_first(request.frames)):
            self.fail(envelope.number, error, envelope.kind)

    def pay(self, guard: Guard, size: int) -> None:
        """Count bytes against the quota; beyond it this client is not read for a while."""
        wait_s = guard.meter.take(size, self._loop.time())
        if wait_s > 0:
            self.hold(HOLD_QUOTA)
            self._loop.call_later(wait_s, self.release, HOLD_QUOTA)

    def _send(self, number: int, request: Send, attachments: memoryview) -> None:
        heads = request.frames
        self._sends += 1
        self._broker.expect_shards(heads)
        if len(heads) == 1 and heads[0].length == len(attachments):
            unit = [(heads[0].topic, heads[0].lane, attachments)]
        else:
            frames = split_attachments(attachments, [head.length for head in heads])
            unit = [(head.topic, head.lane, frame) for head, frame in zip(heads, frames, strict=True)]
        future = self._broker.send(unit, _DURABILITY[request.durability], source=self.peer.source, token=self._token)
        if future.done():
            self._answer_send(number, future)
            return
        self._expect(number, len(attachments), future)

    def _keep(self, number: int, request: Prepare | Stage, attachments: memoryview) -> None:
        self._broker.expect_shards(request.frames)
        frames = split_attachments(attachments, [head.length for head in request.frames])
        keep: Any = self._broker.transactions.prepare if isinstance(request, Prepare) else self._broker.staging.stage
        work = keep(request, frames, source=self.peer.source, token=self._token)
        self._expect(number, len(attachments), self._loop.create_task(work))

    def _expect(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        """Answer when it is done; until then its frames count as pending."""
        self._sending += 1
        self._pending_bytes += size
        if self._pending_bytes > self._settings.max_pending_bytes:
            self.hold(HOLD_PENDING)
        self._line.press(self, size)
        future.add_done_callback(partial(self._sent, number, size))

    def _sent(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        self._sending -= 1
        self._answer_send(number, future)
        self._pending_bytes -= size
        self._line.relieve(size)
        if self._pending_bytes * 2 <= self._settings.max_pending_bytes:
            self.release(HOLD_PENDING)
        self.finish()

    def _answer_send(self, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self.fail(number, Unavailable("the broker was stopped before this was stored"), Send.kind)
            return
        error = future.exception()
        if error is not None:
            self.fail(number, error, Send.kind)
        else:
            # Sends become durable in groups: if others are under way, some of them are done in this moment, too.
            self.answer(number, future.result(), more=self._sending > 0)

    def _start(self, number: int, request: Request) -> None:
        """Begin a request that takes its time."""
        task = self._loop.create_task(self._run(number, request, self._broker))
        self._tasks.add(task)
        if len(self._tasks) >= RUNNING_MAX:
            self.hold(HOLD_RUNNING)
        task.add_done_callback(self._ran)

    async def _run(self, number: int, request: Request, broker: Broker) -> None:
        outcome = "done"
        try:
            if isinstance(request, ListBrokers):
                answer, buffers = await self._list_brokers(request, broker)
            else:
                carry_out = self._look_up if request.kind in READS else self._carry_out
                answer, buffers = await carry_out(request, broker)
            self.answer(number, answer, buffers, more=len(self._tasks) > 1)
        except Exception as error:
            outcome = error.code if isinstance(error, TowlineError) else TowlineError.code
            self.fail(number, error, request.kind)
        if request.kind in AUDITED and self._access.audit is not None and not getattr(request, "dry_run", False):
            self._access.audit.note(self._name, self.peer.address, type(request).__name__, target_of(request), outcome)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) * 2 <= RUNNING_MAX:
            self.release(HOLD_RUNNING)
        self.finish()

    async def _carry_out(self, request: Request, broker: Broker) -> tuple[Answer, Buffers]:
        match request:
            case Settle():
                return await broker.settle(self._members.numbered(request.subscription), request.acts), ()
            case Attach():
                return await self._attach(request, broker), ()
            case Detach():
                member = self._members.numbered(request.subscription)
                del self._members[request.subscription]
                await member.broker.detach(member)
                return Done(), ()
            case Decide():
                return await broker.transactions.decide(request, token=self._token), ()
            case Publish():
                return await broker.staging.publish(request, token=self._token), ()
            case Unstage():
                await broker.staging.unstage(request, token=self._token)
                return Done(), ()
            case Hello():
                raise BadRequest("Hello was said already")
        if request.kind in ACCOUNTS:
            return await carry_out(self._access, self._guard, request, self._name), ()
        return await later(broker, request, self._guard)

    async def _list_brokers(self, request: ListBrokers, broker: Broker) -> tuple[Answer, Buffers]:
        """One such request of a connection may wait for news; while it does, others are answered at once."""
        if self._waits_for_news or not request.wait_ms:
            return await later(broker, msgspec.structs.replace(request, wait_ms=0), self._guard)
        self._waits_for_news = True
        try:
            return await later(broker, request, self._guard)
        finally:
            self._waits_for_news = False

    async def _look_up(self, request: Request, broker: Broker) -> tuple[Answer, Buffers]:
        """The answer to a request that only reads, as soon as there is room for it."""
        size, kind = ANSWER_BYTES, LISTS
        if isinstance(request, Browse | Find | Scan):
            size, kind = request.max_bytes, LOOKUPS
        room = self.share.set_aside(size, kind) or await self.share.wait(size, kind)
        if isinstance(request, Browse | Find | Scan):
            request = msgspec.structs.replace(request, max_bytes=min(room, request.max_bytes))
        kept = 0
        try:
            answer, buffers = await self._carry_out(request, broker)
            kept = sum(map(len, buffers))
            return answer, buffers
        finally:
            self.share.read(room, kept, kind)
            self.share.free(kept)  # it is written in this very moment, and counts as unread then

    def fail(self, number: int, error: BaseException, kind: int) -> None:
        if isinstance(error, OwnershipLost):
            failed = Failed(NotOwner.code, str(error))
        elif isinstance(error, TowlineError):
            failed = Failed.of(error)
        else:
            log.error("%s: a request of kind %d failed", self.peer.address, kind, exc_info=error)
            failed = Failed(TowlineError.code, "internal error: see the broker's log")
        self.answer(number, failed)

    # Consumers

    async def _attach(self, request: Attach, broker: Broker) -> Attached:
        self._members.check_room()
        member: Member | PrefixSubscription
        if is_pattern(request.topic):
            member = await broker.fan(request, address=self.peer.address, may=self._may_consume)
            member.broker = broker
        else:
            member = await broker.attach(request, address=self.peer.address)
        if self.state is State.CLOSED:
            broker.consumers.disconnected(member)
            raise Unavailable("the connection is gone")
        number, places = self._members.add(member), broker.consumers.places(member)
        return Attached(number, member.held, member.config, member.shards, member.take_news(), places)

    def _may_consume(self, topic: str) -> bool:
        return self._guard is None or self._guard.may("consume", "topic", topic)

    # Checks of transactions

    def _await_checks(self, number: int, request: AwaitChecks) -> None:
        if self._awaiting is not None:
            raise Conflict("this connection waits to be asked already: once at a time")
        self._awaiting = self._loop.create_task(self._run_await(number, request, self._broker))

    async def _run_await(self, number: int, request: AwaitChecks, broker: Broker) -> None:
        try:
            checks = await broker.transactions.asking.wait(request, token=self._token)
        except Exception as error:
            self._awaiting = None
            self.fail(number, error, request.kind)
        else:
            self._awaiting = None
            self.answer(number, checks)
        self.finish()
