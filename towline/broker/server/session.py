"""One client: its principal, its running requests, its consumers.

A client's resources are bounded: `max_pending_bytes` of frames not yet durable, its share of unread answers,
`RUNNING_MAX` requests, and one pull for each of `SUBSCRIPTIONS_MAX` subscriptions (`subscriptions.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from towline.broker.access.authentication import Access, Principal
from towline.broker.access.authorization import Guard
from towline.broker.access.rules import May
from towline.broker.broker import Broker
from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.broker.server.connection import (
    HOLD_LOGIN,
    HOLD_PENDING,
    HOLD_QUOTA,
    HOLD_RUNNING,
    Connection,
    ServerState,
    State,
)
from towline.broker.server.pulls import Pulls
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
from towline.protocol.cluster import ClientState
from towline.protocol.envelope import Envelope, decode_request, split_attachments
from towline.protocol.messages import (
    VERSION,
    VERSION_MIN,
    Answer,
    Attach,
    Attached,
    Beat,
    Detach,
    Failed,
    Hello,
    Pull,
    Request,
    Send,
    Settle,
    Welcome,
)
from towline.protocol.transactions import AwaitChecks
from towline.version import __version__

if TYPE_CHECKING:
    from towline.broker.server.requests import AnyRow

__all__ = ["RUNNING_MAX", "Session"]

log = logging.getLogger("towline.server")

RUNNING_MAX = 1_000
REFUSAL_DELAY_S = 0.25
"""Guessing secrets is slow, and a refusal takes as long whatever was wrong."""

_DURABILITY = (Durability.RECEIVED, Durability.OS, Durability.FSYNC, None)  # -1 is the last


class Session(Connection):
    def __init__(
        self, server: ServerState, broker: Broker, access: Access, table: Mapping[type[Request], AnyRow]
    ) -> None:
        super().__init__(server)
        self._table = table
        self._broker = broker
        self._realms = broker.realms
        self.access = access
        self.guard: Guard | None = None
        """With security: checks everything. Without it, None."""
        self.name = ""
        self.token = b""
        self._login: asyncio.Task[None] | None = None
        self._software = ""
        self._opened_s = self._seen_s = self._loop.time()
        self._sends = 0
        self._sending = 0
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.waits_for_news = False
        """One of its requests is answered when there is something new about the brokers."""
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
        return ", ".join(some) or f"client {self.name or self._software}"

    def describe(self) -> list[ClientState]:
        """The client's states for the membership: one for each consumer, or one for the connection."""
        now_s = self._loop.time()
        role = "broker" if self._software == "broker" else "producer" if self._sends else "client"
        open_s, silent_s, token = round(now_s - self._opened_s, 3), round(now_s - self._seen_s, 3), self.token.decode()
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
        if self.guard is not None:
            self.access.watchers.discard(self._recheck)
            self.guard.leave()
            self.guard = None

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
            identities = identities_of(self._transport) if self.access.book is not None else ()
            principal = self.access.admit_at_once(request.token, request.secret, identities)
            if principal is not None:
                self._open(number, request, principal)
                return
        except (Refused, TooMany) as error:
            self._turn_away(number, request, error)
            return
        # It takes a while, in a thread; no other request of this client is taken meanwhile.
        self.hold(HOLD_LOGIN)
        work = self._log_in(
            number, request, self.access.admit_user(request.token, request.secret, self._origin(request))
        )
        self._login = self._loop.create_task(work)

    def _origin(self, request: Hello) -> str:
        return self.access.passwords.origin(self.peer.origin, request.caller)

    async def _log_in(self, number: int, request: Hello, verdict: Awaitable[Principal]) -> None:
        try:
            self._open(number, request, await verdict)
        except TowlineError as error:
            self._turn_away(number, request, error)
        self._login = None
        self.release(HOLD_LOGIN)

    def _turn_away(self, number: int, request: Hello, error: TowlineError) -> None:
        self.log_rarely(logging.WARNING, "login as %r refused", request.token)
        if self.access.audit is not None:
            self.access.audit.note(request.token, self.peer.address, "login", "", "refused", str(error))
        self.end(error, number, delay_s=REFUSAL_DELAY_S)

    def _open(self, number: int, request: Hello, principal: Principal) -> None:
        if self.access.book is not None:
            self.guard = Guard(
                self.access,
                principal,
                self._table,
                View(self._broker, self._members, principal.name.encode()),
                address=self.peer.address,
                holds=self._members.in_flight,
                origin=self._origin(request),
            )
            self.access.watchers.add(self._recheck)
            if principal.kind != "token" and self.access.audit is not None:
                self.access.audit.note(principal.name, self.peer.address, "login", f"by {principal.kind}")
        settings = self._settings
        self.name = principal.name
        self.token = principal.name.encode()  # of a certificate it is its user, whatever name the client gave
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
        guard = self.guard
        if guard is not None and guard.principal.expires_at_us and not self.access.is_valid(guard.principal):
            self.end(NotLetIn(f"token {guard.principal.name} has expired: make another one, or rotate it in time"))

    def _recheck(self) -> None:
        """The rules have changed: what is not allowed any more ends now."""
        guard = self.guard
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
            await member.broker.consumers.detach(member)
        except TowlineError as error:
            log.warning("%s: %s", self.peer.address, error)

    # Requests

    def handle(self, envelope: Envelope) -> None:
        if self.state is not State.OPEN:
            self._welcome(envelope)
            return
        frames = envelope.attachments
        broker = self._broker
        try:
            request = decode_request(envelope)
            row = self._table[type(request)]
            guard, realms = self.guard, self._realms
            if realms is not None:  # first: permissions depend on what exists, which its owner knows
                broker = realms.choose(request, row.scope, self._members)
            if guard is not None:
                guard.check(request)
            if realms is not None and row.makes_topics and self.put_off(envelope, realms.look_first(request, broker)):
                return
            if frames:
                if guard is not None and guard.meter.quota.bytes_per_s:
                    self.pay(guard, len(frames))
                if not row.has_frames:
                    raise BadRequest(
                        f"nothing goes behind a request of kind {envelope.kind}, but {len(frames)} bytes follow"
                    )
            row.begin(self, broker, envelope.number, request, frames)
        except WrongShard as error:
            self._wrong_shard(envelope, broker, error)
        except Exception as error:
            self.fail(envelope.number, error, envelope.kind)

    def _wrong_shard(self, envelope: Envelope, broker: Broker, error: WrongShard) -> None:
        """Before the refusal, other brokers are asked for topics that are not known here."""
        request: Any = decode_request(envelope)
        if not self.put_off(envelope, broker.topics.look_first(request.frames)):
            self.fail(envelope.number, error, envelope.kind)

    def pay(self, guard: Guard, size: int) -> None:
        """Count bytes against the quota; beyond it this client is not read for a while."""
        wait_s = guard.meter.take(size, self._loop.time())
        if wait_s > 0:
            self.hold(HOLD_QUOTA)
            self._loop.call_later(wait_s, self.release, HOLD_QUOTA)

    @property
    def sender(self) -> dict[str, bytes]:
        """Who sends what comes on this connection."""
        return {"source": self.peer.source, "token": self.token}

    def sight(self) -> May | None:
        """What may be seen here of long lists: None is all of it."""
        return None if self.guard is None else self.guard.sight()

    def note(self, what: str, target: str, outcome: str) -> None:
        """Tell the audit log, if there is one."""
        if self.access.audit is not None:
            self.access.audit.note(self.name, self.peer.address, what, target, outcome)

    def send(self, broker: Broker, number: int, request: Send, attachments: memoryview) -> None:
        heads = request.frames
        self._sends += 1
        broker.topics.expect_all(heads)
        if len(heads) == 1 and heads[0].length == len(attachments):
            unit = [(heads[0].topic, heads[0].lane, attachments)]
        else:
            frames = split_attachments(attachments, [head.length for head in heads])
            unit = [(head.topic, head.lane, frame) for head, frame in zip(heads, frames, strict=True)]
        future = broker.send(unit, _DURABILITY[request.durability], source=self.peer.source, token=self.token)
        if future.done():
            self._answer_send(number, future)
            return
        self._expect(number, len(attachments), future)

    def expect(self, number: int, size: int, work: Coroutine[Any, Any, Answer]) -> None:
        """Answer a request that came with so many bytes, when they are stored."""
        self._expect(number, size, self._loop.create_task(work))

    def _expect(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        """Until it is done, its frames count as pending."""
        self._sending += 1
        self._pending_bytes += size
        if self._pending_bytes > self._settings.max_pending_bytes:
            self.hold(HOLD_PENDING)
        self.server.press(self, size)
        future.add_done_callback(partial(self._sent, number, size))

    def _sent(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        self._sending -= 1
        self._answer_send(number, future)
        self._pending_bytes -= size
        self.server.relieve(size)
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

    @property
    def running(self) -> int:
        """How many requests that take their time are under way."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a request that takes its time; it answers for itself."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        if len(self._tasks) >= RUNNING_MAX:
            self.hold(HOLD_RUNNING)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) * 2 <= RUNNING_MAX:
            self.release(HOLD_RUNNING)
        self.finish()

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

    def subscribed(self, request: Beat | Pull | Settle | Detach) -> Member | PrefixSubscription:
        return self._members.numbered(request.subscription)

    def held(self, request: Beat) -> Answer | None:
        """For a beat that asks for it: what its consumer still holds."""
        if not request.subscription:
            return None
        member = self.subscribed(request)
        held: Answer = member.broker.consumers.held(member, request.holding)
        return held

    def pull(self, broker: Broker, number: int, request: Pull, _: memoryview) -> None:
        self._pulls.start(self, number, self.subscribed(request), request, self.guard)

    async def detach(self, request: Detach) -> None:
        member = self.subscribed(request)
        del self._members[request.subscription]
        await member.broker.consumers.detach(member)

    async def attach(self, broker: Broker, request: Attach) -> Attached:
        self._members.check_room()
        member: Member | PrefixSubscription
        if is_pattern(request.topic):
            member = await broker.consumers.fan(request, address=self.peer.address, may=self._may_consume)
            member.broker = broker
        else:
            member = await broker.consumers.attach(request, address=self.peer.address)
        if self.state is State.CLOSED:
            broker.consumers.disconnected(member)
            raise Unavailable("the connection is gone")
        number, places = self._members.add(member), broker.consumers.places(member)
        return Attached(number, member.held, member.config, member.shards, member.take_news(), places)

    def _may_consume(self, topic: str) -> bool:
        return self.guard is None or self.guard.may("consume", "topic", topic)

    # Checks of transactions

    def await_checks(self, broker: Broker, number: int, request: AwaitChecks, _: memoryview) -> None:
        if self._awaiting is not None:
            raise Conflict("this connection waits to be asked already: once at a time")
        self._awaiting = self._loop.create_task(self._run_await(number, request, broker))

    async def _run_await(self, number: int, request: AwaitChecks, broker: Broker) -> None:
        try:
            checks = await broker.transactions.asking.wait(request, token=self.token)
        except Exception as error:
            self._awaiting = None
            self.fail(number, error, request.kind)
        else:
            self._awaiting = None
            self.answer(number, checks)
        self.finish()
