"""The other end of a connection: its address, and what is logged about strangers."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import NamedTuple

from towline.model import origin_of

__all__ = ["Peer", "RareLog"]


class Peer(NamedTuple):
    address: str
    source: bytes
    """The address as it is kept beside each message: 4 bytes for IPv4, 16 for IPv6, none for anything else."""
    origin: str = "local"
    """By which wrong passwords are counted."""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Peer:
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple) or len(name) < 2:
            return cls("local", b"")
        host, port = str(name[0]), name[1]
        try:
            ip = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return cls(f"{host}:{port}", b"", host)
        if isinstance(ip, ipaddress.IPv6Address):
            return cls(f"[{host}]:{port}", (ip.ipv4_mapped or ip).packed, origin_of(host))
        return cls(f"{host}:{port}", ip.packed, origin_of(host))


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
