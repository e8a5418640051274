"""The machine's own limits, measured without any Towline: disk, loopback, both together, and a raw echo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.figures import Figure, middle, spread
from bench.peers import BLOCK, MESSAGE, STAMP
from bench.stage import Stage
from towline.load.job import Percentiles, percentiles

__all__ = [
    "ECHO",
    "RECEIVE",
    "RELAY",
    "REPLAY",
    "SYNC",
    "echo",
    "machine",
    "receive_limit",
    "relay",
    "replay_limit",
    "sync_limit",
]

WRITE = "write"
SYNC = "write + fdatasync"
LOOPBACK = "loopback"
RECEIVE = "receive + write"
REPLAY = "read + send"
ECHO = "echo"
RELAY = "relay"

FILE = 128 << 20
"""Raw files are made, written and removed before the system thinks of writing them back: what a virtual disk allows is
soon used up, and would then be missing in the figures that follow."""


def machine(stage: Stage) -> Iterator[Figure]:
    """Raw sequential writes with the same sync pattern, raw sockets, raw round trips."""
    seconds = stage.seconds / 2
    yield _limit(stage, WRITE, partial(write_limit, stage, seconds), "into preallocated files, os only")
    for kilobytes in (64, 128, 256):
        name = SYNC if kilobytes << 10 == BLOCK else f"{SYNC}, {kilobytes} KiB"
        yield _limit(stage, name, partial(sync_limit, stage, seconds / 2, kilobytes << 10), "each write synced")
    yield _limit(stage, LOOPBACK, partial(_send, "sink", seconds=seconds), "blocking sockets, two processes")
    yield _limit(stage, RECEIVE, partial(receive_limit, stage, seconds), "what comes by loopback goes to a file")
    yield _limit(stage, REPLAY, partial(replay_limit, stage, seconds), "a file from the page cache goes by loopback")
    note = f"blocking client, uvloop server, {MESSAGE} bytes"
    yield _limit(stage, ECHO, partial(echo, seconds), note, "round trips/s")


def _limit(stage: Stage, name: str, measure: Callable[[], float], note: str, unit: str = "MB/s") -> Figure:
    values = [measure() for _ in range(stage.repeats)]
    return Figure(scenario="machine", name=name, value=middle(values), unit=unit, note=note + spread(values))


@contextmanager
def _file(stage: Stage) -> Iterator[Path]:
    with stage.space() as folder:
        path = folder / "raw"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, FILE)
        yield path


def write_limit(stage: Stage, seconds: float, block_bytes: int = BLOCK, *, sync: bool = False) -> float:
    """MB/s of sequential writes into preallocated files, as the log store makes them."""
    block = os.urandom(block_bytes)
    written, spent_s = 0, 0.0
    while spent_s < seconds:
        with _file(stage) as path:
            descriptor = os.open(path, os.O_WRONLY)
            begin = time.perf_counter()
            for _ in range(FILE // block_bytes):
                written += os.write(descriptor, block)
                if sync:
                    os.fdatasync(descriptor)
                    if spent_s + time.perf_counter() - begin >= seconds:
                        break
            spent_s += time.perf_counter() - begin
            os.close(descriptor)
    return written / spent_s / 1e6


def sync_limit(stage: Stage, seconds: float, block_bytes: int = BLOCK) -> float:
    """The same, with each write on the disk before the next."""
    return write_limit(stage, seconds, block_bytes, sync=True)


def _command(*role: object) -> list[str]:
    return [sys.executable, "-m", "bench.peers", *map(str, role)]


@contextmanager
def _peer(*role: str | Path) -> Iterator[socket.socket]:
    with subprocess.Popen(_command(*role), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection


def _send(*role: str | Path, seconds: float, most: int = sys.maxsize) -> float:
    block = os.urandom(BLOCK)
    sent = 0
    with _peer(*role) as connection:
        begin = time.perf_counter()
        while sent < most and time.perf_counter() - begin < seconds:
            connection.sendall(block)
            sent += BLOCK
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return sent / (time.perf_counter() - begin) / 1e6


def receive_limit(stage: Stage, seconds: float) -> float:
    """MB/s of a process that writes what it receives: what a broker does, without all that makes it one. One file after
    the other, for one alone is written before the figure has settled."""
    rates: list[float] = []
    while sum(FILE / 1e6 / rate for rate in rates) < seconds:
        with _file(stage) as path:
            rates.append(_send("store", path, seconds=seconds, most=FILE))
    return len(rates) / sum(1 / rate for rate in rates)


def replay_limit(stage: Stage, seconds: float) -> float:
    """MB/s of a process that sends what it reads from a file."""
    block = bytearray(BLOCK)
    with _file(stage) as path:
        path.write_bytes(os.urandom(FILE // 4))
        received = 0
        with _peer("replay", path) as connection:
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds:
                received += connection.recv_into(block)
            return received / (time.perf_counter() - begin) / 1e6


def echo(seconds: float) -> float:
    """Round trips a second of a blocking client against an echo server in another process."""
    message = os.urandom(MESSAGE)
    trips = 0
    with _peer("echo") as connection:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            connection.sendall(message)
            missing = MESSAGE
            while missing:
                got = connection.recv(missing)
                if not got:
                    raise ConnectionError("the echo server went away")
                missing -= len(got)
            trips += 1
        return trips / (time.perf_counter() - begin)


def relay(seconds: float) -> Percentiles:
    """How long messages take from one process by way of a second to a third, at a thousand a second: what a broker
    cannot be quicker than."""
    count, data = int(seconds * 1_000), b""
    times_ns: list[int] = []
    with _peer("relay") as connection, subprocess.Popen(_command("pace", connection.getpeername()[1], count)):
        while len(times_ns) < count and (more := connection.recv(BLOCK)):
            now_ns, data = time.perf_counter_ns(), data + more
            whole = len(data) // MESSAGE * MESSAGE
            sent = (int.from_bytes(data[at : at + STAMP], "little") for at in range(0, whole, MESSAGE))
            times_ns += [now_ns - at_ns for at_ns in sent]
            data = data[whole:]
    found = percentiles(times_ns)
    assert found is not None, "a relay passes on what it gets"
    return found
