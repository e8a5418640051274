"""Three brokers that know each other, as processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.client.conftest import connect
from tests.eventually import DEADLINE_S, eventually, eventually_done
from tests.inside.protocol import BrokerState
from tests.ports import free_ports

__all__ = ["connect", "eventually", "eventually_done"]

ROOT = Path(__file__).resolve().parents[3]


class Brokers:
    """Brokers that are given each other's addresses."""

    def __init__(self, folder: Path, count: int = 3, *flags: str, stores: list[str] | None = None) -> None:
        self.ports = free_ports(count)
        self.folder = folder
        self.flags = flags
        self.stores = stores or [f"file:{folder / str(number)}" for number in range(count)]
        self.processes: list[subprocess.Popen[str] | None] = [None] * count
        self.programs = [ROOT] * count
        """Where each one's are: those of another version are elsewhere."""
        self.stopped: set[int] = set()
        self.credentials: dict[str, Any] = {}

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number]}"

    @property
    def url(self) -> str:
        return "towline://" + ",".join(map(self.address, range(len(self.ports))))

    def start(self, *numbers: int) -> Brokers:
        chosen = numbers or tuple(range(len(self.ports)))
        join = ",".join(map(self.address, range(len(self.ports))))
        for number in chosen:
            command = [sys.executable, "-m", "towline", "serve", "--log-level", "warning", "--durability", "os"]
            command += ["--listen", self.address(number), "--store", self.stores[number], "--name", f"b{number}"]
            flags = [flag.replace("{n}", str(number)) for flag in self.flags]
            beat = [] if "--cluster-beat-s" in flags else ["--cluster-beat-s", "0.3"]
            command += ["--join", join, "--console", "off", *beat, *flags]
            programs = self.programs[number]
            environment = {**os.environ, "PYTHONPATH": str(programs)}
            with (self.folder / f"{number}.log").open("a") as log:
                self.processes[number] = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=programs, env=environment
                )
        for number in chosen:
            process = self.processes[number]
            assert process is not None
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), (self.folder / f"{number}.log").read_text()
        return self

    def kill(self, number: int) -> None:
        self._signal(number, signal.SIGKILL)
        self._ended(number)

    def terminate(self, number: int) -> None:
        self._signal(number, signal.SIGTERM)
        self._ended(number)

    def freeze(self, number: int) -> None:
        self.stopped.add(number)
        self._signal(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self.stopped.discard(number)
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: int) -> None:
        process = self.processes[number]
        assert process is not None
        os.kill(process.pid, what)

    def _ended(self, number: int) -> None:
        process, self.processes[number] = self.processes[number], None
        assert process is not None
        assert process.stdout is not None
        process.wait(DEADLINE_S)
        process.stdout.close()

    def alive(self, at: int) -> list[BrokerState]:
        with towline.connect(f"towline://{self.address(at)}", **self.credentials) as mq:
            return [one for one in mq.brokers() if one.state == "alive"]

    def wait_for(self, count: int | None = None) -> Brokers:
        """Until each that runs sees so many alive."""
        wanted = len(self.ports) if count is None else count
        running = [number for number, process in enumerate(self.processes) if process is not None]
        eventually(lambda: all(len(self.alive(number)) == wanted for number in running))
        return self

    def number_of(self, broker: str, states: list[BrokerState]) -> int:
        address = next(one.address for one in states if one.id == broker)
        return self.ports.index(int(address.rpartition(":")[2]))

    def close(self) -> None:
        for number, process in enumerate(self.processes):
            if process is not None:
                if number in self.stopped:
                    self.thaw(number)
                self.kill(number)

    def remove(self) -> None:
        """With their stores: a killed broker leaves a whole segment of its own, written or not."""
        self.close()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def _brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("cluster"))
    try:
        yield made.start()
    finally:
        made.remove()


@pytest.fixture
def brokers(_brokers: Brokers) -> Brokers:
    """Three of them, shared by the tests of a file: all are there when a test begins."""
    for number in list(_brokers.stopped):
        _brokers.thaw(number)
    dead = [number for number, process in enumerate(_brokers.processes) if process is None]
    return (_brokers.start(*dead) if dead else _brokers).wait_for()


_topics = iter(range(1_000_000))


@pytest.fixture
def topic() -> str:
    """A topic that no other test has used."""
    return f"topic-{next(_topics)}"


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[..., Brokers]]:
    """Brokers as a test needs them; started by the test."""
    made: list[Brokers] = []

    def make(count: int = 3, *flags: str, stores: list[str] | None = None) -> Brokers:
        folder = tmp_path / f"cluster-{len(made)}"
        folder.mkdir()
        made.append(Brokers(folder, count, *flags, stores=stores))
        return made[-1]

    yield make
    for one in made:
        one.close()
