"""Settings of a database server that break a broker's promises: found at the start and logged as errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from towline.store.sql.database import Database

__all__ = ["check_server", "problems"]

log = logging.getLogger("towline.store")


async def check_server(database: Database, max_frame_bytes: int = 0) -> None:
    found = problems(await database.variables(), max_frame_bytes)
    if database.tidb:
        found = [one for one in found if not one.startswith("innodb")]
    for problem in found:
        log.warning("the database %s: %s", database.label, problem)


def problems(variables: Mapping[str, str], max_frame_bytes: int = 0) -> list[str]:
    """A sentence for each."""
    said = []
    flush = variables.get("innodb_flush_log_at_trx_commit", "1")
    if flush != "1":
        said.append(
            f"innodb_flush_log_at_trx_commit is {flush}, so ACKNOWLEDGED MESSAGES CAN BE LOST when the server or its "
            "machine fails: set it to 1"
        )
    if (double := _on(variables, "innodb_doublewrite", "ON")) in {"OFF", "DETECT_ONLY"}:
        said.append(f"innodb_doublewrite is {double}: a power cut can damage pages for good; set it to ON")
    if _on(variables, "log_bin", "OFF") == "ON" and variables.get("sync_binlog", "1") != "1":
        said.append(
            f"sync_binlog is {variables['sync_binlog']}: replicas can miss acknowledged messages after a crash of the "
            "server; set it to 1"
        )
    if _on(variables, "log_bin", "OFF") == "ON" and variables.get("binlog_format", "ROW").upper() == "STATEMENT":
        said.append("binlog_format is STATEMENT: what a broker writes (READ COMMITTED) is refused; set it to ROW")
    if _on(variables, "wsrep_on", "OFF") == "ON":
        sync = variables.get("wsrep_sync_wait", "0")
        if not (sync.isdigit() and int(sync) & 1):
            said.append(
                f"wsrep_sync_wait is {sync}: reads through another node can miss what was just written. The broker "
                "sets it to 1 on its own connections; whatever else reads the queue should as well"
            )
        if variables.get("wsrep_slave_threads", "1") == "0":
            said.append("wsrep_slave_threads is 0: set it to 1 or more")
    if _on(variables, "read_only", "OFF") == "ON":
        said.append("read_only is on: nothing can be written there")
    packet = int(variables.get("max_allowed_packet", 16 << 20))
    if max_frame_bytes and packet < 2 * max_frame_bytes:
        said.append(
            f"max_allowed_packet is {packet}: frames of more than {packet // 2} bytes are refused although the "
            f"broker's max_frame_bytes is {max_frame_bytes}; raise the one or lower the other"
        )
    return said


def _on(variables: Mapping[str, str], name: str, default: str) -> str:
    value = variables.get(name, default).upper()
    return {"1": "ON", "0": "OFF"}.get(value, value)
