"""Closing the connections from an address, as an administrator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import towline
from tests.broker.raw_client import RawClient
from tests.broker.server.conftest import connected
from tests.eventually import eventually
from tests.inside.broker import Broker, Server
from tests.inside.protocol import Clients, CloseConnection, ListClients
from tests.inside.protocol import messages as m
from towline.errors import NotFound


def address_of(client: RawClient) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


def test_a_connection_is_told_who_closed_it_and_others_go_on(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as admin, connected(server) as doomed, connected(server) as other:
                doomed.attach("t")
                shown = admin.call(ListClients("t"), Clients).clients
                assert [one.address for one in shown] == [address_of(doomed)]
                admin.call(CloseConnection(shown[0].address), m.Done)
                [last] = doomed.last_words()
                assert isinstance(last, m.Failed)
                assert (last.code, last.message) == ("unavailable", "an administrator has closed this connection")
                other.call(m.Beat(), m.Done)
                eventually(lambda: admin.call(ListClients("t"), Clients).clients == [])
                with pytest.raises(NotFound, match="nobody is connected to this broker from"):
                    admin.call(CloseConnection(address_of(doomed)), m.Done)

        await asyncio.to_thread(use)

    run(scenario)


def test_a_pull_that_waits_does_not_keep_its_connection_open(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as admin, connected(server) as doomed:
                subscription = doomed.attach("t")
                doomed.post(m.Pull(subscription, 1, 1 << 20, 60_000))
                doomed.knock()
                admin.call(CloseConnection(address_of(doomed)), m.Done)
                assert all(isinstance(one, m.Failed) for one in doomed.last_words())

        await asyncio.to_thread(use)

    run(scenario)


def test_who_closes_its_own_connection_is_answered_first(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as client:
                client.call(CloseConnection(address_of(client)), m.Done)
                [last] = client.last_words()
                assert isinstance(last, m.Failed)

        await asyncio.to_thread(use)

    run(scenario)


def test_a_client_that_was_closed_comes_back_and_goes_on(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            url = f"towline://127.0.0.1:{server.port}"
            with towline.connect(url) as admin, towline.connect(url) as mq, mq.consumer("t", group="g") as consumer:
                mq.send("t", b"before")
                for message in consumer.pull(wait=20):
                    message.ack()
                [before] = admin.clients("t")
                admin.close_connection(before.address)
                eventually(lambda: before.address not in {one.address for one in admin.clients()})
                mq.send("t", b"behind")
                assert [message.body for message in consumer.pull(wait=20)] == [b"behind"]
                [after] = admin.clients("t")
                assert after.address != before.address

        await asyncio.to_thread(use)

    run(scenario)
