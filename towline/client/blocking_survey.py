"""What a blocking client offers to those who look after a broker: the counterpart of `aio_survey`."""

from __future__ import annotations

from typing import Literal

from towline.alarms.rule import AlarmRule
from towline.client import flows, survey
from towline.client.access import measure
from towline.client.link import Link
from towline.protocol.access import Measured
from towline.protocol.cluster import BrokerState, ClientState
from towline.protocol.survey import Alarms, ListPage, PageListed, Pulsed, Stored

__all__ = ["Surveying"]


class Surveying:
    _link: Link

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
    ) -> PageListed:
        """A page of the list of topics or groups, with their figures: those whose name contains `search`, or of a
        business `line`, sorted. The figures may be some seconds old."""
        return self._link.run(
            survey.survey(ListPage(of, search[:100], topic, line[:100], sort, descending, first, limit))
        )

    def pulse(self, topic: str = "", group: str = "") -> Pulsed:
        """Figures of the broker, or of a group of a topic, now and in the last while."""
        return self._link.run(survey.pulse(topic, group))

    def storage(self) -> Stored:
        """The files of the store, the room on its disk, and the broker's settings."""
        return self._link.run(survey.storage())

    def alarms(self) -> Alarms:
        """The rules, what is an alarm now, and the last notices."""
        return self._link.run(survey.alarms())

    def put_alarm(self, rule: AlarmRule) -> None:
        """Make an alarm rule, or change it."""
        self._link.run(survey.put_alarm(rule))

    def drop_alarm(self, name: str) -> None:
        self._link.run(survey.drop_alarm(name))

    def test_alarm(self, name: str) -> None:
        """Send a test notice to all that a rule names; raises what went wrong."""
        self._link.run(survey.test_alarm(name))

    def kick(self, topic: str, group: str, consumer: str) -> None:
        """Take from a consumer what it holds, and let it begin anew: its messages go to the others of its group."""
        self._link.run(survey.kick(topic, group, consumer))

    # The cluster

    def brokers(self) -> list[BrokerState]:
        """The brokers of the cluster, as the one that we are connected to sees them; it is the first."""
        return self._link.run(flows.brokers()).brokers

    def clients(self, topic: str = "", group: str = "") -> list[ClientState]:
        """Who is connected to the broker: a consumer each, with its rank among those of its group, or a connection
        without consumers. Of one topic or group, if they are named."""
        return self._link.run(flows.clients(topic, group))

    def forget_broker(self, broker: str) -> None:
        """Do not expect a broker back that is gone for good; it is named by its id or address."""
        self._link.run(flows.forget_broker(broker))

    def measure(self, topic: str = "") -> Measured:
        """Figures of the broker, its topics and its groups, as its metrics give them; or of one topic."""
        return self._link.run(measure(topic))
