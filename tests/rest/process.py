"""The REST door in a process of its own, and HTTP to talk to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def rest_door(broker_url: str, *flags: str, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Its address, with /api."""
    with rest_process(broker_url, *flags, listen=listen) as (_, address):
        yield address


@contextmanager
def rest_process(
    broker_url: str, *flags: str, listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """It, and its address."""
    command = [sys.executable, "-m", "towline", "rest", "--listen", listen, "--url", broker_url, *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line.startswith("listening on http://"), line
            yield process, line.split()[-1]
        finally:
            process.terminate()
            assert process.wait(60) == 0


class Http(httpx.Client):
    """Answers must be what they are expected to be; a token is said with every request."""

    def __init__(self, url: str, token: str = "", secret: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}.{secret}"} if token else {}
        super().__init__(base_url=url, headers=headers, timeout=120)

    def __call__(self, method: str, path: str, json: Any = None, *, status: int = 200, **params: Any) -> Any:
        answer = self.request(method, path, json=json, params=params or None)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json()
