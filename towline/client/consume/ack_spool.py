"""Acks and nacks that wait on the local disk because the broker is away.

They are sent when it is back: by the same consumer, whose calls outlive the connection, or by the next one of the same
name, which reads them here. Nacks go first. A nack is kept with its messages, so that the file alone is enough to send
them elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from towline.client.consume.lease import Lease, in_portions
from towline.client.consume.message import NACKED
from towline.client.link.connection import Call, Member
from towline.client.link.flow import Flow
from towline.client.link.spool_file import SpoolFile, spool_folder
from towline.errors import QueueFull
from towline.protocol.consume import ACK, GIVE_BACK
from towline.protocol.messages import Act, Settle

__all__ = ["AckSpool", "SpooledAck", "SpooledMessage"]

log = logging.getLogger("towline.client")

_MAX_BYTES: Final = 64 << 20


class SpooledMessage(msgspec.Struct, frozen=True, array_like=True):
    lane: int
    seq: int
    attempt: int
    appended_at_us: int
    key: str | None
    headers: dict[str, str]
    body: bytes


class SpooledAck(msgspec.Struct, frozen=True, array_like=True):
    act: Act
    messages: list[SpooledMessage] = []
    """The nacked messages; empty for acks."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpooledAck).decode


class AckSpool:
    """The spool of one consumer. `left` are the acts of an earlier process, until they are sent."""

    def __init__(self, folder: str | Path, topic: str, group: str, consumer: str) -> None:
        self._file = SpoolFile(spool_folder(folder) / f"{topic.replace('*', '+')}~{group}~{consumer}.acts", _MAX_BYTES)
        self._label = f"{topic}, group {group}"
        self._calls: dict[Call, None] = {}
        self._warned = False
        acts = [_decode(record).act for record in self._file.records()]
        self.left = [act for act in acts if act.what != ACK] + [act for act in acts if act.what == ACK]

    def __repr__(self) -> str:
        return f"<AckSpool {self._file.path}>"

    @property
    def is_empty(self) -> bool:
        return self._file.is_empty

    # Of an earlier process

    def pulls(self) -> list[int]:
        """The pulls that it had worked on."""
        return list(dict.fromkeys(act.pull for act in self.left))

    def still_held(self, held: Iterable[int]) -> None:
        """Messages that others have by now cannot be acked any more."""
        pulls = set(held)
        for pull in self.pulls():
            if pull not in pulls:
                log.warning(
                    "%s: kept acks of pull %d are dropped: its messages were given to others", self._label, pull
                )
        self.left = [act for act in self.left if act.pull in pulls]

    def tell_left(self, member: Member) -> Flow[None]:
        """Send what an earlier process could not, and give back what it had not settled."""
        give_back = [Act(GIVE_BACK, pull) for pull in self.pulls()]
        for portion in in_portions([*self.left, *give_back]):
            answer = yield Call(Settle(member.id, portion), (), member)
            for index, _, text in answer.refused:
                if portion[index].what != GIVE_BACK:
                    log.warning("%s: a kept ack of pull %d is dropped: %s", self._label, portion[index].pull, text)
        if self.left:
            log.info("%s: told %d acks and nacks that an earlier consumer had kept", self._label, len(self.left))
        self.left = []
        self._file.clear()

    # Of this process

    def collect(self, calls: Iterable[Call], leases: Mapping[int, Lease]) -> list[SpooledAck]:
        """The acts of these calls that are not kept yet."""
        kept: list[SpooledAck] = []
        for call in calls:
            if call.done or call in self._calls:
                continue
            self._calls[call] = None
            for act in call.request.acts:  # type: ignore[attr-defined]
                if act.up_to:
                    older = [Act(ACK, pull) for pull in leases if pull < act.pull]
                    kept += [SpooledAck(each) for each in [*older, msgspec.structs.replace(act, up_to=False)]]
                elif act.what in (ACK, GIVE_BACK):
                    kept.append(SpooledAck(act))
                else:
                    kept.append(SpooledAck(act, _nacked(act, leases.get(act.pull))))
        return kept

    def keep(self, acts: list[SpooledAck]) -> bool:
        """Write them to the disk. Acts without room are not kept: their messages may come again."""
        try:
            self._file.append(_encode(act) for act in acts)
            return True
        except QueueFull as error:
            if not self._warned:
                self._warned = True
                log.error("%s: acks and nacks are not kept, so their messages may come again: %s", self._label, error)
            return False

    def told(self) -> None:
        """The broker has answered: forget the acts that it knows."""
        if self._calls and all(call.done for call in self._calls):
            self._calls.clear()
        if not self._calls and not self.left:
            self._file.clear()

    def close(self) -> None:
        self._file.close()


def _nacked(act: Act, lease: Lease | None) -> list[SpooledMessage]:
    """The messages of a nack; a nack of the whole pull means all that were open then."""
    if lease is None:
        return []
    return [
        SpooledMessage(
            section.lane,
            section.seq(index),
            section.attempt,
            section.appended_at_us,
            section.key(index),
            section.headers(index),
            section.bodies[index],
        )
        for section in lease.sections
        for index in range(len(section))
        if section.flags[index] == NACKED and _within(act, section.lane, section.seq(index))
    ]


def _within(act: Act, lane: int, seq: int) -> bool:
    return not act.spans or any(lane == number and first <= seq < first + count for number, first, count in act.spans)
