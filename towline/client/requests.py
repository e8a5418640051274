"""Requests of a client, sans I/O: flows that both drivers run (see `link/flow`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from towline.client.consume.message import DeadLetter, Message
from towline.client.consume.message_block import MessageBlock
from towline.client.link.connection import Call
from towline.client.link.flow import Flow, Start, ask
from towline.client.produce.encode import (
    FOREVER,
    Columns,
    FrameEncoder,
    Lifetimes,
    as_dedup_id,
    as_headers,
    as_key,
    as_lane,
    as_time_us,
    too_large,
)
from towline.client.produce.receipts import Receipts, Run, place_before, places
from towline.client.results import Page
from towline.errors import BadRequest, Conflict, NotFound, ProtocolError
from towline.frame.encode import SINGLE_MAX
from towline.model import (
    DELAY,
    MAX_SHARDS,
    GroupConfig,
    Priority,
    Receipt,
    TopicConfig,
    check_group,
    check_topic,
    check_topics,
)
from towline.protocol import split_attachments
from towline.protocol.backup import BackupBegun, BackupHeld, BeginBackup, HoldBackup
from towline.protocol.base import HEAD_ROOM
from towline.protocol.cluster import Brokers, Clients, ClientState, ForgetBroker, ListBrokers, ListClients
from towline.protocol.groups import Pause, Seek, Sought
from towline.protocol.messages import (
    Answer,
    Beat,
    Browse,
    Browsed,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Done,
    FrameHead,
    GroupInfo,
    Groups,
    GroupState,
    ListGroups,
    ListTopics,
    Locate,
    Located,
    PutGroup,
    PutTopic,
    Request,
    Resend,
    Resent,
    Send,
    Sent,
    Stat,
    Stated,
    Template,
    Templated,
    TopicInfo,
    Topics,
    TopicState,
)
from towline.protocol.topics import EditTopic, Purge, Purged
from towline.protocol.transactions import ListTransactions, Resolve, Transactions, TransactionState

__all__ = [
    "HEAD_ROOM",
    "Headers",
    "Keys",
    "Target",
    "begin_backup",
    "brokers",
    "browse",
    "clients",
    "create_topic",
    "dead_letters",
    "delete_group",
    "delete_topic",
    "edit_topic",
    "forget_broker",
    "group",
    "groups",
    "hold_backup",
    "locate",
    "pause",
    "ping",
    "purge",
    "put_group",
    "put_topic",
    "receipt",
    "resend",
    "resolve_transaction",
    "seek",
    "send",
    "send_many",
    "stat",
    "template",
    "topic",
    "topics",
    "transactions",
]

Target = str | datetime | Mapping[Priority | int, int]
"""A position for a group: an end, a time, or sequence numbers by lane."""
Keys = Sequence[str | None] | None
Headers = Sequence[Mapping[str, str] | None] | Mapping[str, str] | None

_MAX_RESEND: Final = 10_000


# Sending


def send(
    sender: FrameEncoder,
    name: str,
    body: bytes,
    *,
    key: str | None,
    priority: Priority,
    headers: Mapping[str, str] | None,
    durability: int,
    compress: bool,
    max_request_bytes: int,
    dedup_id: str | None = None,
    deliver_at_us: int = 0,
    lives: Lifetimes = FOREVER,
) -> Call:
    """The call that sends one message: a flow of one step, which is spared the generator."""
    lane = as_lane(priority)
    beside = key is not None or headers is not None or dedup_id is not None or deliver_at_us or lives is not FOREVER
    frame: bytes | memoryview
    if beside or compress or len(body) > SINGLE_MAX:
        frame = sender.frame(
            [body],
            None if key is None else [as_key(key)],
            None if headers is None else [as_headers(headers)],
            compress,
            None if dedup_id is None else [as_dedup_id(dedup_id)],
            [deliver_at_us] if deliver_at_us else None,
            **lives.columns(1),
        )
    else:
        frame = sender.single(body)
    if len(frame) + HEAD_ROOM > max_request_bytes:
        raise too_large(len(body), max_request_bytes)
    return Call(Send([FrameHead(check_topic(name), lane, len(frame))], durability), (frame,))


def receipt(name: str, priority: Priority, answer: Answer) -> Receipt:
    """The receipt in the answer to `send`."""
    if type(answer) is not Sent:
        raise ProtocolError(f"a send was answered by {type(answer).__name__}")
    if answer.repeats:
        return Receipt(name, *place_before(*answer.repeats[0][2:]))
    return Receipt(name, DELAY if answer.delayed else priority, answer.firsts[0], answer.appended_at_us)


def send_many(
    sender: FrameEncoder,
    name: str,
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None,
    priority: Priority,
    headers: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None,
    durability: int,
    compress: bool,
    max_request_bytes: int,
    dedup_ids: Sequence[str | None] | None = None,
    deliver_at_us: Sequence[int] | None = None,
    lives: Lifetimes = FOREVER,
) -> Flow[Receipts]:
    """One frame after the other, so that one that fails is followed by none; each is made while the one before it is in
    flight."""
    lane = as_lane(priority)
    columns = Columns(
        bodies,
        keys,
        headers,
        dedup_ids,
        deliver_at_us,
        max_frame_bytes=max_request_bytes - HEAD_ROOM,
        lives=lives,
    )
    check_topic(name)
    runs: list[Run] = []
    before: tuple[Call, int] | None = None
    for frame, count in columns.frames(sender, compress):
        call = Call(Send([FrameHead(name, lane, len(frame))], durability), [frame])
        if before is not None:
            runs += yield from _sent(lane, *before)
        yield Start(call)
        before = call, count
    if before is not None:
        runs += yield from _sent(lane, *before)
    return Receipts(name, priority, runs)


def _sent(lane: int, call: Call, count: int) -> Flow[list[Run]]:
    answer = yield from ask(call.request, Sent, call)
    if not answer.repeats:
        return [Run(answer.firsts[0], count, answer.appended_at_us, DELAY if answer.delayed else None)]
    delayed = bool(answer.delayed)
    found = places(lane, answer.firsts[0], count, answer.appended_at_us, answer.repeats, delayed=delayed)
    return [Run(seq, 1, at_us, at) for at, seq, at_us in found]


# Topics and groups


def ping() -> Flow[None]:
    """Meet the broker."""
    yield from ask(Beat(), Done)


def brokers() -> Flow[Brokers]:
    """The list of brokers: a client's first request."""
    return (yield from ask(ListBrokers(), Brokers))


