"""A Galera cluster of three nodes on this machine."""

from __future__ import annotations

import time
from pathlib import Path

from tests.parts import need
from tests.ports import free_port
from tests.store.sql.server import MariaDb, needs_mariadb

__all__ = ["Galera"]

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
SYNCED_S = 240.0


class Galera:
    def __init__(self, size: int = 3) -> None:
        needs_mariadb()
        need("galera")
        self.gossip = [free_port() for _ in range(size)]
        self.nodes = [self._node(number) for number in range(size)]

    def _node(self, number: int) -> MariaDb:
        port, incremental, whole = free_port(), free_port(), free_port()
        cluster = ",".join(f"127.0.0.1:{gossip}" for gossip in self.gossip)
        provider = (
            f"gmcast.listen_addr=tcp://127.0.0.1:{self.gossip[number]};ist.recv_addr=127.0.0.1:{incremental};"
            "gcache.size=64M;evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S;"
            "pc.recovery=false"
        )
        return MariaDb(
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-cluster-address=gcomm://{cluster}",
            "--wsrep-cluster-name=towline-test",
            f"--wsrep-node-name=node{number}",
            f"--wsrep-node-address=127.0.0.1:{self.gossip[number]}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{whole}",
            f"--wsrep-provider-options={provider}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            port=port,
        )

    def __enter__(self) -> Galera:
        try:
            self.nodes[0].install().start("--wsrep-new-cluster")
            for node in self.nodes[1:]:
                node.install().begin()
                self.wait_synced(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.remove()

    def wait_synced(self, node: MariaDb) -> None:
        deadline = time.monotonic() + SYNCED_S
        while not (node.answers() and self.synced(node)):
            assert node.process is not None
            assert node.process.poll() is None, node.log()
            assert time.monotonic() < deadline, node.log()
            time.sleep(0.1)

    @staticmethod
    def synced(node: MariaDb) -> bool:
        try:
            return node.sql("SHOW STATUS LIKE 'wsrep_local_state_comment'")[0][1] == "Synced"
        except AssertionError:
            return False

    def url(self, database: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"mysql://root@{hosts}/{database}"
