"""One session inside this process, so that the broker behind it can be made to fail, wait and refuse."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.broker.raw_client import RawClient
from tests.broker.server.conftest import connected
from tests.eventually import eventually_done
from tests.inside.broker import TABLE, Broker, Later, Own, Row, Server, join_small
from tests.inside.frame import encode
from tests.inside.protocol import cluster, encode_envelope
from tests.inside.protocol import messages as m
from tests.inside.protocol import transactions as tx
from tests.unit.protocol import samples
from towline.errors import StoreFailed, TowlineError


def boom(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a bug of ours")


def test_a_socket_that_is_connected_already_is_served(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        ours, theirs = socket.socketpair()
        await server.serve_socket(theirs)

        def use() -> None:
            with RawClient.hello(ours) as client:
                client.send("t", [b"x"])
                assert client.pull(client.attach("t")) == [b"x"]
                [member] = client.call(m.GroupInfo("t", "g"), m.GroupState).members
                assert member.address == "local"

        await asyncio.to_thread(use)

    run(scenario)


def test_small_answers_go_at_once_and_dead_machines_are_noticed(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as client:
                client.call(m.Beat(), m.Done)
                [connection] = server._line.connections
                sock = connection._transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

        await asyncio.to_thread(use)

    run(scenario)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("topic_states", m.ListTopics()),
        ("stat", m.Stat()),
        ("send", None),
        ("consumers.attach", m.Attach("t", "g", "c")),
        ("consumers.settle", m.Settle(1, [m.Act(0, 1)])),
        ("consumers.pull", m.Pull(1, 1, 1)),
        ("consumers.detach", m.Detach(1)),
        ("topics.create", samples.REQUESTS[7]),
        ("browsing.browse", m.Browse("t")),
    ],
)
def test_a_bug_is_logged_and_told_of_and_the_connection_goes_on(
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    request_: m.Request | None,
) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as client:
                client.attach("t")
                part, _, name = method.rpartition(".")
                monkeypatch.setattr(getattr(broker, part) if part else broker, name, boom)
                frame = encode([b"x"])
                attached = b"" if request_ else frame
                request = request_ or m.Send([m.FrameHead("t", 0, len(frame))])
                with pytest.raises(TowlineError, match="internal error: see the broker's log") as caught:
                    client.call(request, m.Done, attached)
                assert type(caught.value) is TowlineError
                monkeypatch.undo()
                client.call(m.Beat(), m.Done)
                client.send("t", [b"x"])

        await asyncio.to_thread(use)

    with caplog.at_level(logging.ERROR):
        run(scenario)
    [record] = [record for record in caplog.records if record.name == "towline.server"]
    assert record.exc_info is not None
    assert "a bug of ours" in str(record.exc_info[1])


def rows(kind: type[Row]) -> dict[int, Row]:
    return {request.kind: row for request, row in TABLE.items() if isinstance(row, kind)}


def test_every_request_has_its_row() -> None:
    assert {request.kind for request in TABLE} == set(m.REQUESTS)
    assert set(rows(Own)) == {m.Send.kind, m.Pull.kind, tx.AwaitChecks.kind}
    told_of = [one for one in rows(Row).values() if one.audited]
    assert all(isinstance(one, Later) for one in told_of), (
        "nothing is said to the audit log of what is answered at once"
    )


def test_every_list_waits_until_the_client_takes_it() -> None:
    later = {kind: row for kind, row in rows(Later).items() if isinstance(row, Later)}
    lists = {kind for kind in later if m.REQUESTS[kind].__name__.startswith("List")}
    lists.add(m.Stat.kind)  # as much work, if not as long
    waiting = {kind for kind, row in later.items() if row.reads is not None}
    assert lists - {cluster.ListBrokers.kind} <= waiting, "that one may wait for news, and once only"


class SlowDisk:
    """In the place of `Broker.send`: nothing becomes durable before it is told to."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[asyncio.Future[m.Sent]] = []
        self.bytes = 0

    def send(self, frames: Any, durability: Any, *, source: bytes, token: bytes) -> asyncio.Future[m.Sent]:
        assert source == bytes([127, 0, 0, 1])
        self.bytes += sum(len(frame) for _, _, frame in frames)
        future: asyncio.Future[m.Sent] = self.loop.create_future()
        self.waiting.append(future)
        return future

    def write(self, count: int) -> None:
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for future in done:
            future.set_result(m.Sent([0], 1))


async def stands_still(value: Callable[[], int]) -> int:
    """The value, once it has not changed for a while."""
    before = -1
    while value() != before:
        before = value()
        await asyncio.sleep(0.15)
    return before


