"""A changed number of shards, in a cluster whose brokers keep their own messages; sans I/O. The number decides at which
broker a message belongs, so all brokers are asked before anything is sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from towline.client.cluster.brokers import DEDUP, ClusterBrokers
from towline.client.cluster.routing import Outcome, agreed_shards
from towline.client.produce.accumulator import ClusterAccumulator, give_up, rearrange
from towline.client.produce.batch import ProducerBatch
from towline.client.produce.sharding import ShardMap
from towline.errors import Unavailable, WrongShard
from towline.protocol.topics import Sharded

__all__ = ["Recount", "not_asked"]


def not_asked(fleet: ClusterBrokers, error: Exception) -> list[Outcome[Sharded]]:
    """Asking failed altogether: nobody knows, and it is tried again."""
    return [Outcome(one, None, Unavailable(f"broker {one.name} could not be asked: {error}")) for one in fleet.members]


class Recount:
    """The step to take for one topic, by its brokers' answers."""

    def __init__(self, fleet: ClusterBrokers, salt: str, topic: str, outcomes: Sequence[Outcome[Sharded]]) -> None:
        self._fleet = fleet
        self._salt = salt
        self._topic = topic
        self._shards: int | None = 0
        self._error: WrongShard | None = None
        try:
            self._shards = agreed_shards(fleet, topic, outcomes)
        except WrongShard as error:
            self._error = error
        if self._shards is None and not any(one.error is not None for one in outcomes):
            # All were asked, and it is gone. The next send makes it.
            self._shards = 0
        self._home = cache(self._home_of)

    @property
    def homes(self) -> set[str]:
        """The brokers that get messages."""
        shards = self._shards or 0
        return {self._home(shard, dedup) for shard in range(max(shards, 1)) for dedup in (False, True)}

    def _home_of(self, shard: int, dedup: bool) -> str:
        """The broker of a shard; or where there are none, of a message with a dedup id or without."""
        if self._shards:
            return self._fleet.home(self._topic, shard)
        return self._fleet.home(self._topic, DEDUP) if dedup else self._fleet.route(self._salt, self._topic)

    def carry_out(
        self, exchanges: Mapping[str, ClusterAccumulator[Any]], counts: ShardMap
    ) -> list[ProducerBatch] | None:
        """Put all messages where they belong, and use the new number. Returns the batches that failed; None if it is to
        be tried again in a moment. To be called with the locks of all accumulators held."""
        if self._error is not None:
            counts.forget(self._topic)
            return give_up(self._topic, self._error, exchanges)
        if self._shards is None:
            # Brokers that know it are away: refused batches are tried again until they are back.
            for one in exchanges.values():
                one.let_go(self._topic)
            return []
        failed = rearrange(self._topic, self._shards, exchanges, self._home)
        if failed is not None:
            counts.put(self._topic, self._shards)
        return failed
