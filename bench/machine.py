"""The machine's own limits, measured without any Towline: disk, loopback, and a raw echo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure, middle, spread
from bench.peers import MESSAGE
from bench.stage import Stage

__all__ = ["ECHO", "LOOPBACK", "WRITE", "WRITE_SYNC", "echo", "machine"]

WRITE = "disk write"
WRITE_SYNC = "disk write + fdatasync"
LOOPBACK = "loopback"
ECHO = "raw echo"

BLOCK = 128 << 10
"""About what a frame of 1,000 messages of 100 bytes takes."""


def machine(stage: Stage) -> Iterator[Figure]:
    """Raw sequential writes with the same sync pattern, raw sockets, raw round trips."""
    with stage.space() as folder:
        writes = [_write(folder, BLOCK, stage.seconds / 2, sync=False) for _ in range(stage.repeats)]
        yield _limit(stage, WRITE, writes, "MB/s", "128 KiB writes into preallocated files, os only")
        for kilobytes in (64, 128, 256):
            synced = [_write(folder, kilobytes << 10, stage.seconds / 4, sync=True) for _ in range(stage.repeats)]
            name = WRITE_SYNC if kilobytes << 10 == BLOCK else f"{WRITE_SYNC}, {kilobytes} KiB"
            yield _limit(stage, name, synced, "MB/s", f"{kilobytes} KiB writes, each followed by fdatasync")
    streams = [_loopback(stage.seconds / 2) for _ in range(stage.repeats)]
    yield _limit(stage, LOOPBACK, streams, "MB/s", "blocking sockets, 128 KiB blocks, two processes")
    trips = [echo(stage.seconds / 2) for _ in range(stage.repeats)]
    yield _limit(stage, ECHO, trips, "round trips/s", f"blocking client, uvloop server, {MESSAGE} bytes")


def _limit(stage: Stage, name: str, values: list[float], unit: str, note: str) -> Figure:
    stage.limits[name] = middle(values)
    return Figure(
        scenario="machine",
        name=name,
        value=middle(values),
        unit=unit,
        note=note + spread(values),
    )


def _write(folder: Path, block_bytes: int, seconds: float, *, sync: bool) -> float:
    """MB/s of sequential writes into preallocated files of 128 MiB, as the log store makes them."""
    file_bytes = 128 << 20
    block = os.urandom(block_bytes)
    written, spent_s, number = 0, 0.0, 0
    while spent_s < seconds:
        path = folder / f"raw-{number}"
        number += 1
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.posix_fallocate(descriptor, 0, file_bytes)
        begin = time.perf_counter()
        for _ in range(file_bytes // block_bytes):
            written += os.write(descriptor, block)
            if sync:
                os.fdatasync(descriptor)
                if spent_s + time.perf_counter() - begin >= seconds:
                    break
        spent_s += time.perf_counter() - begin
        os.close(descriptor)
    for path in folder.glob("raw-*"):
        path.unlink()
    return written / spent_s / 1e6


@contextmanager
def _peer(role: str) -> Iterator[socket.socket]:
    command = [sys.executable, "-m", "bench.peers", role]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection


def _loopback(seconds: float) -> float:
    block = os.urandom(BLOCK)
    sent = 0
    with _peer("sink") as connection:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            connection.sendall(block)
            sent += BLOCK
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return sent / (time.perf_counter() - begin) / 1e6


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
