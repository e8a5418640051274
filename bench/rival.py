"""Redis Streams beside us, in the same minutes: what a slow hour of the machine does to both.

Not among what `full` measures: it needs `redis-server` (a Debian package) and the Python package `redis` in this
environment. Redis keeps an append-only file and syncs it every second; its client sends with XADD, reads with
XREADGROUP and acknowledges with XACK.

`python -m bench.rival pace|single PORT COUNT` are its senders.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.figures import Figure, middle, shown, spread
from bench.latency import ROUNDS, TARGET_P50, TARGET_P99, paced
from bench.peers import PACE_NS, STAMP
from bench.stage import Stage
from towline.load.job import Job, Percentiles, percentiles

__all__ = ["main", "rival"]

STREAM, GROUP = "bench", "group"
BODY_BYTES = 100
UP_S = 10.0
REDIS_P50 = 0.25
REDIS_P99 = 0.8
"""Milliseconds that Redis took where our own targets were set: on a slower machine, or in a slower hour, both take
longer."""


def rival(stage: Stage) -> Iterator[Figure]:
    """Latency at 1,000 messages a second and single confirmed sends, by turns with Redis Streams."""
    if shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None:
        stage.say("  needs redis-server (apt install redis-server) and its client (pip install redis): left out")
        return
    seconds = max(2.0, stage.seconds * 2)
    ours: list[Percentiles] = []
    theirs: list[Percentiles] = []
    sends: list[tuple[float, float]] = []
    for _ in range(stage.repeats * ROUNDS):
        found = paced(stage, seconds)
        with _redis(stage) as port:
            theirs.append(_handle(port, int(seconds * 1_000)))
        assert found is not None, "messages came through"
        ours.append(found.latency)
        sends.append((_single(stage), _single_redis(stage)))
    for name, attribute, target, usual in (
        ("p50", "p50", TARGET_P50, REDIS_P50),
        ("p99", "p99", TARGET_P99, REDIS_P99),
    ):
        own, other = ([getattr(each, attribute) for each in side] for side in (ours, theirs))
        beside = f"Redis by turns with it {shown(middle(other))} ms ({shown(min(other))} to {shown(max(other))})"
        yield Figure(
            scenario="rival",
            name=f"send to handler, {name}",
            value=middle(own),
            unit="ms",
            target=target,
            less_is_better=True,
            note=beside + spread(own),
        )
        yield Figure(
            scenario="rival",
            name=f"{name} ÷ that of Redis",
            value=middle(own) / middle(other),
            unit="×",
            target=target / usual,
            less_is_better=True,
            note=f"target: {target:g} ms where Redis takes {usual:g} ms",
        )
    own_rates, other_rates = ([pair[side] for pair in sends] for side in (0, 1))
    yield Figure(
        scenario="rival",
        name="confirmed sends one at a time, os",
        value=middle(own_rates),
        unit="msg/s",
        target=5_000,
        note=f"Redis by turns with it {shown(middle(other_rates))} msg/s{spread(own_rates)}",
    )


def _single(stage: Stage) -> float:
    with stage.broker(durability="os") as broker:
        job = Job(role="single", topics=(STREAM,), seconds=stage.seconds / 2, durability="os")
        return stage.run(broker, job)[0].rate


def _single_redis(stage: Stage) -> float:
    with _redis(stage) as port:
        command = [sys.executable, "-m", "bench.rival", "single", str(port), str(int(stage.seconds * 2_000))]
        rate: float = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        return rate


@contextmanager
def _redis(stage: Stage) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with stage.space() as folder:
        options = {"port": port, "dir": folder, "appendonly": "yes", "appendfsync": "everysec", "save": ""}
        command = ["redis-server", *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                _await(port)
                yield port
            finally:
                process.terminate()


def _await(port: int) -> None:
    deadline = time.monotonic() + UP_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _client(port: int) -> Any:
    return importlib.import_module("redis").Redis(port=port)


def _handle(port: int, count: int) -> Percentiles:
    """Read what a paced sender sends, one message after the other, as a handler would."""
    client = _client(port)
    client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    times_ns: list[int] = []
    with subprocess.Popen([sys.executable, "-m", "bench.rival", "pace", str(port), str(count)]) as sender:
        while len(times_ns) < count:
            if sender.poll():
                raise RuntimeError(f"the sender ended with {sender.returncode}")
            for _, messages in client.xreadgroup(GROUP, "bench", {STREAM: ">"}, count=100, block=1_000):
                for number, fields in messages:
                    times_ns.append(time.perf_counter_ns() - int.from_bytes(fields[b"body"][:STAMP], "little"))
                    client.xack(STREAM, GROUP, number)
    found = percentiles(times_ns)
    assert found is not None, "Redis passes on what it gets"
    return found


def _pace(port: int, count: int) -> None:
    client, padding = _client(port), bytes(BODY_BYTES - STAMP)
    client.ping()
    begin_ns = time.perf_counter_ns()
    for number in range(count):
        left_ns = begin_ns + number * PACE_NS - time.perf_counter_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        client.xadd(STREAM, {"body": time.perf_counter_ns().to_bytes(STAMP, "little") + padding})


def _send_singly(port: int, count: int) -> None:
    client, body = _client(port), bytes(BODY_BYTES)
    client.ping()
    begin = time.perf_counter()
    for _ in range(count):
        client.xadd(STREAM, {"body": body})
    print(json.dumps(count / (time.perf_counter() - begin)))


def main() -> None:
    match sys.argv[1:]:
        case ["pace", port, count]:
            _pace(int(port), int(count))
        case ["single", port, count]:
            _send_singly(int(port), int(count))
        case other:
            sys.exit(f"pace or single, a port and a count, not {other}")


if __name__ == "__main__":
    main()
