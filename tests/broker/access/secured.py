"""A broker with security in a process of its own, and its administrator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import towline
from tests.broker.process import BrokerProcess
from tests.inside.client import Client

PASSWORD = "correct horse"
PATIENCE_S = 30.0


class Secured(NamedTuple):
    process: BrokerProcess
    url: str
    admin: Client

    def connect(self, token: str, secret: str, **options: Any) -> Client:
        return towline.connect(self.url, token=token, secret=secret, **{"timeout": PATIENCE_S} | options)

    def token(self, name: str, **options: Any) -> Client:
        """A client with a new token."""
        return self.connect(name, self.admin.access.create_token(name, **options).secret)


@contextmanager
def secured(folder: Path, **settings: Any) -> Iterator[Secured]:
    setup = folder / "setup"
    with BrokerProcess(security=True, setup_file=str(setup), **settings) as process:
        url = f"towline://127.0.0.1:{process.port}"
        with towline.connect(url, token="setup", secret=setup.read_text().strip(), timeout=PATIENCE_S) as first:
            first.access.create_user("root", PASSWORD, roles=["admin"])
        with towline.connect(url, token="root", secret=PASSWORD, timeout=PATIENCE_S) as admin:
            yield Secured(process, url, admin)
