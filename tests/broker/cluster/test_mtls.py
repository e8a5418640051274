"""Brokers that ask everyone for a certificate, each other as well, and know each other by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import towline
from tests.certificates import make_authority, sign_for
from tests.inside.client import Client
from tests.system.cluster.conftest import Brokers, eventually
from towline.errors import TowlineError

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and what it vouches for: brokers (one for both), and somebody else."""
    folder = tmp_path_factory.mktemp("mtls")
    make_authority(folder)
    sign_for(folder, "broker", "DNS:broker.example,IP:127.0.0.1")
    sign_for(folder, "stranger", "DNS:stranger.example")
    return folder


class Guarded(Brokers):
    """Brokers with security that let nobody connect without a certificate."""

    def __init__(self, folder: Path, certificates: Path) -> None:
        flags = [
            "--security", "--setup-file", str(folder / "setup-{n}"), "--tls-cert", str(certificates / "broker.pem"),
            "--tls-key", str(certificates / "broker.key"), "--tls-client-ca", str(certificates / "ca.pem"),
            "--cluster-ca-file", str(certificates / "ca.pem"),
        ]  # fmt: skip
        super().__init__(folder, 2, *flags)
        self._certificates = certificates

    def client(self, number: int, token: str, secret: str) -> Client:
        return towline.connect(
            f"towlines://{self.address(number)}",
            token=token,
            secret=secret,
            ca_file=str(self._certificates / "ca.pem"),
            cert_file=str(self._certificates / "stranger.pem"),
            key_file=str(self._certificates / "stranger.key"),
        )

    def seen(self, number: int) -> list[str]:
        with self.client(number, "root", PASSWORD) as mq:
            return sorted(one.name for one in mq.brokers() if one.state == "alive")


@pytest.fixture(scope="module")
def guarded(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    brokers = Guarded(tmp_path_factory.mktemp("guarded"), certificates)
    try:
        brokers.start()
        for number in range(2):
            secret = (brokers.folder / f"setup-{number}").read_text().strip()
            with brokers.client(number, "setup", secret) as setup:
                setup.access.create_user("root", PASSWORD, roles=["admin"])
        yield brokers
    finally:
        brokers.remove()


def test_brokers_meet_once_their_certificate_is_known_to_each_other(guarded: Guarded) -> None:
    assert guarded.seen(0) == ["b0"], "a certificate that stands for nobody opens nothing"
    for number in range(2):
        with guarded.client(number, "root", PASSWORD) as root:
            root.access.create_user("cluster", roles=["admin"], identities=["dns:broker.example"])
    eventually(lambda: guarded.seen(0) == guarded.seen(1) == ["b0", "b1"])
    guarded.kill(1)
    eventually(lambda: guarded.seen(0) == ["b0"])
    guarded.start(1)
    eventually(lambda: guarded.seen(0) == guarded.seen(1) == ["b0", "b1"])


def test_without_a_certificate_nobody_gets_as_far_as_a_password(guarded: Guarded, certificates: Path) -> None:
    with pytest.raises(TowlineError):
        towline.connect(
            f"towlines://{guarded.address(0)}",
            token="root",
            secret=PASSWORD,
            ca_file=str(certificates / "ca.pem"),
            timeout=5,
        ).brokers()
