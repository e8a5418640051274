"""The console under TLS: beside a broker that asks for certificates, and in a cluster."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import towline
from tests.certificates import make_authority, sign_for
from tests.console.test_served_console import serve, wait_for
from tests.ports import free_ports

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca.pem), and a certificate that it vouches for (broker.pem, broker.key)."""
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    sign_for(folder, "broker", "DNS:broker.example,IP:127.0.0.1")
    return folder


class Https:
    def __init__(self, url: str, certificates: Path) -> None:
        self._parts = urlsplit(url)
        self._context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))

    def __call__(
        self, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPSConnection(
            self._parts.hostname or "", self._parts.port, timeout=60, context=self._context
        )
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        body = None if form is None else urlencode(form)
        connection.request("GET" if form is None else "POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer, text


def test_with_certificates_for_clients_people_still_say_who_they_are(certificates: Path, tmp_path: Path) -> None:
    """The console shows the broker's certificate, which here is even a user's: that must let nobody in."""
    cert, key, ca = (str(certificates / name) for name in ("broker.pem", "broker.key", "ca.pem"))
    setup = tmp_path / "setup"
    flags = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca, "--security", "--setup-file", str(setup))
    with serve(tmp_path, "--console", "127.0.0.1:0", *flags) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("listening on ").strip()
        https = Https(wait_for(process, r"console at (https://\S+)"), certificates)
        shown: dict[str, Any] = {"ca_file": ca, "cert_file": cert, "key_file": key}
        with towline.connect(f"towlines://{address}", token="setup", secret=setup.read_text().strip(), **shown) as mq:
            mq.access.create_user("root", PASSWORD, roles=["admin"], identities=["cn:broker"])
        with towline.connect(f"towlines://{address}", **shown) as mq:
            assert mq.access.who_am_i().user == "root"
        assert https("/topics")[0].status == 303
        assert https("/api/me")[0].status == 401
        assert https("/api/topics", Authorization="Basic " + b64encode(b"root:").decode())[0].status == 401
        right = "Basic " + b64encode(f"root:{PASSWORD}".encode()).decode()
        assert https("/api/me", Authorization=right)[0].status == 200
        asked, _ = https("/login")
        csrf = asked.headers["Set-Cookie"].partition(";")[0]
        form = {"name": "root", "secret": PASSWORD, "csrf": csrf.partition("=")[2]}
        let_in, _ = https("/login", form, Cookie=csrf)
        assert let_in.status == 303
        for cookie in (asked.headers["Set-Cookie"], let_in.headers["Set-Cookie"]):
            assert {"Secure", "HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
        page, text = https("/topics", Cookie=let_in.headers["Set-Cookie"].partition(";")[0])
        assert page.status == 200
        assert b"Named flows of messages" in text
        assert page.headers["Strict-Transport-Security"].startswith("max-age=")
        process.terminate()
        process.communicate(timeout=60)


def test_in_a_cluster_it_knows_the_brokers_by_their_authority(certificates: Path, tmp_path: Path) -> None:
    cert, key, ca = (str(certificates / name) for name in ("broker.pem", "broker.key", "ca.pem"))
    ports = free_ports(2)
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    flags = ("--tls-cert", cert, "--tls-key", key, "--join", join, "--cluster-ca-file", ca, "--cluster-beat-s", "0.3")
    with (
        serve(tmp_path, *flags, "--listen", f"127.0.0.1:{ports[0]}", "--console", "127.0.0.1:0") as first,
        serve(tmp_path, *flags, "--listen", f"127.0.0.1:{ports[1]}", "--console", "off") as second,
    ):
        https = Https(wait_for(first, r"console at (https://\S+)"), certificates)
        deadline = time.monotonic() + 60
        found: list[str] = []
        while sorted(found) != ["alive", "alive"]:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
            answer, text = https("/api/brokers")
            assert answer.status == 200, text
            found = [one["state"] for one in json.loads(text)["brokers"]]
        assert b"This did not work" not in https("/topics")[1]
        for process in (first, second):
            process.terminate()
            process.communicate(timeout=60)
