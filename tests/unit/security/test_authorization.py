"""Decisions about rights, as Pulsar makes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.names import TopicName
from magnetar.security.authorization import (
    INTERNAL,
    Grants,
    Place,
    Principal,
    Right,
    Rules,
    allowed,
)

TOPIC = TopicName.parse("persistent://acme/orders/t")
OTHER = TopicName.parse("persistent://acme/orders/u")
POLICIES = {
    "auth_policies": {
        "namespace_auth": {
            "writer": ["produce"],
            "reader": ["consume"],
            "both": ["produce", "consume"],
        },
        "destination_auth": {str(TOPIC): {"guest": ["consume"]}},
        "subscription_auth_roles": {"billing": ["reader"], "empty": []},
    }
}
RULES = Rules(frozenset({"admin"}), frozenset({"chief"}), Grants.of(POLICIES))
ROLES = st.sampled_from(["admin", "chief", "writer", "reader", "both", "guest", "nobody"])
RIGHTS = st.sampled_from(list(Right))


def may(
    role: str,
    right: Right,
    topic: TopicName | None = TOPIC,
    subscription: str = "",
    rules: Rules = RULES,
) -> bool:
    return allowed(Principal(role), right, rules, Place(topic, subscription))


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        ("admin", set(Right)),
        ("chief", set(Right) - {Right.SUPER}),
        ("writer", {Right.OPEN, Right.ANYBODY, Right.USE, Right.PRODUCE}),
        ("reader", {Right.OPEN, Right.ANYBODY, Right.USE, Right.CONSUME}),
        ("both", {Right.OPEN, Right.ANYBODY, Right.USE, Right.PRODUCE, Right.CONSUME}),
        ("guest", {Right.OPEN, Right.ANYBODY, Right.USE, Right.CONSUME}),
        ("nobody", {Right.OPEN, Right.ANYBODY}),
    ],
)
def test_each_role_has_its_rights_and_no_others(role: str, rights: set[Right]) -> None:
    assert {right for right in Right if may(role, right)} == rights


def test_a_topics_own_permissions_end_at_the_topic_and_hold_for_its_partitions() -> None:
    assert may("guest", Right.CONSUME, TOPIC.with_partition(3))
    assert not may("guest", Right.CONSUME, OTHER)
    assert not may("guest", Right.USE, None)


def test_a_subscription_may_be_limited_to_roles() -> None:
    assert may("reader", Right.CONSUME, subscription="billing")
    assert not may("both", Right.CONSUME, subscription="billing")
    assert may("both", Right.CONSUME, subscription="empty")
    assert may("chief", Right.CONSUME, subscription="billing")


def test_a_namespace_may_want_subscriptions_named_after_their_role() -> None:
    rules = Rules(
        frozenset(), frozenset(), Grants.of({**POLICIES, "subscription_auth_mode": "Prefix"})
    )
    assert may("reader", Right.CONSUME, subscription="reader-1", rules=rules)
    assert not may("reader", Right.CONSUME, subscription="x-reader", rules=rules)


@given(ROLES, ROLES, RIGHTS)
def test_behind_a_proxy_both_roles_need_the_right(proxy: str, original: str, right: Right) -> None:
    found = allowed(Principal(proxy, original), right, RULES, Place(TOPIC))
    assert found == (may(proxy, right) and may(original, right))


@given(RIGHTS)
def test_the_processes_of_the_cluster_may_do_everything(right: Right) -> None:
    assert allowed(INTERNAL, right, Rules(frozenset()), Place(TOPIC))


def test_a_role_that_is_called_like_an_internal_one_is_not() -> None:
    assert not allowed(Principal(INTERNAL.role), Right.PRODUCE, RULES, Place(TOPIC))


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
    )
)
def test_permissions_of_another_shape_grant_nothing(stored: object) -> None:
    """Records may have been written by others."""
    rules = Rules(frozenset(), frozenset(), Grants.of({"auth_policies": stored}))
    assert not any(
        may("reader", right, rules=rules) for right in (Right.PRODUCE, Right.CONSUME, Right.USE)
    )


@given(ROLES, RIGHTS, st.booleans())
def test_taking_a_permission_away_never_gives_a_right(
    role: str, right: Right, of_topic: bool
) -> None:
    stored = POLICIES["auth_policies"]
    part = "destination_auth" if of_topic else "namespace_auth"
    fewer = Rules(
        RULES.super_users, RULES.administrators, Grants.of({"auth_policies": {**stored, part: {}}})
    )
    assert may(role, right) or not may(role, right, rules=fewer)
