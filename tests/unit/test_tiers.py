"""Units are quick because they can be: they start no process, and meet nobody on the network."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest


async def listen() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


def connect() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: subprocess.run([sys.executable, "--version"], check=True),
        lambda: asyncio.run(asyncio.create_subprocess_exec(sys.executable)),
        lambda: os.system("true"),
        lambda: ProcessPoolExecutor(1).submit(print),
        connect,
        lambda: asyncio.run(listen()),
        lambda: asyncio.run(asyncio.open_connection("127.0.0.1", 9)),
    ],
)
def test_a_unit_that_leaves_its_process_fails(attempt: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts no process, and neither listens nor connects"):
        attempt()


def test_a_test_has_the_marker_of_its_tier(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit") is not None
    assert request.node.get_closest_marker("service") is None
