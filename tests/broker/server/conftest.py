"""A server inside this process, on either kind of event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from tests.broker.raw_client import RawClient
from tests.inside.broker import Broker, Server
from tests.inside.ground import BrokerSettings
from tests.inside.store import MemoryStore

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
Scenario = Callable[[Server, Broker], Awaitable[None]]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a scenario with a server and its broker, on both kinds of event loop."""

    def run(scenario: Scenario, **settings: Any) -> None:
        async def body() -> None:
            given = BrokerSettings(**{"store": "memory:", "drain_s": 5.0, "reconnect_grace_s": 0.05, **settings})
            broker = await Broker.open(MemoryStore(), given)
            server = await Server.start(broker, "127.0.0.1", 0)
            try:
                await asyncio.wait_for(scenario(server, broker), 120)
            finally:
                await server.drain_and_close()
                await broker.close()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(body())

    return run


@contextmanager
def connected(server: Server) -> Iterator[RawClient]:
    with RawClient.hello(server.port) as client:
        yield client
