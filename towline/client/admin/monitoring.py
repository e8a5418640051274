"""Monitoring: lists by pages, figures over time, storage, alarms, clients, backups."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from towline.alarms.rule import REASON_MAX, TIME_MAX_US, AlarmRule
from towline.client import requests
from towline.client.admin.access import measure
from towline.client.admin.topics import TopicsAndGroups
from towline.client.cluster import merge
from towline.client.cluster.routing import merge_figures, merge_outcomes
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.operation import Errand, offered
from towline.client.produce.encode import as_time_us
from towline.clock import SYSTEM
from towline.errors import BadRequest, ProtocolError
from towline.model import check_group, check_topic
from towline.protocol.access import Measured
from towline.protocol.backup import BackupBegun, BackupHeld
from towline.protocol.cluster import BrokerState, ClientState, CloseConnection
from towline.protocol.messages import Answer, Done, Request
from towline.protocol.monitor import (
    Alarms,
    DropAlarm,
    GroupRow,
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
    TopicRow,
)

__all__ = [
    "Monitoring",
    "alarms",
    "drop_alarm",
    "kick",
    "pulse",
    "put_alarm",
    "silence_alarm",
    "storage",
    "survey",
    "test_alarm",
]


A = TypeVar("A", bound=Answer)


PAGE: Final = 1_000


def _ask(request: Request, expected: type[A]) -> Flow[A]:
    answer = yield Call(request)
    if not isinstance(answer, expected):
        raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
    return answer


def survey(request: ListPage) -> Flow[PageListed]:
    return (yield from _ask(request, PageListed))


def whole_survey(request: ListPage) -> Flow[PageListed]:
    """The whole list of a broker, page by page: a list that is added up with others' cannot be cut before."""
    first, topics, groups = 0, list[TopicRow](), list[GroupRow]()
    while True:
        page = yield from survey(msgspec.structs.replace(request, first=first, limit=PAGE))
        topics += page.topics
        groups += page.groups
        first += PAGE
        if first >= page.total:
            return PageListed(page.total, topics, groups, page.lines)


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


def _close_connection(address: str) -> Flow[None]:
    yield from _ask(CloseConnection(address), Done)


def kick(topic: str, group: str, consumer: str) -> Flow[None]:
    yield from _ask(Kick(check_topic(topic), check_group(group), consumer[:100]), Done)


