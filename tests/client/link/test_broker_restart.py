"""Real brokers that stop, die, ask for secrets or speak TLS; on both clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.access.declared import access_file
from tests.certificates import KIND, make_authority, openssl, sign_for
from tests.client.either import do, each, entered
from tests.client.peer import Peer
from towline.errors import BadRequest, Refused, Unavailable
from towline.model import RetryPolicy


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
async def test_everything_goes_on_when_the_broker_comes_back(
    connect: Any, serve: Callable[..., Any], tmp_path: Path, kill: bool
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    broker = serve(*flags)
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.consumer("orders", group="g", idle_timeout=30)) as consumer,
        entered(mq.producer()) as producer,
    ):
        stored = (await do(mq.send("orders", b"first"))).seq
        assert (await do(consumer.pull(wait=60))).bodies() == [b"first"]

        broker.stop(kill=kill)
        pending = await do(producer.send("orders", b"second"))
        starting = threading.Thread(target=serve, args=flags, kwargs={"port": broker.port})
        starting.start()
        assert (await do(mq.send("orders", b"third"))).seq > stored
        seen = set()
        async for message in each(consumer):
            message.ack()
            seen.add(message.body)
            if seen >= {b"second", b"third"}:
                break
        starting.join()
        await do(producer.flush(timeout=30))
        assert pending.exception() is None


async def test_a_broker_that_is_stopped_and_started_costs_nobody_an_attempt(
    connect: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Though its consumers have one attempt, and are given up as soon as their connection breaks."""
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os", "--reconnect-grace-s", "0")
    broker = serve(*flags)
    async with (
        entered(connect(f"towline://{broker.address}", timeout=60)) as mq,
        entered(mq.consumer("orders", group="g", retry=RetryPolicy(max_attempts=1))) as consumer,
    ):
        await do(mq.send_many("orders", [b"a", b"b"]))
        batch = await do(consumer.pull(wait=60, min_messages=2))
        broker.stop()
        serve(*flags, port=broker.port)
        await do(batch.ack())
        assert consumer.lost == 0
        state = await do(mq.group("orders", "g"))
        assert (state.lag, state.dying, state.dead) == (0, 0, 0)