def clients(name: str, group_name: str) -> Flow[list[ClientState]]:
    request = ListClients(check_topic(name) if name else "", check_group(group_name) if group_name else "")
    return (yield from ask(request, Clients)).clients


def forget_broker(broker: str) -> Flow[None]:
    yield from ask(ForgetBroker(broker), Done)


def begin_backup() -> Flow[BackupBegun]:
    return (yield from ask(BeginBackup(), BackupBegun))


def hold_backup(ticket: str, *, done: bool) -> Flow[BackupHeld]:
    return (yield from ask(HoldBackup(ticket, done), BackupHeld))


def create_topic(
    name: str,
    retention_s: float | None,
    shards: int = 0,
    *,
    business_line: str = "",
    author: str = "",
    alarm_emails: Sequence[str] = (),
) -> Flow[None]:
    about = {"business_line": business_line, "author": author, "alarm_emails": tuple(alarm_emails)}
    request = CreateTopic(msgspec.structs.replace(TopicConfig(name, 0, retention_s, shards), **about))
    call = Call(request)
    try:
        yield from ask(request, Done, call)
    except Conflict:
        # Sent twice because the connection broke: the first time was carried out.
        if not call.resent:
            raise


def put_topic(config: TopicConfig, *, template: bool) -> Flow[None]:
    yield from ask(PutTopic(config, template), Done)


def template() -> Flow[TopicConfig]:
    return (yield from ask(Template(), Templated)).config


def delete_topic(name: str) -> Flow[None]:
    yield from _delete(DeleteTopic(check_topic(name)))


def topics() -> Flow[list[TopicState]]:
    return (yield from ask(ListTopics(), Topics)).topics


def topic(name: str) -> Flow[TopicState]:
    return (yield from ask(TopicInfo(check_topic(name)), TopicState))


def groups(name: str) -> Flow[list[GroupState]]:
    return (yield from ask(ListGroups(check_topics(name) if name else ""), Groups)).groups


def group(topic_name: str, name: str) -> Flow[GroupState]:
    return (yield from ask(GroupInfo(check_topic(topic_name), check_group(name)), GroupState))


def put_group(config: GroupConfig) -> Flow[None]:
    yield from ask(PutGroup(config), Done)


def delete_group(topic_name: str, name: str) -> Flow[None]:
    yield from _delete(DeleteGroup(check_topic(topic_name), check_group(name)))


