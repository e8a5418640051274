"""The broker as a process: `run` implements `towline serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from towline.broker.broker import Broker
from towline.broker.cluster.gossip import Gossip, advertised, join_addresses, split_address
from towline.broker.loop_lag import GARBAGE
from towline.broker.open_store import open_store, sql_settings
from towline.broker.periodic import every
from towline.broker.process.garbage_collector import LOOK_S, GarbageCollector
from towline.broker.process.heap import GIVE_BACK_S, give_back, keep_freed
from towline.broker.server.console_process import ConsoleProcess
from towline.broker.server.listener import Server
from towline.broker.server.metrics_http import MetricsServer
from towline.broker.server.tls import tls_of
from towline.connection_limit import allow_files
from towline.errors import BadRequest, TowlineError
from towline.log_lines import LineFormatter, harmless, log_to_stderr
from towline.settings import BrokerSettings, misspelt_variables
from towline.store import Store

if TYPE_CHECKING:
    from towline.broker.cluster.registry_table import RegistryTable

__all__ = ["run", "split_address"]

log = logging.getLogger("towline.serve")


def run(settings: BrokerSettings, *, console: bool = False) -> int:
    """Serve until SIGTERM or SIGINT, with a web `console` beside it if the settings want one; returns the exit code: 1
    if it failed, 2 if the settings are wrong."""
    _log_to_stderr(settings.log_level)
    for each in misspelt_variables(os.environ):
        log.warning("%s", each)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, console))
    except (TowlineError, OSError) as error:
        sys.stderr.write(f"error: {harmless(str(error))}\n")
        return 2 if isinstance(error, BadRequest) else 1
    return 0


async def _serve(settings: BrokerSettings, console: bool) -> None:
    stop = _on_signals()
    garbage = GarbageCollector(lambda: server.connections)
    garbage.settle()
    host, port = split_address(settings.listen)
    context = tls_of(settings)
    join_addresses(settings)
    allow_files(settings.max_connections + 512)
    broker = await _open(settings, stop)
    if settings.exit_on_store_failure:
        broker.on_store_failure = stop.set
    try:
        server = await Server.start(broker, host, port, context)
        broker.registry.address = advertised(settings, server.port)
        cluster = Gossip(broker)
        cluster.start()
        if broker.realms is not None:
            broker.realms.start(broker.registry.address)
        roll = _roll(broker)
        broker._start(every(LOOK_S, GARBAGE, garbage.look), GARBAGE)
        keep_freed()
        broker._start(every(GIVE_BACK_S, "giving memory back", give_back), "giving memory back")
        metrics = await _serve_metrics(server, settings)
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"listening on {shown}:{server.port}\n")
        sys.stdout.flush()
        log.info("%s serves %s%s", settings.name, settings.store, " with TLS" if context else "")
        console_process = await ConsoleProcess.start(settings, host, server.port) if console else None
        await stop.wait()
        await cluster.stop()
        if broker.realms is not None:
            # First of all, while clients are still connected: nothing else here is worth that a topic stands still.
            await broker.realms.leave()
        if console_process is not None:
            await console_process.stop()
        if roll is not None:
            await roll.stop()
        if metrics is not None:
            await metrics.close()
        log.info("stopping: %d connections are drained", server.connections)
        await server.drain_and_close()
    finally:
        await broker.close()
    if broker.store.failure is not None:
        raise broker.store.failure
    log.info("stopped")


async def _open(settings: BrokerSettings, stop: asyncio.Event) -> Broker:
    if settings.join and settings.store.startswith("mysql:"):
        sql_settings(settings)
        from towline.broker.cluster.realms import Realms

        return (await Realms.open(settings)).front
    store = await open_store(settings)
    _stop_when_lost(store, stop)
    return await Broker.open(store, settings)


def _roll(broker: Broker) -> RegistryTable | None:
    """On a database, this broker and its consumers stand in a table."""
    shared = broker.realms is not None
    database = broker.realms.database if shared else getattr(broker.store, "database", None)
    if database is None:
        return None
    from towline.broker.cluster.registry_table import RegistryTable
    from towline.store.sql import Roster

    roll = RegistryTable(broker, Roster(database), itself=shared)
    roll.start()
    return roll


def _stop_when_lost(store: Store, stop: asyncio.Event) -> None:
    """A store that is shared can be lost to another broker: the state in memory is then not ours any more."""
    lost: asyncio.Future[None] | None = getattr(store, "lost", None)
    if lost is not None:
        lost.add_done_callback(lambda _: stop.set())


async def _serve_metrics(server: Server, settings: BrokerSettings) -> MetricsServer | None:
    if not settings.metrics:
        return None
    host, port = split_address(settings.metrics, "metrics")
    metrics = await server.serve_metrics(host, port)
    log.info("metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, metrics.port)
    return metrics


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _on_signals() -> asyncio.Event:
    """An event for the first SIGTERM or SIGINT; the second one ends the process at once."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


def _log_to_stderr(level: str) -> None:
    form = LineFormatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    log_to_stderr(level, form)
