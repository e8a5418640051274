"""Who guesses secrets at the REST door locks nobody else out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx

from tests.broker.access.secured import PASSWORD, secured
from tests.broker.process import BrokerProcess
from tests.inside.console import TRIES
from tests.rest.process import rest_door


def ask(door: str, secret: str, host: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer root.{secret}"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=host), headers=headers, timeout=60) as http:
        return http.get(f"{door}/me")


def test_who_guesses_has_to_wait_and_who_comes_from_elsewhere_or_is_in_has_not(tmp_path: Path) -> None:
    with secured(tmp_path, store="memory:") as broker, rest_door(broker.url) as door:
        guesses = [ask(door, f"guess{number}", "127.0.0.66") for number in range(TRIES + 1)]
        assert [answer.status_code for answer in guesses] == [401] * TRIES + [429]
        assert guesses[-1].json()["message"].startswith("too many wrong secrets from 127.0.0.66: wait ")
        assert "Retry-After" in guesses[-1].headers
        assert ask(door, PASSWORD, "127.0.0.66").status_code == 429
        assert ask(door, PASSWORD, "127.0.0.1").status_code == 200
        assert ask(door, PASSWORD, "127.0.0.66").status_code == 200, "it is in"


def test_who_guesses_many_at_once_locks_nobody_else_out(tmp_path: Path) -> None:
    """They count before the broker has answered: else all of them would go to it, from one address."""
    with secured(tmp_path, store="memory:") as broker, rest_door(broker.url) as door, ThreadPoolExecutor(120) as pool:
        guesses = [f"guess{number}" for number in range(120)]
        said = [one.status_code for one in pool.map(partial(ask, door, host="127.0.0.66"), guesses)]
        assert set(said) <= {401, 429, 503}, "a broker that is slow to answer cannot be reached"
        assert said.count(401) <= TRIES
        while (answer := ask(door, PASSWORD, "127.0.0.67")).status_code == 503:
            pass
        assert answer.status_code == 200, answer.text


def named(door: str, host: str, *, secret: str = "") -> int:
    """The status of a request to a door that listens on all addresses, by this name."""
    headers = {"Host": host} | ({"Authorization": f"Bearer root.{secret}"} if secret else {})
    return httpx.get(door.replace("0.0.0.0", "127.0.0.1") + "/topics", headers=headers, timeout=60).status_code


def test_without_security_a_door_for_other_machines_wants_to_be_named_as_it_is(tmp_path: Path) -> None:
    """A page from elsewhere can have its own name point there for a moment."""
    flags = ("--allow-remote", "--host-name", "rest.example")
    with BrokerProcess() as broker:
        url = f"towline://127.0.0.1:{broker.port}"
        with rest_door(url, *flags, listen="0.0.0.0:0") as door:
            assert [named(door, host) for host in ("10.1.2.3:80", "rest.example", "localhost")] == [200] * 3
            assert [named(door, "evil.example", secret=secret) for secret in ("", "any")] == [403, 403]
    with secured(tmp_path, store="memory:") as guarded, rest_door(guarded.url, *flags, listen="0.0.0.0:0") as door:
        assert named(door, "elsewhere.example", secret=PASSWORD) == 200
