"""Who guesses passwords learns no names, and locks nobody else out."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.broker.access.secured import PASSWORD, Secured, secured
from tests.broker.raw_client import RawClient
from tests.inside.broker import (
    GATEWAY_FACTOR,
    NOBODYS_HASH,
    TABLE,
    TRIES,
    TRIES_OF_ORIGIN,
    Access,
    AccountStore,
    Declared,
    FairExecutor,
    Guard,
    LoginAttempts,
    Passwords,
    Principal,
    Remote,
    Secret,
    Token,
    User,
    hash_secret,
    login_attempts,
    passwords,
    put_user,
)
from tests.inside.console import sessions
from tests.inside.ground import SYSTEM, ManualClock
from tests.inside.protocol import PREFACE, Failed, Hello, PutUser
from tests.inside.store import MemoryStore
from towline.errors import BadRequest, Conflict, NotLetIn, Refused
from towline.model import origin_of

WRONG = "this broker asks for a token and its secret, and these are not right"
HERE, ATTACKER = "127.0.0.1", "127.0.0.66"


def log_in(port: int, logins: Sequence[tuple[str, str]], *, host: str = HERE, caller: str = "") -> list[str]:
    """Log in so often at once from an address: what the broker said, or nothing if it let us in."""
    clients = []
    for name, secret in logins:
        client = RawClient(socket.create_connection((HERE, port), source_address=(host, 0)))
        client.write(PREFACE)
        client.post(Hello(1, 2, name, secret, caller=caller))
        clients.append(client)
    said = []
    for client in clients:
        with client:
            answer = client.read()
            assert answer is not None, "closed without a word"
            said.append(answer[1].message if isinstance(answer[1], Failed) else "")
    return said


# Names


async def test_whatever_is_wrong_takes_the_same_work_and_is_said_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[str] = []

    def verify(one: str, password: str) -> bool:
        hashed.append(one)
        return False

    from_file = Declared("file", {"from-file": Token("from-file", secrets=[Secret("1", hash_secret("s"), 0)])})
    access = Access(book=AccountStore(MemoryStore(), SYSTEM, from_file))
    assert access.book is not None
    real = await access.passwords.hash(PASSWORD, "here")
    assert real.split("$")[:4] == NOBODYS_HASH.split("$")[:4], "the same kind, at the same cost"
    assert len(real) == len(NOBODYS_HASH)
    access.book.users.update(
        alice=User("alice", password=real),
        gone=User("gone", password=real, disabled=True),
        certified=User("certified"),
    )
    access.book.tokens["shop"] = Token("shop")
    monkeypatch.setattr(passwords, "_verify", verify)
    for name in ("alice", "gone", "certified", "shop", "setup", "from-file", "nobody"):
        hashed.clear()
        assert access.admit_at_once(name, "wrong") is None, name
        with pytest.raises(NotLetIn, match=WRONG):
            await access.admit_user(name, "wrong", "here")
        assert hashed == [real if name in ("alice", "gone") else NOBODYS_HASH], name


async def test_a_user_that_is_disabled_while_its_password_is_looked_at_is_not_let_in() -> None:
    access = Access(book=AccountStore(MemoryStore(), SYSTEM))
    assert access.book is not None
    access.book.users["alice"] = User("alice", password=await access.passwords.hash(PASSWORD, "here"))
    coming = asyncio.create_task(access.admit_user("alice", PASSWORD, "here"))
    await asyncio.sleep(0)
    access.book.users["alice"] = User("alice", password=access.book.users["alice"].password, disabled=True)
    with pytest.raises(NotLetIn, match=WRONG):
        await coming


# Limits


def test_a_right_login_from_elsewhere_passes_while_someone_guesses(broker: Secured) -> None:
    broker.admin.access.create_user("guessed", PASSWORD)
    port = broker.process.port
    said = log_in(port, [("guessed", f"guess {number}") for number in range(TRIES + 2)], host=ATTACKER)
    too_many = f"too many wrong passwords for guessed from {ATTACKER}: try again in a minute"
    assert sorted(said) == [WRONG] * TRIES + [too_many] * 2
    assert log_in(port, [("guessed", PASSWORD)], host=ATTACKER) == [too_many]
    assert log_in(port, [("guessed", PASSWORD)]) == [""]


def test_names_that_are_not_there_are_counted_in_the_same_words(broker: Secured) -> None:
    host = "127.0.0.67"
    said = log_in(broker.process.port, [("nobody", f"guess {number}") for number in range(TRIES + 1)], host=host)
    too_many = f"too many wrong passwords for nobody from {host}: try again in a minute"
    assert sorted(said) == [WRONG] * TRIES + [too_many]


def test_a_right_token_passes_while_someone_guesses_from_the_same_address(broker: Secured) -> None:
    made = broker.admin.access.create_token("till")
    port, host = broker.process.port, "127.0.0.68"
    log_in(port, [("till", f"guess {number}") for number in range(TRIES + 1)], host=host)
    assert log_in(port, [("till", made.secret)], host=host) == [""]


def test_console_and_rest_on_this_machine_speak_for_many() -> None:
    counted = LoginAttempts(ManualClock())
    for _ in range(TRIES * GATEWAY_FACTOR):
        counted.count("127.0.0.1", "root")
    with pytest.raises(NotLetIn, match="too many wrong passwords for root"):
        counted.count("127.0.0.1", "root")
    counted.count("127.0.0.1", "alice")


def test_a_gateway_says_for_whom_it_asks_and_others_are_not_believed() -> None:
    counted = LoginAttempts(ManualClock(), "10.1.0.0/16, 2001:db8::7")
    for gateway in ("127.0.0.1", "::1", "10.1.2.3", "2001:db8::/64"):
        assert counted.origin(gateway, "192.0.2.1") == f"192.0.2.1 via {gateway}"
        assert counted.origin(gateway, "") == gateway
    for other in ("10.2.0.1", "2001:db9::/64", "local"):
        assert counted.origin(other, "192.0.2.1") == other
    with pytest.raises(BadRequest, match=r"gateways: '10\.0\.0\.0/40' is neither"):
        LoginAttempts(ManualClock(), "10.0.0.0/40")


def test_who_guesses_at_a_gateway_locks_nobody_else_out_there_and_it_does_not_make_up_callers_for_ever() -> None:
    counted = LoginAttempts(ManualClock(), "10.0.0.9")
    for guesser in ("192.0.2.1", "192.0.2.2"):
        for _ in range(TRIES):
            counted.count(counted.origin("10.0.0.9", guesser), "root")
        with pytest.raises(NotLetIn, match=r"too many wrong passwords for root from 192\.0\.2"):
            counted.count(counted.origin("10.0.0.9", guesser), "root")
        for number in range(TRIES_OF_ORIGIN - TRIES):
            counted.count(counted.origin("10.0.0.9", guesser), f"name {number}")
        with pytest.raises(NotLetIn, match=r"too many wrong passwords from 192\.0\.2"):
            counted.count(counted.origin("10.0.0.9", guesser), "alice")
    counted.count(counted.origin("10.0.0.9", "192.0.2.3"), "root")
    for number in range(TRIES_OF_ORIGIN * (GATEWAY_FACTOR - 2) - 1):
        counted.count(counted.origin("10.0.0.9", f"192.0.3.{number % 250}"), f"name {number}")
    with pytest.raises(NotLetIn, match=r"too many wrong passwords from 10\.0\.0\.9:"):
        counted.count(counted.origin("10.0.0.9", "192.0.2.4"), "root")
    counted.count("192.0.2.3", "root")


def test_a_broker_counts_by_the_callers_of_the_gateways_that_it_is_told_of(tmp_path: Path) -> None:
    gateway = "127.0.0.70"
    with secured(tmp_path, store="memory:", gateways=gateway) as broker:
        broker.admin.access.create_user("guessed", PASSWORD)
        port, guesses = broker.process.port, [("guessed", f"guess {number}") for number in range(TRIES + 1)]
        too_many = f"too many wrong passwords for guessed from 192.0.2.1 via {gateway}: try again in a minute"
        said = log_in(port, guesses, host=gateway, caller="192.0.2.1")
        assert sorted(said) == [WRONG] * TRIES + [too_many]
        assert log_in(port, [("guessed", PASSWORD)], host=gateway, caller="192.0.2.1") == [too_many]
        assert log_in(port, [("guessed", PASSWORD)], host=gateway, caller="192.0.2.2") == [""]


def test_many_names_from_one_address_are_many_tries_and_others_are_not_concerned() -> None:
    clock = ManualClock()
    counted = LoginAttempts(clock)
    for number in range(TRIES_OF_ORIGIN):
        counted.count("10.0.0.1", f"name {number}")
    with pytest.raises(NotLetIn, match=r"too many wrong passwords from 10\.0\.0\.1"):
        counted.count("10.0.0.1", "root")
    counted.count("10.0.0.2", "root")
    clock.advance(61)
    counted.count("10.0.0.1", "root")


def test_who_knows_one_password_cannot_guess_others_for_ever() -> None:
    counted = LoginAttempts(ManualClock())
    for number in range(TRIES_OF_ORIGIN - 1):
        counted.count("10.0.0.1", f"name {number}")
        counted.count("10.0.0.1", "mine")
        counted.was_right("10.0.0.1", "mine")
    counted.count("10.0.0.1", "one more")
    with pytest.raises(NotLetIn, match=r"from 10\.0\.0\.1"):
        counted.count("10.0.0.1", "mine")


def test_who_is_always_right_is_never_too_many() -> None:
    counted = LoginAttempts(ManualClock())
    for _ in range(TRIES_OF_ORIGIN * 2):
        counted.count("10.0.0.1", "mine")
        counted.was_right("10.0.0.1", "mine")


def test_what_is_known_of_wrong_logins_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_attempts, "KNOWN_MAX", 20)
    counted = LoginAttempts(ManualClock())
    for number in range(100):
        for _ in range(TRIES):
            counted.count(f"10.0.0.{number}", "root")
    assert (len(counted._by_origin), len(counted._by_name)) == (20, 20)
    counted.count("10.0.0.0", "root")
    with pytest.raises(NotLetIn):
        counted.count("10.0.0.99", "root")


def test_an_origin_is_an_address_or_a_network_of_ipv6() -> None:
    assert origin_of("10.0.0.1") == origin_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert origin_of("2001:db8::1") == origin_of("2001:db8::2%eth0") == "2001:db8::/64"
    assert origin_of("2001:db8:0:1::1") != origin_of("2001:db8::1")
    assert (origin_of("::1"), origin_of("local")) == ("::1", "local")
    assert Remote("", b"").origin == "local"


async def test_many_connections_of_one_program_at_once_are_one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Passwords(ManualClock())
    real, done = await kept.hash(PASSWORD, "here"), list[str]()
    really = passwords._verify

    def verify(hashed: str, password: str) -> bool:
        done.append(password)
        return really(hashed, password)

    monkeypatch.setattr(passwords, "_verify", verify)
    right = await asyncio.gather(*(kept.verify("alice", real, PASSWORD, "here") for _ in range(TRIES * 3)))
    assert right == [True] * TRIES * 3
    assert len(done) == 1


# Changing


NEW = "another password"


class Household:
    """An administrator and a user, who asks by a token of its own; and hashing that waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.access = Access(book=AccountStore(MemoryStore(), SYSTEM))
        self.hashing, self.gate = threading.Event(), threading.Event()
        monkeypatch.setattr(passwords, "_hash", self._hash)
        monkeypatch.setattr(passwords, "_verify", lambda hashed, password: hashed == f"hash of {password}")

    def _hash(self, password: str) -> str:
        if password == NEW:
            self.hashing.set()
            assert self.gate.wait(60)
        return f"hash of {password}"

    async def move_in(self) -> None:
        book = self.access.book
        assert book is not None
        await book.put_user(User("root", "hash of root", ["admin"]), create=True)
        await book.put_user(User("eve", f"hash of {PASSWORD}"), create=True)
        await book.create_token(Token("eve.x", "eve", secrets=[Secret("1", "hash", 0)]))
        self.root = self._guard(Principal("root", "user", "root", "hash of root"))
        self.eve = self._guard(Principal("eve.x", "token", "eve", "1"))

    def _guard(self, principal: Principal) -> Guard:
        context: Any = None
        return Guard(self.access, principal, TABLE, context, address="", holds=int, origin=principal.user)

    async def put(self, guard: Guard, **changes: Any) -> None:
        await put_user(self.access, guard, PutUser("eve", **changes))

    async def begin_change(self) -> asyncio.Task[None]:
        change = asyncio.create_task(self.put(self.eve, password=NEW, old_password=PASSWORD))
        await asyncio.to_thread(self.hashing.wait, 60)
        return change

    def password(self) -> str:
        assert self.access.book is not None
        return self.access.book.users["eve"].password