def test_a_client_that_sends_faster_than_the_disk_is_held_back(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = encode([bytes(10_000)])
    send = encode_envelope(1, m.Send([m.FrameHead("t", 0, len(frame))]), len(frame)) + frame
    limit = 1 << 20

    async def scenario(server: Server, broker: Broker) -> None:
        disk = SlowDisk(asyncio.get_running_loop())
        monkeypatch.setattr(broker, "send", disk.send)

        def use() -> None:
            with connected(server) as client:
                client.write(send * 2000)
                for _ in range(2000):
                    assert client.read() == (1, m.Sent([0], 1))

        user = asyncio.create_task(asyncio.to_thread(use))
        await eventually_done(lambda: disk.bytes > limit)
        taken = await stands_still(lambda: disk.bytes)
        assert taken < limit + 20_000
        disk.write(10)
        assert await stands_still(lambda: disk.bytes) == taken, "not before half of it is done"
        while not user.done():
            disk.write(len(disk.waiting))
            await asyncio.sleep(0.001)
        await user
        assert disk.bytes == 2000 * len(frame)

    run(scenario, max_pending_bytes=limit)


def test_a_failed_write_is_told_to_each_sender(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode([b"x"])
    send = encode_envelope(1, m.Send([m.FrameHead("t", 0, len(frame))]), len(frame)) + frame

    async def scenario(server: Server, broker: Broker) -> None:
        disk = SlowDisk(asyncio.get_running_loop())
        monkeypatch.setattr(broker, "send", disk.send)

        def use() -> None:
            with connected(server) as client:
                client.write(send * 4)
                answers = [client.read() for _ in range(4)]
                codes = [answer[1].code if answer and isinstance(answer[1], m.Failed) else "" for answer in answers]
                assert codes == ["store-failed", "unavailable", "error", ""]

        user = asyncio.create_task(asyncio.to_thread(use))
        await eventually_done(lambda: len(disk.waiting) == 4)
        disk.waiting[0].set_exception(StoreFailed())
        disk.waiting[1].cancel()
        disk.waiting[2].set_exception(OSError("what the disk says is for the log"))
        disk.waiting[3].set_result(m.Sent([0], 1))
        await user

    run(scenario)


def test_draining_waits_for_what_is_not_durable_yet(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode([b"x"])
    send = encode_envelope(1, m.Send([m.FrameHead("t", 0, len(frame))]), len(frame)) + frame

    async def scenario(server: Server, broker: Broker) -> None:
        disk = SlowDisk(asyncio.get_running_loop())
        monkeypatch.setattr(broker, "send", disk.send)

        def use() -> None:
            with connected(server) as client:
                client.write(send * 3)
                *sent, last = client.last_words()
                assert sent == [m.Sent([0], 1)] * 3
                assert isinstance(last, m.Failed)
                assert last.code == "stopping"

        user = asyncio.create_task(asyncio.to_thread(use))
        await eventually_done(lambda: len(disk.waiting) == 3)
        drained = asyncio.create_task(server.drain_and_close())
        await asyncio.sleep(0.1)
        assert not drained.done()
        disk.write(3)
        await user
        await drained
        assert server.connections == 0

    run(scenario)


def test_who_leaves_while_attaching_is_not_left_behind(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        attaching, go_on, attached, attach = asyncio.Event(), asyncio.Event(), asyncio.Event(), broker.consumers.attach

        async def slow_attach(request: m.Attach, *, address: str = "") -> Any:
            attaching.set()
            await go_on.wait()
            member = await attach(request, address=address)
            attached.set()
            return member

        monkeypatch.setattr(broker.consumers, "attach", slow_attach)
        client = await asyncio.to_thread(RawClient.hello, server.port)
        await asyncio.to_thread(client.post, m.Attach("t", "g", "c"))
        await attaching.wait()
        client.socket.close()
        await eventually_done(lambda: server.connections == 0)
        go_on.set()
        await attached.wait()
        await eventually_done(lambda: not any(one.members for one in broker.topics.dispatchers()))

    run(scenario)


def test_detaching_ends_a_waiting_pull(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def use() -> None:
            with connected(server) as client:
                subscription = client.attach("t")
                pull = client.post(m.Pull(subscription, 1, 1, 300_000))
                client.knock()
                detach = client.post(m.Detach(subscription))
                answers = dict([client.read() or (0, m.Done()), client.read() or (0, m.Done())])
                assert answers == {pull: m.Pulled(0, []), detach: m.Done()}

        await asyncio.to_thread(use)

    run(scenario)


def test_joining_keeps_the_bytes_and_spares_the_large_ones() -> None:
    large = memoryview(bytes(100_000))
    buffers: list[bytes | memoryview] = [b"head", b"a", large, memoryview(b"b"), b"", large, large, b"c"]
    joined = join_small(buffers)
    assert b"".join(joined) == b"".join(buffers)
    assert [len(one) for one in joined] == [5, 100_000, 1, 100_000, 100_000, 1]
    assert joined[1] is large
    assert join_small([b"one"]) == [b"one"]
