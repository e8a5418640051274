"""What an asyncio client offers to those who look after a broker: the counterpart of `blocking_survey`."""

from __future__ import annotations

from typing import Literal

from towline.alarms.rule import AlarmRule
from towline.client import flows, survey
from towline.client.access import measure
from towline.client.aio_link import AioLink
from towline.protocol.access import Measured
from towline.protocol.cluster import BrokerState, ClientState
from towline.protocol.survey import Alarms, ListPage, PageListed, Pulsed, Stored

__all__ = ["Surveying"]


class Surveying:
    @property
    def _link(self) -> AioLink:
        raise NotImplementedError

    async def survey(
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
    ) -> PageListed:
        """A page of the list of topics or groups, with their figures: those whose name contains `search`, or of a
        business `line`, sorted. The figures may be some seconds old."""
        return await self._link.run(
            survey.survey(ListPage(of, search[:100], topic, line[:100], sort, descending, first, limit))
        )

    async def pulse(self, topic: str = "", group: str = "") -> Pulsed:
        """Figures of the broker, or of a group of a topic, now and in the last while."""
        return await self._link.run(survey.pulse(topic, group))

    async def storage(self) -> Stored:
        """The files of the store, the room on its disk, and the broker's settings."""
        return await self._link.run(survey.storage())

    async def alarms(self) -> Alarms:
        """The rules, what is an alarm now, and the last notices."""
        return await self._link.run(survey.alarms())

    async def put_alarm(self, rule: AlarmRule) -> None:
        """Make an alarm rule, or change it."""
        await self._link.run(survey.put_alarm(rule))

    async def drop_alarm(self, name: str) -> None:
        await self._link.run(survey.drop_alarm(name))

    async def test_alarm(self, name: str) -> None:
        """Send a test notice to all that a rule names; raises what went wrong."""
        await self._link.run(survey.test_alarm(name))

    async def kick(self, topic: str, group: str, consumer: str) -> None:
        """Take from a consumer what it holds, and let it begin anew: its messages go to the others of its group."""
        await self._link.run(survey.kick(topic, group, consumer))

    # The cluster

    async def brokers(self) -> list[BrokerState]:
        """The brokers of the cluster, as the one that we are connected to sees them; it is the first."""
        return (await self._link.run(flows.brokers())).brokers

    async def clients(self, topic: str = "", group: str = "") -> list[ClientState]:
        """Who is connected to the broker: a consumer each, with its rank among those of its group, or a connection
        without consumers. Of one topic or group, if they are named."""
        return await self._link.run(flows.clients(topic, group))

    async def forget_broker(self, broker: str) -> None:
        """Do not expect a broker back that is gone for good; it is named by its id or address."""
        await self._link.run(flows.forget_broker(broker))

    async def measure(self, topic: str = "") -> Measured:
        """Figures of the broker, its topics and its groups, as its metrics give them; or of one topic."""
        return await self._link.run(measure(topic))
