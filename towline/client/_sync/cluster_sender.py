# Generated from towline/client/_async/cluster_sender.py by scripts/unasync.py: change it there.
"""Sending to the brokers of a cluster, each message to the one that it belongs to."""

from __future__ import annotations

from towline.client._sync.cluster import Cluster
from towline.client.cluster.routing import agreed_shards, by_broker
from towline.client.produce import sharding
from towline.client.produce.encode import as_bodies
from towline.client.produce.receipts import Receipts
from towline.client.produce.sharding import Common, Content, ShardMap, not_ordered
from towline.errors import Partly, Refused, TooMany, Unavailable, WrongShard

__all__ = ["count_shards", "send_many"]


def count_shards(cluster: Cluster, shards: ShardMap, topic: str, *, needed: bool) -> int:
    """The number of shards of a topic where brokers keep their own messages. A broker that does not know the topic
    cannot tell, because it may have been made without it: then the others are asked, but for those that are away. A
    topic that none of them knows is made by the first send, as a shared one. `needed`: by a shard key, which a shared
    topic has no use for."""
    fleet, served = cluster.fleet, list[str]()
    answer = cluster.run(topic, sharding.count_shards(topic), "", served)
    others = [one.id for one in fleet.members if one.id not in served and fleet.usable(one.id)]
    while not answer.known and others:
        try:
            answer = cluster.run(topic, sharding.count_shards(topic), others.pop(), if_alive=True)
        except (Unavailable, Refused, TooMany):
            continue
    shards.put(topic, answer.shards)
    if needed and not answer.shards:
        raise not_ordered(topic)
    return answer.shards


def send_many(cluster: Cluster, common: Common, topic: str, content: Content) -> Receipts:
    """Send each message to the broker that it belongs to, or all to any."""
    fleet = cluster.fleet
    if fleet.shared:
        return cluster.run(topic, sharding.send_many(common, topic, content))
    content = content._replace(bodies=as_bodies(content.bodies))
    needed = content.shard_keys is not None
    shards = common.shards.get(topic)
    for last in (False, True):
        if shards is None or (needed and not shards):
            shards = count_shards(cluster, common.shards, topic, needed=needed)
        sent: list[tuple[list[int], Receipts]] = []
        try:
            for home, numbers, part in by_broker(fleet, common, topic, shards, content):
                served: list[str] = []
                receipts = cluster.run(topic, sharding.send_counted(common, topic, shards, part), home, served)
                receipts.broker = fleet.label(served[-1]) if served else ""
                sent.append((numbers, receipts))
        except WrongShard as error:
            common.shards.forget(topic)
            if sent or last:
                done = sum(len(numbers) for numbers, _ in sent)
                raise _explained(cluster, topic, done, len(content.bodies), error) from None
            shards = None
        else:
            return sent[0][1] if len(sent) == 1 else sharding.joined(topic, len(content.bodies), sent)
    raise AssertionError("the second time is the last")


def _explained(cluster: Cluster, topic: str, done: int, count: int, error: WrongShard) -> Partly | WrongShard:
    """Why messages are refused; `Partly`, if some of them are stored."""
    try:
        agreed_shards(cluster.fleet, topic, cluster.outcomes_by(lambda _: sharding.count_shards(topic)))
    except WrongShard as better:
        error = better
    return Partly(f"{done} of {count} messages are stored, the others not: {error}") if done else error