async def test_nobody_waits_for_a_password_that_is_being_hashed_and_a_disabled_user_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = Household(monkeypatch)
    await house.move_in()
    change = await house.begin_change()
    await asyncio.wait_for(house.put(house.root, disabled=True), 30)
    house.gate.set()
    with pytest.raises(Refused, match=r"eve\.x is not let in any more"):
        await change
    assert house.password() == f"hash of {PASSWORD}"


async def test_a_user_changes_its_password_once_at_a_time_and_wrong_old_ones_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = Household(monkeypatch)
    await house.move_in()
    change = await house.begin_change()
    for _ in range(30):
        with pytest.raises(Conflict, match="being changed already"):
            await house.put(house.eve, password=NEW, old_password=PASSWORD)
    house.gate.set()
    await change
    assert house.password() == f"hash of {NEW}"
    for number in range(TRIES):
        with pytest.raises(Refused, match="the old password is not right"):
            await house.put(house.eve, password="a third one", old_password=f"guess {number}")
    with pytest.raises(NotLetIn, match="too many wrong passwords"):
        await house.put(house.eve, password="a third one", old_password="another guess")


async def test_a_password_that_an_administrator_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    house = Household(monkeypatch)
    await house.move_in()
    change = await house.begin_change()
    await house.put(house.root, password="set by root")
    house.gate.set()
    with pytest.raises(Conflict, match="was changed meanwhile"):
        await change
    assert house.password() == "hash of set by root"