def _delete(request: Request) -> Flow[None]:
    call = Call(request)
    try:
        yield from ask(request, Done, call)
    except NotFound:
        if not call.resent:
            raise


# Browse


def browse(name: str, lane: Priority | int, first: int, max_messages: int, max_bytes: int) -> Flow[Page[Message]]:
    call = Call(Browse(check_topic(name), as_lane(lane), "", first, max_messages, max_bytes))
    answer = yield from ask(call.request, Browsed, call)
    shards = MAX_SHARDS if isinstance(lane, int) else 0
    items = [message for section in _sections(name, answer, call, shards) for message in section.messages()]
    return Page(items, next_seq=answer.next, start=answer.first, end=answer.end)


def dead_letters(name: str, group_name: str, first: int, max_messages: int, max_bytes: int) -> Flow[Page[DeadLetter]]:
    call = Call(Browse(check_topic(name), 0, check_group(group_name), first, max_messages, max_bytes))
    answer = yield from ask(call.request, Browsed, call)
    resent = [range(begin, begin + count) for begin, count in answer.settled]
    items = [
        DeadLetter(message, resent=any(message.seq in numbers for numbers in resent))
        for section in _sections(name, answer, call)
        for message in section.messages()
    ]
    return Page(items, next_seq=answer.next, start=answer.first, end=answer.end)


def _sections(name: str, answer: Browsed, call: Call, shards: int = 0) -> Iterator[MessageBlock]:
    assert call.attachments is not None, "an answered call has its attachments, maybe empty"
    frames = split_attachments(call.attachments, [part.length for part in answer.parts])
    for part, data in zip(answer.parts, frames, strict=True):
        yield MessageBlock(name, part, data, shards=shards)


def resend(name: str, group_name: str, dead: Sequence[int] | None) -> Flow[int]:
    check_topic(name)
    check_group(group_name)
    if dead is not None:
        count = 0
        for at in range(0, len(dead), _MAX_RESEND):
            count += (yield from ask(Resend(name, group_name, list(dead[at : at + _MAX_RESEND])), Resent)).count
        return count
    count = 0
    while True:
        answer = yield from ask(Resend(name, group_name), Resent)
        count += answer.count
        if not answer.left or not answer.count:
            return count


def locate(name: str, lane: Priority | int, time_us: int) -> Flow[int]:
    return (yield from ask(Locate(check_topic(name), as_lane(lane), time_us), Located)).seq


# Seek, pause, purge


def seek(name: str, group_name: str, to: Target, *, dry_run: bool) -> Flow[Sought]:
    check_topic(name)
    check_group(group_name)
    if isinstance(to, Mapping):
        positions = [(as_lane(lane), seq) for lane, seq in to.items()]
        if not positions or any(type(seq) is not int or seq < 0 for _, seq in positions):
            raise BadRequest("seek: give sequence numbers by lane, for example to={'middle': 17}")
        request = Seek(name, group_name, "", positions, dry_run)
    elif isinstance(to, datetime):
        request = Seek(name, group_name, f"@{as_time_us(to)}", [], dry_run)
    elif to in ("earliest", "latest"):
        request = Seek(name, group_name, to, [], dry_run)
    else:
        raise BadRequest(f"seek to {to!r}: give 'earliest', 'latest', a datetime, or sequence numbers by lane")
    return (yield from ask(request, Sought))


def pause(name: str, group_name: str, *, paused: bool, reason: str) -> Flow[None]:
    yield from ask(Pause(check_topic(name), check_group(group_name), paused, reason[:500]), Done)


def purge(name: str, *, dry_run: bool) -> Flow[Purged]:
    return (yield from ask(Purge(check_topic(name), dry_run), Purged))


def edit_topic(name: str, retention_s: float | None) -> Flow[None]:
    yield from ask(EditTopic(check_topic(name), retention_s), Done)


def stat() -> Flow[dict[str, Any]]:
    return (yield from ask(Stat(), Stated)).figures


# Prepared transactions, resolved by hand


def transactions(transaction: str, parked: bool, limit: int) -> Flow[list[TransactionState]]:
    return (yield from ask(ListTransactions(transaction, parked, limit), Transactions)).transactions


def resolve_transaction(transaction: str, verdict: str, reason: str) -> Flow[None]:
    if verdict not in ("commit", "rollback"):
        raise BadRequest(f"{verdict!r}: a transaction is resolved by 'commit' or 'rollback'")
    yield from ask(Resolve(transaction, verdict == "commit", reason), Done)
