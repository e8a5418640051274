"""One client and its requests: who it is, what it may, what runs for it, which consumers it has.

What a client can occupy is bounded: `max_pending_bytes` of frames not yet durable, about as much of answers not sent,
`RUNNING_MAX` requests, and one pull for each of `SUBSCRIPTIONS_MAX` subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec

from towline.broker.access import Access, Principal
from towline.broker.broker import Broker
from towline.broker.connection import HOLD_PENDING, HOLD_RUNNING, Buffers, Connection, Line, State
from towline.broker.member import Member
from towline.broker.requests import LATER, NOW, PERMISSIONS
from towline.errors import BadRequest, Conflict, NotFound, ProtocolError, Refused, TooLarge, TowlineError, Unavailable
from towline.model import Durability
from towline.protocol.envelope import Envelope, decode_request, split_attachments
from towline.protocol.messages import (
    VERSION,
    Answer,
    Attach,
    Attached,
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
from towline.protocol.scanning import Scan
from towline.protocol.transactions import AwaitChecks, Decide, Prepare

__all__ = ["RUNNING_MAX", "SUBSCRIPTIONS_MAX", "Session"]

log = logging.getLogger("towline.server")

HEAD_MAX_BYTES = 64 << 10
"""What a request may have on top of the largest frame."""
RUNNING_MAX = 1_000
SUBSCRIPTIONS_MAX = 1_000
PULL_MIN_BYTES = 64 << 10
REFUSAL_DELAY_S = 0.25
"""Guessing secrets is slow, and a refusal takes as long whatever was wrong."""

_DURABILITY = (Durability.RECEIVED, Durability.OS, Durability.FSYNC, None)  # -1 is the last


class Session(Connection):
    def __init__(self, line: Line, broker: Broker, access: Access) -> None:
        super().__init__(line)
        self._broker = broker
        self._access = access
        self._principal = Principal("")
        self._token = b""
        self._sending = 0
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: dict[int, Member] = {}
        self._subscription = 0
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._reserved_bytes = 0
        self._awaiting: asyncio.Task[None] | None = None

    def is_busy(self) -> bool:
        return bool(self._sending or self._tasks or self._pulls or self._awaiting)

    def beat(self) -> None:
        for member in self._members.values():
            self._broker.beat(member)

    def gone(self) -> None:
        # Only pulls are broken off, and waiting to be asked: nobody is there to take the messages, or to answer. All
        # else was asked for, and is carried out.
        for pull in self._pulls.values():
            pull.cancel()
        if self._awaiting is not None:
            self._awaiting.cancel()
        for member in self._members.values():
            self._broker.disconnected(member)
        self._members.clear()

    # Opening

    def _welcome(self, envelope: Envelope) -> None:
        number = envelope.number
        try:
            request = decode_request(envelope)
            if not isinstance(request, Hello):
                raise ProtocolError("the first request on a connection is Hello")
            if not request.version_min <= VERSION <= request.version_max:
                raise ProtocolError(
                    f"the client speaks versions {request.version_min} to {request.version_max} of the protocol, "
                    f"this broker versions {VERSION} to {VERSION}: update the older one"
                )
        except TowlineError as error:
            self.end(error, number)
            return
        try:
            self._principal = self._access.admit(request.token, request.secret)
        except Refused as error:
            self.log_rarely(logging.WARNING, "login as %r refused", request.token)
            self.end(error, number, delay_s=REFUSAL_DELAY_S)
            return
        settings = self._settings
        self._token = request.token.encode()
        self._decoder.limit = settings.max_frame_bytes + HEAD_MAX_BYTES
        self.state = State.OPEN
        welcome = Welcome(VERSION, settings.name, self._broker.epoch, self._decoder.limit, settings.heartbeat_s)
        self.answer(number, welcome)

    # Requests

    def handle(self, envelope: Envelope) -> None:
        if self.state is not State.OPEN:
            self._welcome(envelope)
            return
        number, kind, _, attachments = envelope
        try:
            request = decode_request(envelope)
            self._ask_permission(request)
            if isinstance(request, Send):
                self._send(number, request, attachments)
                return
            if isinstance(request, Prepare):
                self._prepare(number, request, attachments)
                return
            if attachments:
                raise BadRequest(f"nothing goes behind a request of kind {kind}, but {len(attachments)} bytes follow")
            if kind in NOW:
                self.answer(number, NOW[kind](self._broker, request))
            elif isinstance(request, Pull):
                self._start_pull(number, request)
            elif isinstance(request, AwaitChecks):
                self._await_checks(number, request)
            else:
                self._start(number, request)
        except Exception as error:
            self._fail(number, error, kind)

    def _ask_permission(self, request: Request) -> None:
        """The one place where permission is asked for."""
        action, resources_of = PERMISSIONS[request.kind]
        for resource in resources_of(request):
            if not self._principal.may(action, resource):
                raise Refused(f"{self._principal.name!r} may not {action} {resource}")

    def _send(self, number: int, request: Send, attachments: memoryview) -> None:
        heads = request.frames
        for head in heads:
            self._broker.expect_shards(head.topic, head.shards)
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

    def _prepare(self, number: int, request: Prepare, attachments: memoryview) -> None:
        frames = split_attachments(attachments, [head.length for head in request.frames])
        work = self._broker.transactions.prepare(request, frames, source=self.peer.source, token=self._token)
        self._expect(number, len(attachments), self._loop.create_task(work))

    def _expect(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        """Answer when it is done; until then its frames count as pending."""
        self._sending += 1
        self._pending_bytes += size
        if self._pending_bytes > self._settings.max_pending_bytes:
            self.hold(HOLD_PENDING)
        future.add_done_callback(partial(self._sent, number, size))

    def _sent(self, number: int, size: int, future: asyncio.Future[Any]) -> None:
        self._sending -= 1
        self._answer_send(number, future)
        self._pending_bytes -= size
        if self._pending_bytes * 2 <= self._settings.max_pending_bytes:
            self.release(HOLD_PENDING)
        self.finish()

    def _answer_send(self, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._fail(number, Unavailable("the broker was stopped before this was stored"), Send.kind)
            return
        error = future.exception()
        if error is not None:
            self._fail(number, error, Send.kind)
        else:
            # Sends become durable in groups: if others are under way, some of them are done in this moment, too.
            self.answer(number, future.result(), more=self._sending > 0)

    def _start(self, number: int, request: Request) -> None:
        """Begin a request that takes its time."""
        task = self._loop.create_task(self._run(number, request))
        self._tasks.add(task)
        if len(self._tasks) >= RUNNING_MAX:
            self.hold(HOLD_RUNNING)
        task.add_done_callback(self._ran)

    async def _run(self, number: int, request: Request) -> None:
        try:
            answer, buffers = await self._carry_out(request)
            self.answer(number, answer, buffers, more=len(self._tasks) > 1)
        except Exception as error:
            self._fail(number, error, request.kind)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) * 2 <= RUNNING_MAX:
            self.release(HOLD_RUNNING)
        self.finish()

    async def _carry_out(self, request: Request) -> tuple[Answer, Buffers]:
        match request:
            case Settle():
                return await self._broker.settle(self._member(request.subscription), request.acts), ()
            case Attach():
                return await self._attach(request), ()
            case Detach():
                member = self._member(request.subscription)
                del self._members[request.subscription]
                await self._broker.detach(member)
                return Done(), ()
            case Decide():
                return await self._broker.transactions.decide(request, token=self._token), ()
            case Hello():
                raise BadRequest("Hello was said already")
            case Browse() | Find() | Scan() if request.max_bytes > self._settings.max_pending_bytes:
                request = msgspec.structs.replace(request, max_bytes=self._settings.max_pending_bytes)
        return await LATER[request.kind](self._broker, request)

    def _fail(self, number: int, error: BaseException, kind: int) -> None:
        if isinstance(error, TowlineError):
            failed = Failed(error.code, str(error))
        else:
            log.error("%s: a request of kind %d failed", self.peer.address, kind, exc_info=error)
            failed = Failed(TowlineError.code, "internal error: see the broker's log")
        self.answer(number, failed)

    # Consumers

    def _member(self, subscription: int) -> Member:
        member = self._members.get(subscription)
        if member is None:
            raise NotFound(f"there is no subscription {subscription} on this connection: attach first")
        return member

    async def _attach(self, request: Attach) -> Attached:
        if len(self._members) >= SUBSCRIPTIONS_MAX:
            raise TooLarge(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: open another one")
        member = await self._broker.attach(request, address=self.peer.address)
        if self.state is State.CLOSED:
            self._broker.disconnected(member)
            raise Unavailable("the connection is gone")
        self._subscription += 1
        self._members[self._subscription] = member
        return Attached(self._subscription, member.held, member.config, member.shards)

    def _start_pull(self, number: int, request: Pull) -> None:
        member = self._member(request.subscription)
        if request.subscription in self._pulls:
            raise Conflict(f"subscription {request.subscription} has a pull under way: one at a time")
        # Each pull may take half of what is left, so that all of them together stay within the bound.
        room = max((self._settings.max_pending_bytes - self._reserved_bytes) // 2, PULL_MIN_BYTES)
        if request.max_bytes > room:
            request = msgspec.structs.replace(request, max_bytes=room)
        self._reserved_bytes += request.max_bytes
        self._pulls[request.subscription] = self._loop.create_task(self._pull(number, member, request))

    async def _pull(self, number: int, member: Member, request: Pull) -> None:
        try:
            pulled, buffers = await self._broker.pull(member, request)
        except Exception as error:
            self._forget_pull(request)
            self._fail(number, error, Pull.kind)
        else:
            # Forgotten first: upon the answer the client may pull again before this task has ended.
            self._forget_pull(request)
            self.answer(number, pulled, buffers)
        self.finish()

    def _forget_pull(self, request: Pull) -> None:
        del self._pulls[request.subscription]
        self._reserved_bytes -= request.max_bytes

    # Producers that can be asked

    def _await_checks(self, number: int, request: AwaitChecks) -> None:
        if self._awaiting is not None:
            raise Conflict("this connection waits to be asked already: once at a time")
        self._awaiting = self._loop.create_task(self._run_await(number, request))

    async def _run_await(self, number: int, request: AwaitChecks) -> None:
        try:
            checks = await self._broker.transactions.asking.wait(request, token=self._token)
        except Exception as error:
            self._awaiting = None
            self._fail(number, error, request.kind)
        else:
            self._awaiting = None
            self.answer(number, checks)
        self.finish()
