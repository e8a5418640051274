"""Tables that show what documents say: only what has changed is looked into, for there may be very much."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from towline.store.sql.write.projection import Projection

MANY = 200


class Decoding:
    """Counts the texts that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        decode = msgspec.json.decode

        def counting(*args: Any, **options: Any) -> Any:
            self.count += 1
            return decode(*args, **options)

        monkeypatch.setattr(msgspec.json, "decode", counting)


def topics(**changes: dict[str, Any]) -> bytes:
    """As a document; None takes one away."""
    all_of_them = {f"t{number}": {"name": f"t{number}", "shards": 2} for number in range(MANY)}
    return msgspec.json.encode({"topics": list((all_of_them | changes).values()), "businessLines": ["a"]})


def groups(count: int, **changes: Any) -> bytes:
    found = [{"topic": f"t{number}", "name": "g", "paused": False} for number in range(count)]
    return msgspec.json.encode({"groups": [found[0] | changes, *found[1:]]})


def test_topics_that_are_as_before_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, decoding = Projection(1, 1), Decoding(monkeypatch)
    shown.follow("topics.json", topics())
    assert decoding.count == MANY + 1
    assert shown.follow("topics.json", topics()) == ([], set())
    assert decoding.count == MANY + 2
    statements, _ = shown.follow("topics.json", topics(t7={"name": "t7", "shards": 2, "business_line": "food"}))
    assert decoding.count == MANY + 4
    insert, line, update = statements
    assert insert.startswith(b"INSERT INTO `mq_topic`")
    assert b"'t7'" in insert
    assert b"'t8'" not in insert
    assert b"'food'" in line
    assert b"'t7'" in update


def test_groups_that_are_as_before_are_not_decoded_and_those_that_are_gone_are_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, decoding = Projection(1, 1), Decoding(monkeypatch)
    shown.follow("subscriptionGroup.json", groups(MANY))
    decoding.count = 0
    (insert,), _ = shown.follow("subscriptionGroup.json", groups(MANY, paused=True))
    assert decoding.count == 2
    assert b"'t0','g'" in insert.replace(b", ", b",")
    assert b"'t1'" not in insert
    gone, _ = shown.follow("subscriptionGroup.json", groups(MANY - 1, paused=True))
    assert [statement.split(b" WHERE")[0] for statement in gone] == [
        b"DELETE FROM `mq_group`",
        b"DELETE FROM `mq_open`",
    ]
    assert all(b"'t%d'" % (MANY - 1) in statement for statement in gone)