class Monitoring(TopicsAndGroups):
    @offered
    def survey(
        self,
        of: Literal["topics", "groups"],
        *,
        search: str = "",
        topic: str = "",
        line: str = "",
        sort: str = "name",
        descending: bool = False,
        first: int = 0,
        limit: int = 50,
    ) -> Errand[PageListed]:
        """A page of the list of topics or groups, with their figures: those whose name contains `search`, or of a
        business `line`, sorted. The figures may be some seconds old."""
        request = ListPage(of, search[:100], topic, line[:100], sort, descending, first, limit)
        if self._fleet is None or (topic and self._fleet.shared):
            return (yield from self._run(topic, survey(request)))
        found = yield from self._outcomes(lambda: whole_survey(request))
        return merge.join_pages(request, found)

    @offered
    def pulse(self, topic: str = "", group: str = "") -> Errand[Pulsed]:
        """Present and recent figures of the broker, or of a group of a topic."""
        if self._fleet is None or (topic and self._fleet.shared):
            return (yield from self._run(topic, pulse(topic, group)))
        return merge.join_pulses((yield from self._outcomes(lambda: pulse(topic, group))))

    @offered
    def stat(self) -> Errand[dict[str, Any]]:
        """Figures of the broker, by name."""
        return merge_figures((yield from self._gather("", requests.stat)))

    @offered
    def storage(self, *, broker: str | None = None) -> Errand[Stored]:
        """The files of the store, the room on its disk, and the broker's settings. Where each broker has its own: those
        of all together, or of one `broker`."""
        if self._fleet is None or self._fleet.shared:
            return self._here(storage())
        return self._consult("", broker, lambda _: storage(), merge.join_storage)

    @offered
    def alarms(self) -> Errand[Alarms]:
        """The rules, the present alarms, and the last notices."""
        if self._fleet is None:
            return (yield from self._here(alarms()))
        return merge.join_alarms((yield from self._outcomes(alarms)))

    @offered
    def put_alarm(self, rule: AlarmRule) -> Errand[None]:
        """Make an alarm rule, or change it. A broker of a cluster that is away gets it when it returns."""
        yield from self._tell("", lambda: put_alarm(rule), f"making alarm {rule.name}", catch_up=True)

    @offered
    def drop_alarm(self, name: str) -> Errand[None]:
        yield from self._tell("", lambda: drop_alarm(name), f"dropping alarm {name}", catch_up=True)

    @offered
    def silence_alarm(
        self, name: str, reason: str, *, for_s: float | None = None, until: datetime | float | None = None
    ) -> Errand[None]:
        """Send no notices of an alarm for so many seconds, or until a time, with the reason. It is still listed; and if
        it is still an alarm when that is over, a notice is sent then."""
        until_us = _end_of_silence(name, for_s, until)
        if len(reason) > REASON_MAX:
            raise BadRequest(f"alarm {name}: the reason has more than {REASON_MAX} characters")
        what = f"silencing alarm {name}"
        yield from self._tell("", lambda: silence_alarm(name, until_us, reason), what, catch_up=True)

    @offered
    def unsilence_alarm(self, name: str) -> Errand[None]:
        """End the silence of an alarm."""
        what = f"ending the silence of alarm {name}"
        yield from self._tell("", lambda: silence_alarm(name, 0, ""), what, catch_up=True)

    @offered
    def test_alarm(self, name: str) -> Errand[None]:
        """Send a test notice to all that a rule names; raises what went wrong."""
        yield from self._here(test_alarm(name))

    @offered
    def kick(self, topic: str, group: str, consumer: str) -> Errand[None]:
        """Take from a consumer what it holds, and let it begin anew: its messages go to the others of its group."""
        yield from self._tell(topic, lambda: kick(topic, group, consumer), f"kicking out {consumer}")

    # The cluster

    @offered
    def brokers(self) -> Errand[list[BrokerState]]:
        """The brokers of the cluster, as the one that we are connected to knows them; it is the first."""
        return (yield from self._here(requests.brokers())).brokers

    @offered
    def clients(self, topic: str = "", group: str = "", *, everywhere: bool = True) -> Errand[list[ClientState]]:
        """The clients of the broker, or of all of its cluster: a consumer each, with its rank among those of its group,
        or a connection without consumers. Of one topic or group, if they are named. Not `everywhere`: of the broker
        that we are connected to."""
        if self._fleet is None or not everywhere:
            return (yield from self._here(requests.clients(topic, group)))
        found = yield from self._outcomes(lambda: requests.clients(topic, group))
        return merge.join_clients(found, self._fleet.label)

    @offered
    def close_connection(self, address: str) -> Errand[None]:
        """Close the connections from this address (as `clients` tells it), at whichever broker they are. A client may
        connect again: it is its token that must be revoked to keep it out."""
        if self._fleet is None:
            yield from self._here(_close_connection(address))
        else:
            found = yield from self._outcomes(lambda: _close_connection(address))
            merge_outcomes(found, f"closing connections from {address}")

    @offered
    def begin_backup(self) -> Errand[BackupBegun]:
        """Have the broker that we are connected to save all snapshots, and drop nothing from its log until
        `hold_backup` is called with `done`, or has not been called for the lease in the answer. For `towline
        backup`."""
        return self._here(requests.begin_backup())

    @offered
    def hold_backup(self, ticket: str, *, done: bool = False) -> Errand[BackupHeld]:
        """Extend the backup; the answer has the end of the log: all before it is on the disk."""
        return self._here(requests.hold_backup(ticket, done=done))

    @offered
    def forget_broker(self, broker: str) -> Errand[None]:
        """Do not expect a broker back that is gone for good; it is named by its id or address."""
        yield from self._here(requests.forget_broker(broker))

    @offered
    def measure(self, topic: str = "") -> Errand[Measured]:
        """Figures of the broker, its topics and its groups, as its metrics give them; or of one topic."""
        if self._fleet is None or (topic and self._fleet.shared):
            return (yield from self._run(topic, measure(topic)))
        return merge.join_figures((yield from self._outcomes(lambda: measure(topic))))


def _end_of_silence(name: str, for_s: float | None, until: datetime | float | None) -> int:
    if (for_s is None) == (until is None):
        raise BadRequest(f"alarm {name}: say for how long it is silenced, or until when: one of for_s and until")
    given = for_s if for_s is not None else until
    if isinstance(given, int | float) and not math.isfinite(given):
        raise BadRequest(f"alarm {name}: a silence ends some day, not after {given} seconds")
    until_us = as_time_us(until) if until is not None else SYSTEM.now_us() + round((for_s or 0) * 1e6)
    if not 0 < until_us <= TIME_MAX_US:
        raise BadRequest(f"alarm {name}: a silence ends in the future, and before the year 10000")
    return until_us
