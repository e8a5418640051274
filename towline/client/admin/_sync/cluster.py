# Generated from towline/client/admin/_async/cluster.py by scripts/unasync.py: change it there.
"""The cluster: its brokers, who is connected to them, settings in which they differ, backups."""

from __future__ import annotations

from towline.client import requests
from towline.client.admin._sync.router import Noun
from towline.client.cluster import merge
from towline.client.cluster.drift import Disagreement, disagreements, settings
from towline.client.cluster.routing import merge_outcomes
from towline.client.link.flow import ask
from towline.protocol.backup import BackupBegun, BackupHeld
from towline.protocol.cluster import BrokerState, ClientState, CloseConnection
from towline.protocol.messages import Done

__all__ = ["ClusterAdmin"]


class ClusterAdmin(Noun):
    def brokers(self) -> list[BrokerState]:
        """The brokers of the cluster, as the one that we are connected to knows them; it is the first."""
        return self._router.here(requests.brokers()).brokers

    def separate_brokers(self) -> list[str]:
        """The names of the brokers for `broker=…`, in a cluster whose brokers keep their own messages. Else none."""
        fleet = self._router.separate
        return [] if fleet is None else sorted(fleet.label(one.id) for one in fleet.members)

    def clients(self, topic: str = "", group: str = "", *, everywhere: bool = True) -> list[ClientState]:
        """The clients of the broker, or of all of its cluster: a consumer each, with its rank among those of its group,
        or a connection without consumers. Of one topic or group, if they are named. Not `everywhere`: of the broker
        that we are connected to."""
        if self._router.fleet is None or not everywhere:
            return self._router.here(requests.clients(topic, group))
        found = self._router.outcomes(lambda: requests.clients(topic, group))
        return merge.join_clients(found, self._router.fleet.label)

    def close_connection(self, address: str) -> None:
        """Close the connections from this address (as `clients` tells it), at whichever broker they are. A client may
        connect again: it is its token that must be revoked to keep it out."""
        if self._router.fleet is None:
            self._router.here(ask(CloseConnection(address), Done))
        else:
            found = self._router.outcomes(lambda: ask(CloseConnection(address), Done))
            merge_outcomes(found, f"closing connections from {address}")

    def disagreements(self) -> list[Disagreement]:
        """Settings of topics and groups in which the brokers of a cluster differ that keep their own messages: of those
        that can be reached. Elsewhere there are none."""
        fleet = self._router.separate
        return [] if fleet is None else disagreements(self._router.outcomes(settings), fleet.label)

    def forget_broker(self, broker: str) -> None:
        """Do not expect a broker back that is gone for good; it is named by its id or address."""
        self._router.here(requests.forget_broker(broker))

    def begin_backup(self) -> BackupBegun:
        """Have the broker that we are connected to save all snapshots, and drop nothing from its log until
        `hold_backup` is called with `done`, or has not been called for the lease in the answer. For `towline
        backup`."""
        return self._router.here(requests.begin_backup())

    def hold_backup(self, ticket: str, *, done: bool = False) -> BackupHeld:
        """Extend the backup; the answer has the end of the log: all before it is on the disk."""
        return self._router.here(requests.hold_backup(ticket, done=done))
