"""Routes of an asyncio client's requests: to one broker, a named one, or all of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from towline.client.cluster import ids
from towline.client.cluster.brokers import ClusterBrokers
from towline.client.cluster.routing import Outcome, merge_outcomes
from towline.client.link.aio import AioLink
from towline.client.link.flow import Flow
from towline.client.produce.sharding import ShardMap

if TYPE_CHECKING:
    from towline.client._async.cluster import Cluster

__all__ = ["Noun", "Router"]

T = TypeVar("T")


class Router:
    def __init__(self, link: AioLink, cluster: Cluster | None, shards: ShardMap) -> None:
        self.shards = shards
        self._link = link
        self._cluster = cluster

    @property
    def fleet(self) -> ClusterBrokers | None:
        """The brokers, where there are many."""
        return None if self._cluster is None else self._cluster.fleet

    @property
    def separate(self) -> ClusterBrokers | None:
        """The brokers, where there are many and each keeps messages of its own."""
        return None if self._cluster is None or self._cluster.fleet.shared else self._cluster.fleet

    async def here(self, flow: Flow[T]) -> T:
        """Run at the broker that we are connected to."""
        return await self._link.run(flow)

    async def run(self, topic: str, flow: Flow[T]) -> T:
        """Run at the broker that we are connected to; where brokers share a store, at the one that has the topic."""
        if self._cluster is None or not self._cluster.fleet.shared:
            return await self._link.run(flow)
        return await self._cluster.run(topic, flow)

    async def outcomes(self, make_flow: Callable[[], Flow[T]]) -> list[Outcome[T]]:
        """What each broker of a cluster says."""
        assert self._cluster is not None, "only where there are many brokers, all of them are asked"
        return await self._cluster.outcomes_by(lambda _: make_flow())

    async def tell(self, topic: str, make_flow: Callable[[], Flow[T]], what: str, *, catch_up: bool = False) -> list[T]:
        """Run at all brokers that have messages of the topic. `catch_up`: one that is away gets it when it returns."""
        if self.separate is None:
            return [await self.run(topic, make_flow())]
        return merge_outcomes(await self.outcomes(make_flow), what, catch_up=catch_up)

    async def gather(self, topic: str, make_flow: Callable[[], Flow[T]]) -> list[T]:
        """The outcomes at all brokers that are there."""
        if self._cluster is None or (self._cluster.fleet.shared and topic):
            return [await self.run(topic, make_flow())]
        return merge_outcomes(await self.outcomes(make_flow), "asking", catch_up=True)

    async def consult(
        self, topic: str, broker: str | None, make_flow: Callable[[str], Flow[T]], join: ids.Join[T]
    ) -> T:
        """Where each broker keeps its own messages, ask one of them, or all. Elsewhere there is one to ask."""
        cluster = self._cluster
        if cluster is None or cluster.fleet.shared:
            return await self.run(topic, make_flow(""))
        if not broker:
            return join(await cluster.outcomes_by(make_flow), cluster.fleet.label)
        chosen = cluster.fleet.named(broker)
        state = cluster.fleet.get(chosen)
        assert state is not None, "it was found just now"
        result = await cluster.run(topic, make_flow(chosen), chosen)
        return join([Outcome(state, result, None)], cluster.fleet.label)

    async def at_its_own(self, topic: str, broker: str, what: str, flow: Flow[T]) -> T:
        """Run where it counts at one broker only. Where there are several, it must be known which."""
        cluster = self._cluster
        if cluster is not None and not cluster.fleet.shared:
            if broker:
                return await cluster.run(topic, flow, cluster.fleet.named(broker))
            if len(cluster.fleet.members) > 1:
                raise ids.unknown_broker(what)
        return await self.run(topic, flow)


class Noun:
    """A kind of thing that a client administers; its verbs are methods."""

    def __init__(self, router: Router) -> None:
        self._router = router
