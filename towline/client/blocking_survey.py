"""What a blocking client offers to those who look after a broker: the counterpart of `aio_survey`."""

from __future__ import annotations

from typing import Literal

from towline.alarms.rule import AlarmRule
from towline.client import flows, joining, survey
from towline.client.access import measure
from towline.client.blocking_admin import Administering
from towline.protocol.access import Measured
from towline.protocol.cluster import BrokerState, ClientState
from towline.protocol.survey import Alarms, ListPage, PageListed, Pulsed, Stored

__all__ = ["Surveying"]


class Surveying(Administering):
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
        request = ListPage(of, search[:100], topic, line[:100], sort, descending, first, limit)
        if self._cluster is None or (topic and self._cluster.fleet.shared):
            return self._run(topic, survey.survey(request))
        found = self._cluster.outcomes(lambda: joining.whole_survey(request))
        return joining.join_pages(request, found)

    def pulse(self, topic: str = "", group: str = "") -> Pulsed:
        """Figures of the broker, or of a group of a topic, now and in the last while."""
        if self._cluster is None or (topic and self._cluster.fleet.shared):
            return self._run(topic, survey.pulse(topic, group))
        return joining.join_pulses(self._cluster.outcomes(lambda: survey.pulse(topic, group)))

    def storage(self) -> Stored:
        """The files of the store, the room on its disk, and the broker's settings."""
        return self._link.run(survey.storage())

    def alarms(self) -> Alarms:
        """The rules, what is an alarm now, and the last notices."""
        if self._cluster is None:
            return self._link.run(survey.alarms())
        return joining.join_alarms(self._cluster.outcomes(survey.alarms))

    def put_alarm(self, rule: AlarmRule) -> None:
        """Make an alarm rule, or change it."""
        self._tell("", lambda: survey.put_alarm(rule), f"making alarm {rule.name}")

    def drop_alarm(self, name: str) -> None:
        self._tell("", lambda: survey.drop_alarm(name), f"dropping alarm {name}")

    def test_alarm(self, name: str) -> None:
        """Send a test notice to all that a rule names; raises what went wrong."""
        self._link.run(survey.test_alarm(name))

    def kick(self, topic: str, group: str, consumer: str) -> None:
        """Take from a consumer what it holds, and let it begin anew: its messages go to the others of its group."""
        self._tell(topic, lambda: survey.kick(topic, group, consumer), f"kicking out {consumer}")

    # The cluster

    def brokers(self) -> list[BrokerState]:
        """The brokers of the cluster, as the one that we are connected to sees them; it is the first."""
        return self._link.run(flows.brokers()).brokers

    def clients(self, topic: str = "", group: str = "", *, everywhere: bool = True) -> list[ClientState]:
        """Who is connected to the broker, or to all of its cluster: a consumer each, with its rank among those of its
        group, or a connection without consumers. Of one topic or group, if they are named. Not `everywhere`: of
        the broker that we are connected to."""
        if self._cluster is None or not everywhere:
            return self._link.run(flows.clients(topic, group))
        found = self._cluster.outcomes(lambda: flows.clients(topic, group))
        return joining.join_clients(found, self._cluster.fleet.label)

    def forget_broker(self, broker: str) -> None:
        """Do not expect a broker back that is gone for good; it is named by its id or address."""
        self._link.run(flows.forget_broker(broker))

    def measure(self, topic: str = "") -> Measured:
        """Figures of the broker, its topics and its groups, as its metrics give them; or of one topic."""
        if self._cluster is None or (topic and self._cluster.fleet.shared):
            return self._run(topic, measure(topic))
        return joining.join_figures(self._cluster.outcomes(lambda: measure(topic)))
