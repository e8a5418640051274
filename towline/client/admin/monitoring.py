"""Looking after a broker: lists by pages, figures over time, storage, alarms, and consumers that are to begin anew."""

from __future__ import annotations

from typing import TypeVar

from towline.alarms.rule import AlarmRule
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.errors import ProtocolError
from towline.model import check_group, check_topic
from towline.protocol.messages import Answer, Done, Request
from towline.protocol.monitor import (
    Alarms,
    DropAlarm,
    Kick,
    ListAlarms,
    ListPage,
    PageListed,
    Pulse,
    Pulsed,
    PutAlarm,
    SilenceAlarm,
    Storage,
    Stored,
    TestAlarm,
)

__all__ = ["alarms", "drop_alarm", "kick", "pulse", "put_alarm", "silence_alarm", "storage", "survey", "test_alarm"]

A = TypeVar("A", bound=Answer)


def _ask(request: Request, expected: type[A]) -> Flow[A]:
    answer = yield Call(request)
    if not isinstance(answer, expected):
        raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
    return answer


def survey(request: ListPage) -> Flow[PageListed]:
    return (yield from _ask(request, PageListed))


def pulse(topic: str, group: str) -> Flow[Pulsed]:
    return (yield from _ask(Pulse(check_topic(topic), check_group(group)) if topic else Pulse(), Pulsed))


def storage() -> Flow[Stored]:
    return (yield from _ask(Storage(), Stored))


def alarms() -> Flow[Alarms]:
    return (yield from _ask(ListAlarms(), Alarms))


def put_alarm(rule: AlarmRule) -> Flow[None]:
    yield from _ask(PutAlarm(rule), Done)


def drop_alarm(name: str) -> Flow[None]:
    yield from _ask(DropAlarm(name[:100]), Done)


def silence_alarm(name: str, until_us: int, reason: str) -> Flow[None]:
    yield from _ask(SilenceAlarm(name[:100], until_us, reason), Done)


def test_alarm(name: str) -> Flow[None]:
    yield from _ask(TestAlarm(name[:100]), Done)


def kick(topic: str, group: str, consumer: str) -> Flow[None]:
    yield from _ask(Kick(check_topic(topic), check_group(group), consumer[:100]), Done)