# FairExecutor


async def test_one_origin_takes_one_place_and_the_others_come_by_turns() -> None:
    turns, gate, order = FairExecutor(2), threading.Event(), list[str]()

    def work(name: str) -> None:
        order.append(name)
        assert gate.wait(60)

    flood = [asyncio.create_task(turns.run("attacker", work, f"attacker {number}")) for number in range(20)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(turns.run(name, work, name)) for name in ("alice", "bob")]
    while len(order) < 2:
        await asyncio.sleep(0)
    assert sorted(order) == ["alice", "attacker 0"]
    gate.set()
    await asyncio.gather(*flood, *others)
    assert order.index("bob") <= 4
    assert [one for one in order if one.startswith("attacker")] == [f"attacker {number}" for number in range(20)]
    assert (turns._free, turns._busy, len(turns._waiting)) == (2, set(), 0)


async def test_a_place_is_taken_as_long_as_its_thread_runs_though_nobody_waits_for_it() -> None:
    turns, began, gate, second_began = FairExecutor(1), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert gate.wait(60)

    first = asyncio.create_task(turns.run("a", work))
    while not began.is_set():
        await asyncio.sleep(0)
    waits = asyncio.create_task(turns.run("b", second_began.set))
    second = asyncio.create_task(turns.run("c", second_began.set))
    await asyncio.sleep(0)
    for task in (first, waits):
        task.cancel()
    await asyncio.wait([first, waits])
    assert turns._free == 0
    assert not second_began.is_set()
    gate.set()
    await second
    assert turns._free == 1


