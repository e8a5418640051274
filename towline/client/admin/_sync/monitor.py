# Generated from towline/client/admin/_async/monitor.py by scripts/unasync.py: change it there.
"""Monitoring: lists by pages, figures over time, storage."""

from __future__ import annotations

from typing import Any, Literal

from towline.client import requests
from towline.client.admin._sync.router import Noun
from towline.client.admin.listing import whole_list
from towline.client.cluster import merge
from towline.client.cluster.routing import merge_figures
from towline.client.link.flow import ask
from towline.model import check_group, check_topic
from towline.protocol.access import Measure, Measured
from towline.protocol.monitor import ListPage, PageListed, Pulse, Pulsed, Storage, Stored

__all__ = ["Monitor"]


class Monitor(Noun):
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
        if self._router.fleet is None or (topic and self._router.fleet.shared):
            return self._router.run(topic, ask(request, PageListed))
        found = self._router.outcomes(lambda: whole_list(request))
        return merge.join_pages(request, found)

    def pulse(self, topic: str = "", group: str = "") -> Pulsed:
        """Present and recent figures of the broker, or of a group of a topic."""
        request = Pulse(check_topic(topic), check_group(group)) if topic else Pulse()
        if self._router.fleet is None or (topic and self._router.fleet.shared):
            return self._router.run(topic, ask(request, Pulsed))
        return merge.join_pulses(self._router.outcomes(lambda: ask(request, Pulsed)))

    def stat(self) -> dict[str, Any]:
        """Figures of the broker, by name."""
        return merge_figures(self._router.gather("", requests.stat))

    def storage(self, *, broker: str | None = None) -> Stored:
        """The files of the store, the room on its disk, and the broker's settings. Where each broker has its own: those
        of all together, or of one `broker`."""
        if self._router.separate is None:
            return self._router.here(ask(Storage(), Stored))
        return self._router.consult("", broker, lambda _: ask(Storage(), Stored), merge.join_storage)

    def measure(self, topic: str = "") -> Measured:
        """Figures of the broker, its topics and its groups, as its metrics give them; or of one topic."""
        if self._router.fleet is None or (topic and self._router.fleet.shared):
            return self._router.run(topic, ask(Measure(topic), Measured))
        return merge.join_figures(self._router.outcomes(lambda: ask(Measure(topic), Measured)))
