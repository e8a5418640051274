"""The web console as a child process of the broker: it begins and ends with it, and shares nothing else.

The broker holds the other end of the child's stdin. However the broker ends, the system closes it, and so the child
ends as well.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from typing import Final

from towline.settings import BrokerSettings

__all__ = ["ConsoleProcess"]

log = logging.getLogger("towline.serve")

END_S: Final = 3.0
NEEDED: Final = ("nicegui", "fastapi")


class ConsoleProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._telling = asyncio.create_task(self._tell())

    @classmethod
    async def start(cls, settings: BrokerSettings, host: str, port: int) -> ConsoleProcess | None:
        if settings.console.lower() in ("", "off", "none"):
            return None
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            log.info("no web console: %s is not installed (pip install 'towline[console]')", missing[0])
            return None
        command = [sys.executable, "-m", "towline", "console", "--beside-broker", "--listen", settings.console]
        command += ["--max-connections-per-address", str(settings.http_connections_per_address)]
        command += _where(settings, host, port)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            log.error("no web console: %s", error)
            return None
        return cls(process)

    async def _tell(self) -> None:
        """Copy its output to the broker's log."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            log.info("%s", line.decode("utf-8", "replace").rstrip()[:500])
        code = await self._process.wait()
        if code:
            log.warning("the web console ended with code %d; the broker goes on without it", code)

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.returncode is None:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._telling.cancel()
        await asyncio.wait([self._telling])


def _where(settings: BrokerSettings, host: str, port: int) -> list[str]:
    """The broker's URL, and the name it is verified by: alone its certificate, whatever names stand in that; in a
    cluster its name, since the console speaks to the other brokers as well."""
    if not settings.tls_cert:
        return ["--broker", f"towline://{_reached(host)}:{port}"]
    flags = ["--tls-cert", settings.tls_cert, "--tls-key", settings.tls_key]
    if settings.join:
        address = settings.advertise or f"{_reached(host)}:{port}"
        flags += ["--broker", f"towlines://{address}", "--ca-file", settings.cluster_ca_file or settings.tls_cert]
    else:
        flags += ["--broker", f"towlines://{_reached(host)}:{port}", "--ca-file", settings.tls_cert, "--pin"]
    if settings.tls_client_ca:  # it shows the broker's own; its users log in themselves
        flags += ["--cert-file", settings.tls_cert, "--key-file", settings.tls_key]
    return flags


def _reached(host: str) -> str:
    """The address at which this machine reaches a broker that listens there."""
    if host in ("", "0.0.0.0"):  # noqa: S104
        return "127.0.0.1"
    return "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