def test_work_that_does_not_end_holds_up_neither_other_threads_nor_the_end_of_the_program() -> None:
    program = """
import asyncio, threading
from towline.broker.fair_executor import FairExecutor

async def main():
    turns, stuck = FairExecutor(40), threading.Event()
    tasks = [asyncio.create_task(turns.run(str(number), stuck.wait)) for number in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.to_thread(int, "7") == 7

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_waits_for_its_turn_is_not_closed_for_being_late(tmp_path: Path) -> None:
    with secured(tmp_path, handshake_s=1.0) as broker:
        logins = [(f"name-{number}", "wrong password") for number in range(24)]
        assert log_in(broker.process.port, logins, host=ATTACKER) == [WRONG] * 24


def test_who_logs_in_at_the_console_again_and_again_logs_nobody_else_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 4)

    async def scenario(url: str, one: str, other: str) -> None:
        console = sessions.Sessions(url, {"timeout": 30.0})
        first = await console.login(HERE, "one", one)
        for _ in range(6):
            last = await console.login(ATTACKER, "other", other)
        assert await console.find(first.key) is first
        assert await console.find(last.key) is last
        assert len(console._sessions) == 4
        await console.close()

    with secured(tmp_path, store="memory:") as broker:
        made = [broker.admin.access.create_token(name).secret for name in ("one", "other")]
        asyncio.run(scenario(broker.url, *made))
