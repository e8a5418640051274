"""Who may come in: tokens, TLS, and where the broker listens."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import towline
from tests.certificates import KIND, openssl
from tests.server.process import BrokerProcess, failing_start
from tests.server.raw_client import RawClient
from towline.broker.access import Access
from towline.broker.serve import split_address
from towline.broker.tls import tls_context
from towline.broker.tokens_file import read_tokens
from towline.errors import BadRequest, Refused, Unavailable
from towline.protocol.envelope import PREFACE, encode_envelope
from towline.protocol.messages import Failed, Hello, Welcome


def tokens_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    path = tokens_file(tmp_path_factory.mktemp("tokens"), "# who may\nalice = wonder = land\n\n  bob=b0b\n")
    with BrokerProcess(tokens_file=str(path)) as broker:
        yield broker


def test_the_right_secret_opens(guarded: BrokerProcess) -> None:
    with RawClient.hello(guarded.port, "alice", "wonder = land") as client:
        client.send("t", [b"x"], token=b"alice")
    RawClient.hello(guarded.port, "bob", "b0b").socket.close()


@pytest.mark.parametrize(
    ("token", "secret"),
    [("alice", "wrong"), ("alice", ""), ("", ""), ("nobody", "b0b"), ("bob", "wonder = land"), ("alice", "é" * 500)],
)
def test_a_wrong_or_missing_secret_is_refused_after_a_moment(guarded: BrokerProcess, token: str, secret: str) -> None:
    with RawClient(guarded.port) as client:
        client.write(PREFACE)
        began = time.monotonic()
        answer = client.call(Hello(1, 1, token, secret), Failed)
        assert time.monotonic() - began >= 0.2
        assert answer == Failed("not-let-in", "this broker asks for a token and its secret, and these are not right")
        assert client.last_words() == []
    guarded.wait_for_log(f"login as {token!r} refused")
    assert secret == "" or secret not in guarded.errors


def test_nothing_behind_a_refused_hello_is_carried_out(guarded: BrokerProcess) -> None:
    with RawClient(guarded.port) as client:
        client.write(
            PREFACE + encode_envelope(1, Hello(1, 1, "bob", "?")) + encode_envelope(2, Hello(1, 1, "bob", "b0b"))
        )
        assert [type(word) for word in client.last_words()] == [Failed]


def test_a_secret_is_compared_whole() -> None:
    access = Access({"a": "secret"})
    assert access.admit("a", "secret").name == "a"
    for wrong in ("secre", "secrets", "SECRET", ""):
        with pytest.raises(Refused):
            access.admit("a", wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no token"),
        ("# nothing\n", "no token"),
        ("alice\n", "line 1"),
        ("a = b\nalice =\n", "line 2"),
        ("= secret\n", "line 1"),
        ("a = 1\na = 2\n", "already"),
        ("x" * 65 + " = s\n", "64 bytes"),
        ("a = " + "s" * 513, "512"),
    ],
)
def test_a_faulty_tokens_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_tokens(tokens_file(tmp_path, text))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o601])
def test_a_tokens_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadRequest, match="chmod o="):
        read_tokens(tokens_file(tmp_path, "a = b", mode))


def test_a_broker_with_a_faulty_tokens_file_does_not_start(tmp_path: Path) -> None:
    error = failing_start(tokens_file=str(tmp_path / "missing"))
    assert error == f"error: tokens file {tmp_path}/missing: No such file or directory\n"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0"])
def test_the_world_is_not_served_without_tokens(listen: str) -> None:
    error = failing_start(listen=listen)
    assert error.startswith("error: not listening on ")
    assert "allow_remote" in error


def test_the_world_is_served_when_asked_to() -> None:
    with BrokerProcess(listen="0.0.0.0:0", allow_remote=True) as broker:
        RawClient.hello(broker.port).socket.close()


def test_the_world_is_served_with_tokens(tmp_path: Path) -> None:
    with BrokerProcess(listen="0.0.0.0:0", tokens_file=str(tokens_file(tmp_path, "a = b"))) as broker:
        RawClient.hello(broker.port, "a", "b").socket.close()


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failing_start(listen=f"127.0.0.1:{port}")
        advice = "choose another port, or port 0 for a free one"
        assert error == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; {advice}\n"


@pytest.mark.parametrize("text", ["7400", "host", "host:", "host:x", "host:70000", "::1:7400", "host:-1", "host:٣"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="HOST:PORT"):
        split_address(text)


def test_addresses_are_split_at_the_port() -> None:
    assert split_address("127.0.0.1:7400") == ("127.0.0.1", 7400)
    assert split_address("[::1]:0") == ("::1", 0)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    openssl(folder, "req", "-x509", *KIND, "-days", "2", *names, "-keyout", key, "-out", cert)
    return cert, key


@pytest.fixture(scope="module")
def tls_broker(certificate: tuple[str, str]) -> Iterator[BrokerProcess]:
    cert, key = certificate
    with BrokerProcess(tls_cert=cert, tls_key=key, handshake_s=3.0, idle_s=3.0, max_frame_bytes=8 << 20) as broker:
        yield broker
        assert "Traceback" not in broker.errors, broker.errors


def client_context(cert: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert)


def test_everything_works_over_tls(tls_broker: BrokerProcess, certificate: tuple[str, str]) -> None:
    with RawClient.hello(tls_broker.port, context=client_context(certificate[0])) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() in ("TLSv1.2", "TLSv1.3")
        bodies = [bytes([i]) * 100_000 for i in range(50)]
        client.send("t", bodies)
        client.send("t", [b"small"])
        subscription = client.attach("t")
        got = client.pull(subscription, 51)
        assert got + (client.pull(subscription) if len(got) < 51 else []) == [*bodies, b"small"]


def test_an_old_tls_is_refused(tls_broker: BrokerProcess, certificate: tuple[str, str]) -> None:
    context = client_context(certificate[0])
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        RawClient.hello(tls_broker.port, context=context)


def test_plain_bytes_to_a_tls_port_are_closed(tls_broker: BrokerProcess) -> None:
    with RawClient(tls_broker.port) as client:
        client.write(PREFACE + encode_envelope(1, Hello(1, 1, "me")) + bytes(100))
        received = b""
        while data := client.socket.recv(1000):
            received += data
        assert len(received) < 100, "an alert of TLS at most"


def test_a_client_with_the_wrong_kind_of_url_is_told_at_once(
    tls_broker: BrokerProcess, certificate: tuple[str, str]
) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="towlines://"):
        towline.connect(f"towline://localhost:{tls_broker.port}", timeout=60)
    with BrokerProcess() as plain, pytest.raises(Refused, match="does not speak TLS"):
        towline.connect(f"towlines://localhost:{plain.port}", timeout=60, ca_file=certificate[0])
    assert time.monotonic() - began < 30


def test_a_tls_handshake_that_never_comes_is_closed(tls_broker: BrokerProcess) -> None:
    with RawClient(tls_broker.port) as client:
        assert client.last_words() == []


def test_a_half_sent_request_over_tls_is_closed(tls_broker: BrokerProcess, certificate: tuple[str, str]) -> None:
    with RawClient.hello(tls_broker.port, context=client_context(certificate[0])) as client:
        client.write(b"\x30\x00\x00\x00half")
        assert [type(word) for word in client.last_words()] == [Failed]


def test_bad_tls_files_are_named(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no certificate")
    for files, message in [
        ((cert, ""), "both"),
        (("", key), "both"),
        ((str(tmp_path / "none.pem"), key), "none.pem: No such file"),
        ((str(garbage), key), "do not load"),
        ((cert, str(garbage)), "do not load"),
    ]:
        with pytest.raises(BadRequest, match=message):
            tls_context(*files)
    assert tls_context("", "") is None
    locked = tmp_path / "locked.pem"
    openssl(tmp_path, "ec", "-in", key, "-aes256", "-passout", "pass:word", "-out", str(locked))
    with pytest.raises(BadRequest, match="password"):
        tls_context(cert, str(locked))


def test_welcome_comes_under_the_brokers_name() -> None:
    with BrokerProcess(name="tow-7", heartbeat_s=12.5) as broker, RawClient(broker.port) as client:
        client.write(PREFACE)
        welcome = client.call(Hello(1, 1, "me"), Welcome)
        assert (welcome.version, welcome.broker, welcome.heartbeat_s) == (1, "tow-7", 12.5)
