"""Routing over many brokers: the parts of a request for each, and the outcome of all; sans I/O."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from towline.client.cluster.brokers import DEDUP, ClusterBrokers
from towline.client.produce.sharding import Common, Content, shards_of
from towline.errors import Conflict, NotFound, Partly, TowlineError, Unavailable, WrongShard
from towline.protocol.cluster import BrokerState
from towline.protocol.groups import Sought
from towline.protocol.messages import GroupState, LaneState, TopicState
from towline.protocol.topics import Purged, Sharded

__all__ = [
    "Outcome",
    "agreed_shards",
    "by_broker",
    "merge_figures",
    "merge_groups",
    "merge_outcomes",
    "merge_purged",
    "merge_sought",
    "merge_topics",
    "split_by_home",
]

log = logging.getLogger("towline.client")

T = TypeVar("T")

_SUMMED: Final = [
    "members",
    "messages_in",
    "bytes_in",
    "messages_out",
    "in_flight",
    "dedup_ids",
    "prepared",
    "retrying",
    "connections",
    "delayed",
    "groups_expiring",
    "groups_removed",
]


class Outcome(NamedTuple, Generic[T]):
    """The outcome at one broker."""

    broker: BrokerState
    result: T | None
    error: TowlineError | None


def agreed_shards(fleet: ClusterBrokers, topic: str, outcomes: Sequence[Outcome[Sharded]]) -> int | None:
    """The number of shards of a topic on which all brokers agree; None if none of them knows. `WrongShard` names them
    if they do not agree: then nobody can tell where a message belongs."""
    said = {one.broker.id: one.result.shards for one in outcomes if one.result is not None and one.result.known}
    if len(set(said.values())) < 2:
        return next(iter(said.values()), None)
    each = sorted(
        f"{fleet.label(broker)} has {f'{count} shards' if count else 'it shared'}" for broker, count in said.items()
    )
    raise WrongShard(
        f"the brokers of the cluster do not agree on topic {topic}: {', '.join(each)}. "
        "`towline cluster check` says how to mend it"
    )


def by_broker(
    fleet: ClusterBrokers, common: Common, topic: str, shards: int, content: Content
) -> list[tuple[str, list[int], Content]]:
    """Messages by broker, as `split_by_home`; without a name, for any."""
    if shards:
        return split_by_home(fleet, common, topic, shards, content)
    dedup = content.dedup_ids is not None and any(one is not None for one in content.dedup_ids)
    return [(fleet.home(topic, DEDUP) if dedup else "", [], content)]


def split_by_home(
    fleet: ClusterBrokers, common: Common, topic: str, shards: int, content: Content
) -> list[tuple[str, list[int], Content]]:
    """The messages of an ordered topic by the broker that each belongs to: the broker, the indices in the call, and the
    messages."""
    bodies = content.bodies
    lanes = shards_of(topic, shards, content, common.priority)
    homes = {shard: fleet.home(topic, shard) for shard in set(lanes)}
    by_home: defaultdict[str, list[int]] = defaultdict(list)
    for number, lane in enumerate(lanes):
        by_home[homes[lane]].append(number)
    if len(by_home) <= 1:
        return [(home, numbers, content) for home, numbers in by_home.items()]
    return [
        (
            home,
            numbers,
            Content(
                [bodies[number] for number in numbers],
                *(_some(column, numbers) for column in content[1:]),
            ),
        )
        for home, numbers in by_home.items()
    ]


def _some(column: Any, numbers: Sequence[int]) -> Any:
    return column if column is None or isinstance(column, Mapping) else [column[number] for number in numbers]


def merge_outcomes(outcomes: Sequence[Outcome[T]], what: str, *, catch_up: bool = False) -> list[T]:
    """The results, if it was done everywhere. Raises the common error, or else `Partly` with that of each."""
    failed = [one for one in outcomes if one.error is not None]
    done: list[T] = [one.result for one in outcomes if one.error is None]  # type: ignore[misc]
    if not failed:
        return done
    serious = [one for one in failed if not isinstance(one.error, (Conflict, NotFound) if done else ())]
    if catch_up and done:
        away = [one for one in serious if isinstance(one.error, Unavailable)]
        for one in away:
            log.warning("%s: broker %s is away, and will hear of it when it returns", what, one.broker.address)
        serious = [one for one in serious if one not in away]
    if not serious:
        return done
    if not done and len({one.error.code for one in failed if one.error is not None}) == 1:
        assert failed[0].error is not None
        raise failed[0].error
    said = "; ".join(f"{one.broker.address}: {one.error or 'done'}" for one in outcomes)
    raise Partly(f"{what} was done at {len(done)} of {len(outcomes)} brokers: {said}")


def merge_topics(states: Sequence[Sequence[TopicState]]) -> list[TopicState]:
    """The topics of all brokers: their figures are added up, lane by lane."""
    by_name: dict[str, TopicState] = {}
    for state in (one for some in states for one in some):
        known = by_name.get(state.config.name)
        by_name[state.config.name] = state if known is None else _merged_topic(known, state)
    return [by_name[name] for name in sorted(by_name)]


def _merged_topic(one: TopicState, other: TopicState) -> TopicState:
    lanes = {lane.lane: lane for lane in one.lanes}
    for lane in other.lanes:
        mine = lanes.get(lane.lane)
        if mine is None:
            lanes[lane.lane] = lane
        else:
            lanes[lane.lane] = LaneState(
                lane.lane, mine.first + lane.first, mine.end + lane.end, mine.size_bytes + lane.size_bytes
            )
    return msgspec.structs.replace(
        one,
        lanes=list(lanes.values()),
        groups=sorted({*one.groups, *other.groups}),
        delayed=one.delayed + other.delayed,
    )


def merge_groups(states: Sequence[Sequence[GroupState]]) -> list[GroupState]:
    """The groups of all brokers: figures are added up; a consumer counts once, with its leases at all of them."""
    by_name: dict[tuple[str, str], GroupState] = {}
    for state in (one for some in states for one in some):
        key = state.config.topic, state.config.name
        known = by_name.get(key)
        by_name[key] = state if known is None else _merged_group(known, state)
    return [by_name[key] for key in sorted(by_name)]


def _merged_group(one: GroupState, other: GroupState) -> GroupState:
    positions = {lane: (at, end) for lane, at, end in one.positions}
    for lane, at, end in other.positions:
        mine = positions.get(lane, (0, 0))
        positions[lane] = mine[0] + at, mine[1] + end
    members = {member.consumer: member for member in one.members}
    for member in other.members:
        known = members.get(member.consumer)
        members[member.consumer] = (
            member
            if known is None
            else msgspec.structs.replace(
                known,
                in_flight=known.in_flight + member.in_flight,
                waiting=known.waiting or member.waiting,
                last_seen_s=min(known.last_seen_s, member.last_seen_s),
            )
        )
    times = [time for time in (one.next_retry_at_us, other.next_retry_at_us) if time]
    return msgspec.structs.replace(
        one,
        positions=[(lane, at, end) for lane, (at, end) in positions.items()],
        lag=one.lag + other.lag,
        in_flight=one.in_flight + other.in_flight,
        retrying=one.retrying + other.retrying,
        next_retry_at_us=min(times, default=0),
        dying=one.dying + other.dying,
        dead=one.dead + other.dead,
        members=list(members.values()),
        unreadable=one.unreadable or other.unreadable,
        retry_load=max(one.retry_load, other.retry_load),
        unused_s=min(one.unused_s, other.unused_s),
        # Each removes its own, once none of them has seen it used for long enough.
        expires_in_s=-1.0
        if min(one.expires_in_s, other.expires_in_s) < 0
        else max(one.expires_in_s, other.expires_in_s),
    )


def merge_sought(answers: Sequence[Sought]) -> Sought:
    lanes: dict[str, tuple[int, int]] = {}
    for answer in answers:
        for lane, at, count in answer.moves:
            mine = lanes.get(lane, (0, 0))
            lanes[lane] = mine[0] + at, mine[1] + count
    positions = [(lane, at, count) for lane, (at, count) in lanes.items()]
    return Sought(positions, sum(one.again for one in answers), sum(one.passed for one in answers))


def merge_purged(answers: Sequence[Purged]) -> Purged:
    groups: defaultdict[str, int] = defaultdict(int)
    for answer in answers:
        for group, count in answer.groups:
            groups[group] += count
    return Purged(sum(one.messages for one in answers), sum(one.size_bytes for one in answers), sorted(groups.items()))


def merge_figures(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the first broker, with those added up that can be."""
    merged = dict(figures[0])
    for name in _SUMMED:
        if name in merged:
            merged[name] = sum(one.get(name, 0) for one in figures)
    return merged
