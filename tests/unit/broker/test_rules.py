"""What rules mean, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.alarms.rule import matches
from towline.broker.access.rules import ROLES, Rights, check_grant, check_rule, covers
from towline.errors import BadRequest
from towline.protocol.access import ACTIONS, RESOURCES, Grant, Rule

NAMES = ("orders", "orders.eu", "stock", "")
NEEDS = [(action, kind, name) for action in ACTIONS for kind in RESOURCES for name in NAMES]


def rule(effect: str, action: str, resource: str, name: str = "*") -> Rule:
    return Rule(0, "me", "allow" if effect == "allow" else "deny", action, resource, name)


def test_nothing_is_allowed_by_itself() -> None:
    rights = Rights([], [])
    assert not any(rights.may(*need) for need in NEEDS)


def test_a_literal_name_and_a_prefix() -> None:
    literal = Rights([rule("allow", "send", "topic", "orders")], [])
    assert literal.may("send", "topic", "orders")
    assert not literal.may("send", "topic", "orders.eu")
    assert not literal.may("consume", "topic", "orders")
    assert not literal.may("send", "group", "orders")
    prefix = Rights([rule("allow", "send", "topic", "orders*")], [])
    assert prefix.may("send", "topic", "orders.eu")
    assert not prefix.may("send", "topic", "order")


def test_whoever_may_do_something_may_describe_it() -> None:
    rights = Rights([rule("allow", "send", "topic", "orders")], [])
    assert rights.may("describe", "topic", "orders")
    assert not rights.may("describe", "topic", "stock")
    assert not rights.may("describe", "cluster", "")


def test_admin_of_a_topic_is_not_admin_of_the_cluster() -> None:
    rights = Rights([rule("allow", "admin", "topic", "orders")], [])
    assert all(rights.may(action, "topic", "orders") for action in ACTIONS)
    assert not rights.may("admin", "cluster", "")
    assert not rights.may("send", "topic", "stock")
    assert not Rights([rule("allow", "*", "topic")], []).may("admin", "cluster", "")


def test_admin_of_the_cluster_may_do_everything() -> None:
    rights = Rights([rule("allow", "admin", "cluster")], [])
    assert all(rights.may(*need) for need in NEEDS)


def test_a_deny_beats_every_allow_also_for_administrators() -> None:
    rights = Rights([rule("allow", "*", "*"), rule("deny", "send", "topic", "orders*")], ["admin"])
    assert not rights.may("send", "topic", "orders.eu")
    assert rights.may("consume", "topic", "orders.eu")
    assert rights.may("send", "topic", "stock")


def test_a_scope_only_takes_away() -> None:
    scopes = [Grant("send", "topic", "orders")]
    rights = Rights([rule("allow", "send", "topic")], ["consumer"], scopes)
    assert rights.may("send", "topic", "orders")
    assert not rights.may("send", "topic", "stock")
    assert not rights.may("consume", "topic", "orders")
    assert not Rights([], [], scopes).may("send", "topic", "orders")


grants = st.builds(
    rule,
    st.sampled_from(["allow", "deny"]),
    st.sampled_from([*ACTIONS, "*"]),
    st.sampled_from([*RESOURCES, "*"]),
    st.sampled_from(["*", "orders", "orders*", "st*"]),
)


@given(st.lists(grants, max_size=6), st.sampled_from(NEEDS))
def test_more_denies_never_allow_more_and_order_does_not_matter(rules: list[Rule], need: tuple[str, str, str]) -> None:
    decided = Rights(rules, []).may(*need)
    assert Rights(list(reversed(rules)), []).may(*need) == decided
    assert not (Rights([*rules, rule("deny", "*", "*")], []).may(*need))
    if decided:
        assert Rights([*rules, rule("allow", "*", "*")], []).may(*need)
        assert not Rights([one for one in rules if one.effect == "deny"], []).may(*need)


@given(st.lists(grants, max_size=4), st.lists(st.sampled_from([Grant("*", "*"), Grant("send", "topic", "st*")])))
def test_whoever_may_do_it_to_all_may_do_it_to_each(rules: list[Rule], scopes: list[Grant]) -> None:
    rights = Rights(rules, [], scopes)
    for action, kind, name in NEEDS:
        for pattern in ("*", "o*", "order*", "orders*", "orders.*", "stock*"):
            if matches(pattern, name):
                assert not rights.may_all(action, kind, pattern) or rights.may(action, kind, name)
    if not scopes:
        assert Rights([rule("allow", "*", "*")], []).may_all("describe", "topic")


def test_all_that_a_pattern_can_mean() -> None:
    rights = Rights([rule("allow", "describe", "topic", "orders*"), rule("deny", "send", "topic", "orders*")], [])
    assert rights.may_all("describe", "topic", "orders*")
    assert rights.may_all("describe", "topic", "orders.eu*")
    assert not rights.may_all("describe", "topic", "order*")
    assert not rights.may_all("describe", "topic")
    for denied, hidden in (("orders.eu", True), ("orders.e*", True), ("orders.eu.x", True), ("orders.us", False)):
        some = Rights([rule("allow", "*", "topic"), rule("deny", "describe", "topic", denied)], [])
        assert some.may_all("describe", "topic", "orders.eu*") != hidden


@pytest.mark.parametrize(
    "grant",
    [
        Grant("fly", "topic"),
        Grant("send", "moon"),
        Grant("send", "cluster", "orders"),
        Grant("*", "*", "orders"),
        Grant("send", "topic", "or*ders"),
        Grant("send", "topic", ""),
    ],
)
def test_a_rule_that_cannot_be_is_refused(grant: Grant) -> None:
    with pytest.raises(BadRequest):
        check_grant(grant)
    with pytest.raises(BadRequest):
        check_rule(Rule(0, "me", "allow", *(getattr(grant, field) for field in ("action", "resource", "name"))))


def test_the_builtin_roles_can_be() -> None:
    for role in ROLES.values():
        for grant in role:
            check_grant(grant)


PATTERNS = ("*", "orders", "orders*", "orders.eu", "st*")
GRANTS = st.lists(
    st.builds(
        lambda action, resource, name: Grant(action, resource, "*" if resource in ("*", "cluster") else name),
        st.sampled_from(("*", *ACTIONS)),
        st.sampled_from(("*", *RESOURCES)),
        st.sampled_from(PATTERNS),
    ),
    max_size=3,
)


@given(GRANTS, GRANTS)
def test_scopes_that_cover_others_allow_all_that_they_allow(wide: list[Grant], narrow: list[Grant]) -> None:
    everything = [rule("allow", "*", "*")]
    if covers(wide, narrow):
        for need in NEEDS:
            assert Rights(everything, [], wide).may(*need) or not Rights(everything, [], narrow).may(*need), need


@given(GRANTS)
def test_scopes_cover_themselves(scopes: list[Grant]) -> None:
    assert covers(scopes, scopes)
    assert covers([], scopes)
    assert not scopes or not covers(scopes, []), "no scopes are no limit"
