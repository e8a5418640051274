"""As many as may be: a class of its own for what is refused by its count, and what older clients make of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.eventually import eventually
from tests.inside.broker import AccountStore, Broker, Meter, Server, Token, account_store, groups, subscriptions, topics
from tests.inside.console import STATUS
from tests.inside.ground import SYSTEM, BrokerSettings
from tests.inside.protocol import (
    PREFACE,
    VERSION,
    Attach,
    Attached,
    Beat,
    CreateTopic,
    Done,
    Failed,
    Hello,
    PutGroup,
    Quota,
    Request,
    Welcome,
)
from tests.inside.store import MemoryStore
from towline.errors import BadRequest, TooLarge, TooMany, TooManyConnections, TowlineError, Unavailable, from_code
from towline.model import GroupConfig, TopicConfig


def refusals(asked: list[tuple[Request, type[Any]]], **settings: Any) -> list[Failed]:
    """What a broker answers with that refuses, of all that it is asked."""

    async def main() -> list[Failed]:
        broker = await Broker.open(MemoryStore(), BrokerSettings(store="memory:", **settings))
        server = await Server.start(broker, "127.0.0.1", 0)
        try:
            return await asyncio.to_thread(ask, server.port)
        finally:
            await server.drain_and_close()
            await broker.close()

    def ask(port: int) -> list[Failed]:
        with RawClient.hello(port) as client:
            answers = []
            for request, _ in asked:
                client.post(request)
                answers.append((client.read() or (0, None))[1])
            return [answer for answer in answers if isinstance(answer, Failed)]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("module", "limit", "asked"),
    [
        (topics, "MAX_TOPICS", [(CreateTopic(TopicConfig(name)), Done) for name in ("a", "b")]),
        (topics, "MAX_SHARDS_IN_ALL", [(CreateTopic(TopicConfig("a", shards=2)), Done)]),
        (groups, "MAX_GROUPS_PER_TOPIC", [(Attach("a", name, "c"), Attached) for name in ("one", "two")]),
        (groups, "MAX_GROUPS_PER_TOPIC", [(Attach("a", name, "c"), Attached) for name in ("~one", "~two")]),
        (subscriptions, "SUBSCRIPTIONS_MAX", [(Attach("a", name, "c"), Attached) for name in ("one", "two")]),
    ],
    ids=str,
)
def test_what_is_over_a_count_is_refused_as_too_many(
    monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, asked: list[Any]
) -> None:
    monkeypatch.setattr(module, limit, 1)
    [refused] = refusals(asked)
    assert type(refused.error) is TooMany
    assert type(from_code(refused.code, refused.message)) is TooLarge, "older clients know this one"


def test_a_group_that_is_refused_says_how_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_GROUPS_PER_TOPIC", 1)
    asked = [(CreateTopic(TopicConfig("a")), Done), *((PutGroup(GroupConfig("a", one)), Done) for one in ("g", "h"))]
    [refused] = refusals(asked)
    assert "topic a has 1 groups already: group h is not made. `towline group rm`" in refused.message


def test_a_connection_over_the_limit_is_told_so_and_older_clients_try_again() -> None:
    with BrokerProcess(max_connections=1) as broker, RawClient.hello(broker.port), RawClient(broker.port) as second:
        _, answer = second.read() or (0, None)
        assert isinstance(answer, Failed)
        assert (answer.code, type(answer.error)) == (Unavailable.code, TooManyConnections)
        assert "1 connections already" in answer.message
        assert answer.error.retriable
        with pytest.raises(TooManyConnections, match="raise max_connections"):
            towline.connect(f"towline://127.0.0.1:{broker.port}", timeout=1.0)


def test_who_never_says_who_it_is_keeps_nobody_out() -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(max_connections=20, handshake_s=300.0))
        inside = stack.enter_context(RawClient.hello(broker.port))
        silent = [stack.enter_context(RawClient(broker.port)) for _ in range(40)]
        for one in silent[:10]:
            one.write(PREFACE[:3])

        def get_in() -> RawClient | None:
            one = stack.enter_context(RawClient(broker.port))
            try:
                one.write(PREFACE)
                one.call(Hello(VERSION, VERSION, ""), Welcome)
            except (AssertionError, OSError, TowlineError):
                return None  # the silent ones have a moment to speak
            return one

        others = [eventually(get_in) for _ in range(19)]
        for one in (inside, *others):
            one.call(Beat(), Done)
        with RawClient(broker.port) as late:
            _, answer = late.read() or (0, None)
            assert isinstance(answer, Failed), "those who have said it stay"


def test_users_tokens_and_rules_are_refused_as_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        book = AccountStore(MemoryStore(), SYSTEM)
        with pytest.raises(TooMany, match="are the limits"):
            await book.create_token(Token("one"))

    monkeypatch.setattr(account_store, "PRINCIPALS_MAX", 0)
    asyncio.run(main())
    meter = Meter(Quota(connections=1))
    meter.join("few", lambda: 0)
    with pytest.raises(TooMany, match="quota"):
        meter.join("few", lambda: 1)


def test_a_code_that_nobody_knows_is_a_plain_error_and_a_known_one_counts_before_it() -> None:
    assert type(from_code("of-tomorrow", "why")) is TowlineError
    assert type(from_code("too-large", "why", "of-tomorrow")) is TooLarge
    assert type(from_code("too-large", "why", "too-many")) is TooMany
    assert issubclass(TooMany, BadRequest)


def test_over_http_too_many_is_a_conflict_not_a_matter_of_time() -> None:
    def status(kind: type[TowlineError]) -> int:
        return next(STATUS[one] for one in kind.__mro__ if one in STATUS)

    assert (status(TooMany), status(TooLarge), status(TooManyConnections)) == (409, 413, 503)
