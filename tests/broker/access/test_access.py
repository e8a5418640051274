"""Who may come in: tokens, TLS, and where the broker listens."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.access.declared import declared
from tests.broker.process import BrokerProcess, failing_start
from tests.broker.raw_client import RawClient
from tests.certificates import KIND, openssl
from tests.inside.broker import read_access_file, split_address, tls_context
from tests.inside.client import Client
from tests.inside.protocol import PREFACE, Failed, Hello, Welcome, encode_envelope
from towline.errors import BadRequest, Conflict, Refused, Unavailable

ALICE, BOB = "wonder=land-and-more", "b0b/and~his+b0at_"
SAID = "secret = '0123456789abcdef'\n"


def file_of(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "access.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(**declared(tmp_path_factory.mktemp("tokens"), alice=ALICE, bob=BOB)) as broker:
        yield broker


def test_the_right_secret_opens(guarded: BrokerProcess) -> None:
    with RawClient.hello(guarded.port, "alice", ALICE) as client:
        client.send("t", [b"x"], token=b"alice")
    RawClient.hello(guarded.port, "bob", BOB).socket.close()


@pytest.mark.parametrize(
    ("token", "secret"),
    [("alice", "wrong"), ("alice", ""), ("", ""), ("nobody", BOB), ("bob", ALICE), ("alice", "é" * 500)],
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
            PREFACE + encode_envelope(1, Hello(1, 1, "bob", "?")) + encode_envelope(2, Hello(1, 1, "bob", BOB))
        )
        assert [type(word) for word in client.last_words()] == [Failed]


@pytest.mark.parametrize("wrong", [ALICE[:-1], ALICE + "s", ALICE.upper(), BOB])
def test_a_secret_is_compared_whole(guarded: BrokerProcess, wrong: str) -> None:
    with pytest.raises(Refused, match="not right"):
        towline.connect(f"towline://127.0.0.1:{guarded.port}", token="alice", secret=wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tokens"),
        ("[tokens]\n", "no token"),
        ("alice = wonder\n", "line 1"),
        ("alice = 'wonder'\n", "unknown field"),
        ("[tokens.a]\n", "secret or secret_file"),
        ("[tokens.a]\nsecret = 'x'\nsecret_file = 'y'\n", "one of them"),
        ("[tokens.a]\nsecret = 'short'\n", "16 to 512"),
        (f"[tokens.a]\nsecret = '{'s' * 513}'\n", "513 characters"),
        ("[tokens.a]\nsecret = '0123456789abcdef.0'\n", "token 'a': its secret holds other than letters"),
        ("[tokens.a]\nsecret = '0123456789abcdef 0'\n", "its secret holds other than letters"),
        ("[tokens.a]\nsecret = '0123456789abcdefé'\n", "its secret holds other than letters"),
        (f"[tokens.a]\n{SAID}scopes = []\n", "unknown field"),
        (f"[tokens.a]\n{SAID}roles = ['A B']\n", "role 'A B'"),
        (f"[tokens.a]\n{SAID}allow = ['send']\n", "ACTION:RESOURCE:NAME"),
        (f"[tokens.a]\n{SAID}allow = ['fly:topic:a']\n", "'fly' is not one of"),
        (f"[tokens.setup]\n{SAID}", "setup"),
        (f"[tokens.{'x' * 65}]\n{SAID}", "64 letters"),
        (f"[tokens.a]\n{SAID}[tokens.a]\n{SAID}", "a"),
        ("[tokens.a]\nsecret_file = 'missing'\n", "missing: No such file"),
    ],
)
def test_a_faulty_access_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        read_access_file(file_of(tmp_path, text))
    assert str(refused.value).startswith(f"access file {tmp_path}/access.toml")
    assert "0123456789abcdef" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o601])
def test_an_access_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadRequest, match="chmod o="):
        read_access_file(file_of(tmp_path, f"[tokens.a]\n{SAID}", mode))
    secret = tmp_path / "a.secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(mode)
    with pytest.raises(BadRequest, match=r"a\.secret: .*chmod o="):
        read_access_file(file_of(tmp_path, "[tokens.a]\nsecret_file = 'a.secret'\n"))


def test_the_mode_that_counts_is_that_of_what_is_read(tmp_path: Path) -> None:
    """Whoever may change the folder could else put a file of mode 0600 in its place meanwhile."""
    path, other = tmp_path / "access.toml", tmp_path / "other"
    os.mkfifo(path)
    path.chmod(0o644)
    other.touch(0o600)

    def write() -> None:
        with path.open("w") as pipe:  # waits until it is open for reading
            other.replace(path)
            pipe.write(f"[tokens.a]\n{SAID}")

    thread = threading.Thread(target=write)
    thread.start()
    with pytest.raises(BadRequest, match="chmod o="):
        read_access_file(path)
    thread.join()


def test_a_broker_with_a_faulty_access_file_does_not_start(tmp_path: Path) -> None:
    error = failing_start(security=True, access_file=str(tmp_path / "missing"))
    assert error == f"error: access file {tmp_path}/missing: No such file or directory\n"
    fine = str(file_of(tmp_path, f"[tokens.a]\n{SAID}"))
    assert "add --security" in failing_start(access_file=fine), "nobody would be asked who they are"


def test_declared_tokens_may_what_the_file_says_and_are_changed_there(tmp_path: Path) -> None:
    """A secret is mounted, and nobody is there to make anything; users are made later by who may."""
    for name in ("shop", "root"):
        (tmp_path / f"{name}.secret").write_text(f"the-secret-of-{name}\n")
        (tmp_path / f"{name}.secret").chmod(0o400)
    text = "[tokens.shop]\nsecret_file = 'shop.secret'\nallow = ['send:topic:orders.*', 'create:topic:orders.*']\n"
    path = file_of(tmp_path, text + "[tokens.root]\nsecret_file = 'root.secret'\nroles = ['admin']\n")
    settings: dict[str, Any] = {"store": f"file:{tmp_path}/data", "security": True, "access_file": str(path)}

    def connect(broker: BrokerProcess, name: str) -> Client:
        return towline.connect(f"towline://127.0.0.1:{broker.port}", token=name, secret=f"the-secret-of-{name}")

    with BrokerProcess(**settings) as broker:
        assert not (tmp_path / "data" / "setup-secret").exists(), "there is an administrator"
        with connect(broker, "shop") as shop, connect(broker, "root") as root:
            shop.send("orders.new", b"x")
            with pytest.raises(Refused, match="may not send topic stock"):
                shop.send("stock", b"x")
            assert [one.name for one in root.access.tokens()] == ["root", "shop"]
            assert {(one.id, one.subject) for one in root.access.rules().rules} == {(0, "shop")}
            for change in (root.access.revoke_token, root.access.rotate_token):
                with pytest.raises(Conflict, match=r"declared in .*access\.toml: change it there"):
                    change("shop")
            with pytest.raises(Conflict, match="taken"):
                root.access.create_user("shop", "correct horse")
            root.access.create_token("later")
        broker.stop()
        assert broker.wait() == 0
    assert b"the-secret" not in (kept := (tmp_path / "data" / "config" / "access.json").read_bytes())
    assert b"shop" not in kept
    file_of(tmp_path, "[tokens.root]\nsecret_file = 'root.secret'\nroles = ['admin']\n")
    with BrokerProcess(**settings) as broker, connect(broker, "root") as root:
        assert [one.name for one in root.access.tokens()] == ["later", "root"]
        with pytest.raises(Refused, match="not right"):
            connect(broker, "shop")
    file_of(tmp_path, f"[tokens.later]\n{SAID}")
    assert "has a user or token later already" in failing_start(**settings)


def test_the_last_administrator_of_the_store_may_go_while_one_is_declared(tmp_path: Path) -> None:
    with BrokerProcess(**declared(tmp_path, root="the-secret-of-root")) as broker:
        url = f"towline://127.0.0.1:{broker.port}"
        with towline.connect(url, token="root", secret="the-secret-of-root") as root:
            root.access.create_user("eve", "correct horse", roles=["admin"])
            root.access.delete_user("eve")


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_a_tokens_file_is_answered_with_what_to_write_instead(tmp_path: Path, way: str) -> None:
    """To pass over it would let in everyone."""
    (tmp_path / "towline.toml").write_text("tokens_file = 'tokens'\n")
    flags = {"flag": ["--tokens-file", "tokens"], "variable": [], "file": ["--config", str(tmp_path / "towline.toml")]}
    environment = os.environ | ({"TOWLINE_TOKENS_FILE": "tokens"} if way == "variable" else {})
    command = [sys.executable, "-c", "from towline.cli import main; main()", "serve", "--store", "memory:", *flags[way]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 2, done
    assert "tokens_file" in done.stderr
    assert "--security" in done.stderr
    assert "--access-file" in done.stderr


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0"])
def test_the_world_is_not_served_without_tokens(listen: str) -> None:
    error = failing_start(listen=listen)
    assert error.startswith("error: not listening on ")
    assert "allow_remote" in error


def test_the_world_is_served_when_asked_to() -> None:
    with BrokerProcess(listen="0.0.0.0:0", allow_remote=True) as broker:
        RawClient.hello(broker.port).socket.close()


def test_the_world_is_served_with_tokens(tmp_path: Path) -> None:
    with BrokerProcess(listen="0.0.0.0:0", **declared(tmp_path, a="0123456789abcdef")) as broker:
        RawClient.hello(broker.port, "a", "0123456789abcdef").socket.close()


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
        while len(got) < 51:
            got += client.pull(subscription)
        assert got == [*bodies, b"small"]


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
