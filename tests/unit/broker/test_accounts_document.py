"""The book of users, tokens and rules, as versions before have written it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from towline.broker.access.account_store import AccountStore
from towline.broker.access.accounts import change, create_token
from towline.broker.access.authentication import Access, Principal
from towline.broker.access.authorization import Guard
from towline.broker.server.requests import TABLE
from towline.clock import SECOND_US, ManualClock
from towline.errors import Refused
from towline.protocol.access import CreateToken, TokenMade
from towline.store.memory import MemoryStore


def written_by_0_1_0(**secrets: list[int]) -> bytes:
    """Tokens of bob, by what comes behind their names, with secrets that expire at these times."""
    tokens = [
        {
            "name": f"bob.{name}",
            "owner": "bob",
            "roles": [],
            "scopes": [],
            "quota": [0, 0, 0],
            "secrets": [
                {"id": f"{name}-{at_us}", "hash": "hash", "created_at_us": 1, "expires_at_us": at_us} for at_us in some
            ],
            "created_at_us": 1,
        }
        for name, some in secrets.items()
    ]
    user = {"name": "bob", "password": "hash of bob", "roles": ["producer"], "created_at_us": 1}
    return msgspec.json.encode({"version": 3, "users": [user], "tokens": tokens, "rules": [], "next_rule": 1})


async def test_an_expiry_that_was_set_before_the_upgrade_binds() -> None:
    clock, store = ManualClock(), MemoryStore()
    context: Any = None
    soon, later, past = (clock.now_us() + seconds * SECOND_US for seconds in (100, 1000, -10))
    tokens = {"brief": [soon], "two": [soon, later], "mixed": [soon, 0], "good": [0], "renewed": [past, 0]}
    await store.save("access.json", written_by_0_1_0(**tokens, over=[past], renewing=[past, soon], none=[]))
    access = Access(book=AccountStore(store, clock), clock=clock)
    book = access.book
    assert book is not None
    for _ in range(2):
        await book.load()
        assert {name.removeprefix("bob."): one.expires_at_us for name, one in book.tokens.items()} == {
            "brief": soon,
            "two": later,
            "mixed": 0,
            "good": 0,
            "renewed": 0,
            "over": past,
            "renewing": soon,
            "none": 0,
        }
        book = access.book = AccountStore(store, clock)
    await book.load()
    bob = Guard(
        access, Principal("bob", "user", "bob", "hash of bob"), TABLE, context, address="", holds=int, origin="bob"
    )
    made = await change(create_token, access, bob, CreateToken("bob.brief", rotate=True))
    assert isinstance(made, TokenMade)
    assert made.expires_at_us == soon
    with pytest.raises(Refused, match="good for longer"):
        await change(create_token, access, bob, CreateToken("bob.renewing", expires_s=500, rotate=True))
    made = await change(create_token, access, bob, CreateToken("bob.good", rotate=True))
    assert isinstance(made, TokenMade)
    assert made.expires_at_us == 0
    again = AccountStore(store, clock)
    await again.load()
    assert again.tokens == book.tokens, "it is written now"
