"""Memory that is free between what is in use goes back to the system, as Debian's C library lets it."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

from tests.eventually import eventually
from tests.inside.load import BrokerProcess
from tests.ports import free_port

SCRIPT = """
import asyncio, os
from towline.broker.process.heap import give_back, keep_freed

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

keep_freed()
before = resident_mb()
pieces = [bytes(100_000) for _ in range(2_000)]
# One of fifty stays, as what lives long stays among frames that came and went.
pieces = pieces[::50]
print(resident_mb() - before)
asyncio.run(give_back())
print(resident_mb() - before)
"""


def test_free_memory_between_what_is_in_use_is_given_back() -> None:
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    kept_mb, left_mb = map(float, out.split())
    assert kept_mb > 100, "by itself it keeps nearly all: there is something to give back"
    assert left_mb < kept_mb / 2


def test_a_broker_gives_memory_back_by_itself() -> None:
    with BrokerProcess("memory:", metrics=f"127.0.0.1:{(port := free_port())}"):

        def metrics() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read(), "utf-8")

        eventually(lambda: 'towline_background_step_seconds{work="giving memory back"}' in metrics())
