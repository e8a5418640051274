"""The other end of a connection: its address, how long it may stand still, and what is logged about strangers."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import NamedTuple

__all__ = ["Patience", "Peer", "RareLog"]

_STEP_BYTES = 64 << 10


class Peer(NamedTuple):
    address: str
    source: bytes
    """The address as it is kept beside each message: 4 bytes for IPv4, 16 for IPv6, none for anything else."""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Peer:
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple) or len(name) < 2:
            return cls("local", b"")
        host, port = str(name[0]), name[1]
        try:
            ip = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return cls(f"{host}:{port}", b"")
        if isinstance(ip, ipaddress.IPv6Address):
            return cls(f"[{host}]:{port}", (ip.ipv4_mapped or ip).packed)
        return cls(f"{host}:{port}", ip.packed)


class Patience:
    """Watches something that ought to get on, and runs out when it stands (almost) still for too long."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._mark = 0

    def is_over(self, now_s: float, limit_s: float, progress: int | None) -> bool:
        """`progress` grows, in bytes, as things get on; None is that there is nothing to wait for. Less than 64 KiB
        within the limit is standing still."""
        if progress is None:
            self._since = None
            return False
        if self._since is None or progress >= self._mark + _STEP_BYTES:
            self._since, self._mark = now_s, progress
        self._mark = min(self._mark, progress)
        return now_s - self._since > limit_s


class RareLog:
    """Logs at most so many lines a minute, and then how many it left out: strangers must not fill the disk."""

    def __init__(self, logger: logging.Logger, per_minute: int = 20) -> None:
        self._logger = logger
        self._per_minute = per_minute
        self._minute = -1
        self._lines = 0
        self._left_out = 0

    def say(self, now_s: float, level: int, message: str, *arguments: object) -> None:
        minute = int(now_s // 60)
        if minute != self._minute:
            if self._left_out:
                self._logger.log(level, "%d more lines like these were left out", self._left_out)
            self._minute, self._lines, self._left_out = minute, 0, 0
        if self._lines < self._per_minute:
            self._lines += 1
            self._logger.log(level, message, *arguments)
        else:
            self._left_out += 1
