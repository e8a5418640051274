"""The command line as users meet it: real processes, against a real broker."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import towline
from tests.inside.load import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


class Result(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects it printed, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (only,) = self.lines
        return only


class Cli:
    """`towline`, told by its environment where the broker is."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
        environment |= {"TOWLINE_URL": self.url, "TOWLINE_CONSOLE": "off", "PYTHONPATH": str(ROOT)}
        environment |= options.pop("env", {})
        return subprocess.Popen(
            [sys.executable, "-m", "towline", *map(str, arguments)],
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=environment,
            **options,
        )

    def __call__(self, *arguments: str | Path, input: bytes = b"", code: int = 0, **options: Any) -> Result:  # noqa: A002
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(input, timeout=PATIENCE_S)
        result = Result(process.returncode, out, err.decode())
        assert result.code == code, result
        return result


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> Result:
    """Send a signal to a running command, and gather what it leaves."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return Result(process.returncode, out, err.decode())


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    store = tmp_path_factory.mktemp("cli") / "data"
    with BrokerProcess(f"file:{store}", durability="os", log_level="warning") as process:
        yield process


@pytest.fixture
def cli(broker: BrokerProcess, tmp_path: Path) -> Cli:
    return Cli(broker.url, tmp_path)


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[towline.Client]:
    with towline.connect(broker.url) as client:
        yield client


@pytest.fixture
def topic(mq: towline.Client) -> Iterator[str]:
    """A topic of its own for every test."""
    name = f"t-{secrets.token_hex(6)}"
    mq.create_topic(name)
    yield name
    if any(state.config.name == name for state in mq.topics()):
        mq.delete_topic(name)
