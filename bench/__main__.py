"""`python -m bench [quick|full|NAME…]`."""

from __future__ import annotations

import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from bench import (
    consuming,
    delaying,
    facing,
    flatness,
    fragments,
    jobs,
    latency,
    machine,
    ordering,
    rival,
    sending,
    spark,
    sql,
)
from bench.figures import Figure, print_figures
from bench.soak.scenario import soak
from bench.stage import Stage
from tests.store.sql.server import use_mysqld

Scenario = Callable[[Stage], Iterator[Figure]]

SCENARIOS: dict[str, Scenario] = {
    "machine": machine.machine,
    "produce": sending.produce,
    "consume": consuming.consume,
    "pubsub": consuming.pubsub,
    "producer": sending.producer,
    "single": sending.single,
    "latency": latency.latency,
    "large": sending.large,
    "backlog": flatness.backlog,
    "topics": flatness.topics,
    "fragments": fragments.fragments,
    "ordered": ordering.ordered,
    "delay-in": delaying.delay_in,
    "delay-out": delaying.delay_out,
    "delay-minute": delaying.delay_minute,
    "delay-memory": delaying.delay_memory,
    "spark": spark.spark,
    "jobs": jobs.jobs,
    "console": facing.console,
    "sql": sql.sql,
    "sql-backlog": sql.sql_backlog,
    "rival": rival.rival,
    "soak": soak,
}
BESIDE = ("rival", "soak")
"""Only when they are asked for."""
QUICK = {"seconds": 1.0, "repeats": 1, "backlog": 1_000_000}
BUSY = 0.5
FULL = {"seconds": 2.0, "repeats": 3, "backlog": 10_000_000}

app = App(name="python -m bench", help_format="markdown", result_action="return_value")


@app.default
def bench(
    *what: Annotated[
        str,
        Parameter(
            help="`quick` (about a minute), `full` (several minutes), or names of scenarios: " + ", ".join(SCENARIOS)
        ),
    ],
    seconds: Annotated[float | None, Parameter(help="How long one measurement at full speed takes.")] = None,
    repeats: Annotated[int | None, Parameter(help="How often it is made; the median counts.")] = None,
    backlog: Annotated[int | None, Parameter(help="How many messages wait in the scenario `backlog`.")] = None,
    minutes: Annotated[float, Parameter(help="How long the scenario `soak` takes.")] = 10.0,
    groups: Annotated[int, Parameter(help="How many groups there are in it.")] = 4_000,
    topics: Annotated[int, Parameter(help="How many topics are consumed by prefix in it.")] = 10_000,
    trace: Annotated[
        Path | None,
        Parameter(help="Write every minute to this file what the broker's memory is made of in it. It is slower then."),
    ] = None,
    folder: Annotated[
        Path | None,
        Parameter(name="--dir", help="Where brokers keep their data meanwhile. [default: a temporary folder]"),
    ] = None,
    mysqld: Annotated[str, Parameter(help="The program of a MySQL server, to use instead of MariaDB.")] = "",
    output: Annotated[Literal["text", "json"], Parameter(name=("--output", "-o"))] = "text",
    save: Annotated[Path | None, Parameter(help="Also write the results to this file, as JSON.")] = None,
) -> int:
    """Measure Towline, and the machine it runs on.

    Prints one table; `ratio` compares a figure with its target, and 1 or more means that it is met.
    """
    # As for an interrupt: brokers and workers are stopped, and folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [name for name in what if name not in ("quick", "full")]
    if unknown := [name for name in names if name not in SCENARIOS]:
        print(f"error: no such scenario: {', '.join(unknown)}", file=sys.stderr)
        return 2
    use_mysqld(mysqld)
    sizes: dict[str, Any] = dict(QUICK if "quick" in what else FULL)
    given = {"seconds": seconds, "repeats": repeats, "backlog": backlog}
    sizes.update({name: value for name, value in given.items() if value is not None})
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    at = folder or Path(tempfile.gettempdir())
    stage = Stage(at, **sizes, minutes=minutes, groups=groups, topics=topics, trace=trace)
    load = os.getloadavg()[0]
    if load > BUSY:
        stage.say(f"this machine is busy (load {load:.1f}): the figures will be too low")
    if names != ["soak"]:
        stage.break_in()
    figures, failed = _play(stage, names or [name for name in SCENARIOS if name not in BESIDE])
    facts = _machine(load) | {"sizes": sizes, "figures": [figure.as_json() for figure in figures], "failed": failed}
    document = msgspec.json.format(msgspec.json.encode(facts), indent=2)
    if save is not None:
        save.write_bytes(document + b"\n")
    if output == "json":
        print(document.decode())
    else:
        print_figures(figures)
        print(f"{facts['cores']} cores, {facts['cpu']}, Linux {facts['kernel']}, Python {facts['python']}")
    return 1 if failed else 0


def _play(stage: Stage, names: list[str]) -> tuple[list[Figure], dict[str, str]]:
    figures: list[Figure] = []
    failed = {}
    for name in names:
        stage.say(f"{name}: {(SCENARIOS[name].__doc__ or '').strip()}")
        begin = time.perf_counter()
        try:
            figures.extend(SCENARIOS[name](stage))
        except Exception as error:  # whatever it was: the others are measured
            failed[name] = f"{type(error).__name__}: {error}"
            stage.say(f"  failed: {failed[name][:2_000]}")
        stage.say(f"  {time.perf_counter() - begin:.1f} s")
    return figures, failed


def _machine(load: float) -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": load,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    sys.exit(app())
