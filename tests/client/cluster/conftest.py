"""Clusters of brokers as processes."""

from __future__ import annotations

from tests.system.cluster.conftest import _brokers, brokers, cluster_of, connect, topic

__all__ = ["_brokers", "brokers", "cluster_of", "connect", "topic"]
