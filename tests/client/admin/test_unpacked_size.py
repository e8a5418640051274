"""Dead letters that are small where they are stored and large where they are looked at: in their bodies or beside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from tempfile import TemporaryFile

import pytest

import towline
from tests.broker.raw_client import RawClient
from tests.client.conftest import ROOT, Served
from tests.eventually import eventually
from tests.inside.client import FOUND_BYTES
from tests.inside.console import STEP_BYTES, LetterFilter, LetterPages, Reasons
from tests.inside.frame import encode
from tests.inside.protocol import FrameHead, Send, Sent
from towline.errors import TooLarge

EACH = 12 << 20
COUNT = 16
ROOM_BYTES = 7 * EACH
PROGRAM_BYTES = 64 << 20
SCRIPT = """
import atexit, sys
atexit.register(lambda: sys.stderr.write(open("/proc/self/status").read()))
from towline.cli import main
main()
"""
LARGE = "x" * EACH
FRAMES = {
    "bodies": encode([LARGE.encode()], compress=True),
    "keys": encode([b""], keys=[LARGE], compress=True),
    "headers": encode([b""], headers=[{"h": LARGE}], compress=True),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = Served("--store", f"file:{tmp_path_factory.mktemp('dead')}", "--auto-create-topics")
    found = f"towline://{served.address}"
    with RawClient.hello(served.port) as raw, towline.connect(found, timeout=60) as mq:
        for topic, frame in FRAMES.items():
            for _ in range(COUNT):
                raw.call(Send([FrameHead(topic, 1, len(frame))]), Sent, frame)
            with mq.consumer(topic, group="g", max_messages=1) as consumer:
                for number in range(COUNT):
                    consumer.pull(wait=60)[0].dead(f"no {number}")
                    consumer.flush()
            eventually(lambda topic=topic: mq.group(topic, "g").dead == COUNT)  # type: ignore[misc]
    yield found
    served.stop()


@pytest.mark.parametrize("topic", FRAMES)
def test_dead_letters_that_are_found_fit_into_memory(url: str, topic: str) -> None:
    with towline.connect(url, timeout=60) as mq:
        with pytest.raises(TooLarge, match=f"more than {FOUND_BYTES:,} bytes of dead letters of group g"):
            mq.find_dead(topic, "g")
        assert [one.reason for one in mq.find_dead(topic, "g", limit=2)] == ["no 0", "no 1"]
        assert [one.number for one in mq.find_dead(topic, "g", reason="no 11")] == [11]


@pytest.mark.parametrize("topic", FRAMES)
@pytest.mark.parametrize("command", ["ls", "count", "export"])
def test_commands_go_through_dead_letters_a_few_at_a_time(url: str, topic: str, command: str) -> None:
    program = [sys.executable, "-c", SCRIPT, "dead", command, topic, "g", "--url", url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with TemporaryFile() as said:
        done = subprocess.run(program, stdout=said, stderr=subprocess.PIPE, cwd=ROOT, env=environment, check=True)
        said.seek(0)
        assert sum(1 for _ in said) == (COUNT if command == "export" else COUNT + 1)
    peak = re.search(rb"VmHWM:\s+(\d+) kB", done.stderr)
    assert peak, done.stderr
    assert int(peak[1]) << 10 <= ROOM_BYTES + PROGRAM_BYTES


@pytest.mark.parametrize("topic", FRAMES)
async def test_the_console_looks_through_dead_letters_a_few_at_a_time(url: str, topic: str) -> None:
    assert STEP_BYTES < COUNT * EACH
    async with towline.aio.connect(url, timeout=60) as mq:
        tracemalloc.start()
        try:
            sought, reasons = LetterFilter(topic, "g", "no 1", ""), Reasons(topic, "g")
            for one in (sought, reasons):
                while not one.over:
                    await one.go_on(mq, 60)
            shown = await LetterPages(mq, topic, "g").page(0, 100)
            assert tracemalloc.get_traced_memory()[1] <= ROOM_BYTES
        finally:
            tracemalloc.stop()
        assert [one.reason for one in sought.found] == [f"no {number}" for number in (15, 14, 13, 12, 11, 10, 1)]
        assert [one.number for one in shown] == [*reversed(range(COUNT))]
        assert sum(reasons.counts.values()) == COUNT