async def test_a_killed_brokers_sends_are_stored_once(connect: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    """A thread kills and restarts the broker while messages are sent one by one: none is lost, none is doubled."""
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os")
    brokers = [serve(*flags)]
    sending = threading.Event()
    sending.set()

    def disturb() -> None:
        for _ in range(2):
            brokers[-1].stop(kill=True)
            brokers.append(serve(*flags, port=brokers[0].port))
        sending.clear()

    async with entered(connect(f"towline://{brokers[0].address}", timeout=60)) as mq:
        await do(mq.send("orders", b"-1"))
        thread = threading.Thread(target=disturb)
        thread.start()
        number = 0
        while sending.is_set() or number < 50:
            await do(mq.send("orders", b"%d" % number))
            number += 1
        await asyncio.to_thread(thread.join)
        bodies: list[bytes] = []
        first = 0
        while page := await do(mq.browse("orders", first=first, max_messages=10_000)):
            bodies += [message.body for message in page]
            first = page.next
        assert bodies == [b"%d" % sent for sent in range(-1, number)]


async def test_a_token_and_its_secret_open_the_door(connect: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    tokens = access_file(tmp_path, billing="the-long-pa55word")
    broker = serve("--store", "memory:", "--security", "--access-file", str(tokens))
    url = f"towline://{broker.address}"
    async with entered(connect(url, token="billing", secret="the-long-pa55word")) as mq:
        await do(mq.send("orders", b"x"))
        (message,) = await do(mq.browse("orders"))
        assert message.token == "billing"
        shown = f"{mq!r} {vars(mq)!r} {mq._link!r} {mq._options!r}"
        assert "pa55word" not in shown
    for wrong in ({}, {"token": "billing", "secret": "wrong"}, {"token": "other", "secret": "the-long-pa55word"}):
        with pytest.raises(Refused) as caught:
            async with entered(connect(url, **wrong)):
                pass
        assert "pa55word" not in str(caught.value)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    openssl(folder, "req", "-x509", *KIND, "-days", "2", *names, "-keyout", str(key), "-out", str(cert))
    return cert, key


async def test_everything_works_over_tls(
    connect: Any, serve: Callable[..., Any], certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    broker = serve("--store", "memory:", "--tls-cert", str(cert), "--tls-key", str(key), "--heartbeat-s", "2")
    url = f"towlines://{broker.address}"
    bodies = [b"%d:" % number + bytes(1000) for number in range(5000)]
    async with entered(connect(url, ca_file=str(cert))) as mq:
        await do(mq.send_many("orders", bodies))
        async with entered(mq.consumer("orders", group="g", idle_timeout=3)) as consumer:
            seen = []
            async for message in each(consumer):
                message.ack()
                seen.append(message.body)
                if len(seen) == 100:
                    # Beats are sent meanwhile, by a thread of their own.
                    await asyncio.sleep(3)
            assert seen == bodies
            assert consumer.lost == 0
        async with entered(mq.producer()) as producer:
            for body in bodies:
                await do(producer.send("orders", body))
        assert (await do(mq.topic("orders"))).lanes[1].end == 10_000

    with pytest.raises(Refused, match=r"certificate is not accepted: .*ca_file"):
        async with entered(connect(url, timeout=30)):
            pass
    with pytest.raises(BadRequest, match="towlines://"):
        connect("towline://127.0.0.1", ca_file=str(cert))
    with pytest.raises(BadRequest, match="ca_file /nowhere"):
        connect(url, ca_file="/nowhere")


@pytest.fixture(scope="session")
def certificate_of_another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("another")
    make_authority(folder)
    sign_for(folder, "another", "DNS:another.example,IP:127.0.0.9")
    return folder


@pytest.mark.parametrize(
    ("host", "mismatch"), [("localhost", "Hostname mismatch"), ("127.0.0.1", "IP address mismatch")]
)
async def test_a_broker_whose_certificate_is_for_another_name_is_refused_and_told_nothing(
    connect: Any, certificate_of_another: Path, host: str, mismatch: str
) -> None:
    """Though the authority that signed it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_of_another / "another.pem", certificate_of_another / "another.key")
    heard = bytearray()

    def script(peer: Peer) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(peer.accept().sock, server_side=True) as sock:
            heard.extend(sock.recv(1 << 16))

    with Peer(script) as peer:
        address = f"{host}:{peer.address.rpartition(':')[2]}"
        secrets = {"token": "billing", "secret": "the-long-pa55word", "ca_file": str(certificate_of_another / "ca.pem")}
        reason = f"{address}: its certificate is not accepted: {mismatch}.*; connect by a name that stands in it"
        with pytest.raises(Refused, match=reason):
            async with entered(connect(f"towlines://{address}", timeout=30, **secrets)):
                pass
    assert not heard


async def test_a_stuck_consumer_is_left_behind_and_the_others_get_its_messages(
    connect: Any, serve: Callable[..., Any]
) -> None:
    broker = serve("--store", "memory:", "--heartbeat-s", "2")
    url = f"towline://{broker.address}"
    async with entered(connect(url)) as mq:
        await do(mq.send("orders", b"x"))
        async with entered(mq.consumer("orders", group="g")) as stuck:
            await do(stuck.pull())
            # Beats are all that keeps the lease: it holds while they are sent, for many times the limit.
            async with entered(mq.consumer("orders", group="g")) as other:
                assert not await do(other.pull(wait=5.0))


async def test_connecting_to_a_stopping_broker_fails_clearly(connect: Any, serve: Callable[..., Any]) -> None:
    broker = serve()
    async with entered(connect(f"towline://{broker.address}", timeout=3)) as mq:
        broker.stop()
        with pytest.raises(Unavailable, match=rf"{broker.port} cannot be reached"):
            await do(mq.send("orders", b"x"))
        with contextlib.suppress(Unavailable):
            await do(mq.stat())
