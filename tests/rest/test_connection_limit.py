"""How many connections of HTTP there may be, in all and from one address, and who makes room."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.broker.process import BrokerProcess
from tests.eventually import eventually
from tests.inside.ground import YIELD_S, ConnectionLimit
from tests.rest.process import rest_door
from tests.rest.test_half_requests import Door, begin, get, status

HERE, THERE, ELSEWHERE = "127.0.0.5", "127.0.0.6", "127.0.0.7"


class Guest:
    def __init__(self, host: str, waits_since_s: float | None = None) -> None:
        self.host = host
        self.waits_since_s = waits_since_s


def test_an_address_has_so_many_connections_and_the_others_theirs() -> None:
    limit = ConnectionLimit[Guest](10, 2)
    here = [Guest("10.0.0.1"), Guest("10.0.0.1")]
    assert [limit.enter(one, 0) for one in here] == [(0, None)] * 2
    assert limit.enter(Guest("10.0.0.1"), 0) == (429, None)
    assert limit.enter(Guest("10.0.0.2"), 0) == (0, None)
    limit.leave(here[0])
    limit.leave(here[0])
    assert len(limit) == 2
    assert limit.enter(Guest("10.0.0.1"), 0) == (0, None)
    assert limit.enter(Guest("10.0.0.1"), 0) == (429, None)


def test_a_network_of_ipv6_is_one_address() -> None:
    limit = ConnectionLimit[Guest](10, 2)
    assert [limit.enter(Guest(f"2001:db8::{n}"), 0)[0] for n in range(3)] == [0, 0, 429]
    assert limit.enter(Guest("2001:db8:0:1::1"), 0) == (0, None)


def test_there_are_so_many_connections_in_all() -> None:
    limit = ConnectionLimit[Guest](3, 2)
    assert [limit.enter(Guest(f"10.0.0.{n}"), 0)[0] for n in range(4)] == [0, 0, 0, 503]
    assert len(limit) == 3


def test_without_a_limit_of_addresses_only_the_one_in_all_counts() -> None:
    limit = ConnectionLimit[Guest](3, 0)
    assert [limit.enter(Guest("10.0.0.1"), 0)[0] for _ in range(4)] == [0, 0, 0, 503]


@pytest.mark.parametrize(("most", "of_address", "refused"), [(3, 0, 503), (9, 3, 429)])
def test_who_has_kept_us_waiting_for_longest_makes_room_and_nobody_else(
    most: int, of_address: int, refused: int
) -> None:
    limit = ConnectionLimit[Guest](most, of_address)
    answered, fresh = Guest("10.0.0.1"), Guest("10.0.0.1", 100 - YIELD_S / 2)
    longest = Guest("10.0.0.1", 50)
    assert [limit.enter(one, 0)[0] for one in (answered, fresh, longest)] == [0, 0, 0]
    new = Guest("10.0.0.1")
    assert limit.enter(new, 100) == (0, longest)
    assert limit.enter(Guest("10.0.0.1"), 100) == (refused, None)
    limit.leave(longest)  # it is told later that it has gone
    assert len(limit) == 3
    assert limit.enter(Guest("10.0.0.1"), 100 + YIELD_S) == (0, fresh)


def test_at_the_limit_of_an_address_only_its_own_connections_make_room() -> None:
    limit = ConnectionLimit[Guest](9, 1)
    assert limit.enter(Guest("10.0.0.1", 0), 0) == (0, None)
    assert limit.enter(Guest("10.0.0.2"), 0) == (0, None)
    assert limit.enter(Guest("10.0.0.2"), 100) == (429, None)


# Whole processes


@pytest.fixture
def door() -> Iterator[Door]:
    """Four connections from an address, and six in all."""
    flags = ("--max-connections", "6", "--max-connections-per-address", "4")
    with BrokerProcess() as broker, rest_door(f"towline://127.0.0.1:{broker.port}", *flags) as url:
        where = urlsplit(url)
        assert where.hostname
        assert where.port
        yield Door((where.hostname, where.port), "/api/openapi.json")


def pull(door: Door, stack: ExitStack, host: str) -> socket.socket:
    """One that is being answered, for as long as nothing comes: it makes room for nobody."""
    body = b'{"wait_s":20}'
    head = (
        f"POST /api/topics/quiet/groups/{host}/pull HTTP/1.1\r\nHost: localhost:{door.address[1]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return stack.enter_context(begin(door, head.encode() + body, host))


def test_a_door_refuses_what_is_over_its_limits_and_lets_in_again_once_there_is_room(door: Door) -> None:
    with ExitStack() as stack:
        first, *_ = [pull(door, stack, HERE) for _ in range(4)]
        said = get(door, HERE)
        assert status(said) == b"429"
        assert b"Retry-After: 5\r\n" in said
        assert b"your address has 4 connections already" in said
        assert status(get(door, THERE)) == b"200"
        for _ in range(2):
            pull(door, stack, THERE)
        said = get(door, ELSEWHERE)
        assert status(said) == b"503"
        assert b"there are 6 connections already" in said
        assert status(get(door, HERE)) == b"429"
        first.close()
        eventually(lambda: status(get(door, ELSEWHERE)) == b"200")
        eventually(lambda: status(get(door, HERE)) == b"200")
