"""What a role may do.

Owns: rights, what namespaces grant, and the decision. Imports: names. Source: Pulsar's
PulsarAuthorizationProvider: super users may do everything, administrators of a tenant everything
below it; produce and consume are granted by namespace or by topic; a subscription may be limited to
roles, or to a prefix. Invariants: a decision is a function of its arguments;
what was not granted is refused; behind a proxy both roles need the right.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.names import TopicName

PRODUCE, CONSUME = "produce", "consume"
GRANTS, BY_ROLE, BY_TOPIC, BY_SUBSCRIPTION = (
    "auth_policies",
    "namespace_auth",
    "destination_auth",
    "subscription_auth_roles",
)
AUTH_MODE, PREFIX = "subscription_auth_mode", "Prefix"
CLUSTER_ROLES = "magnetar:"
"""How roles begin that no client may have."""
INTERNAL_ROLE, INTERNAL_METHOD = f"{CLUSTER_ROLES}internal", "magnetar-internal"
"""By which the processes of a cluster know each other."""
Actions = Mapping[str, frozenset[str]]


class Right(enum.Enum):
    """What something needs."""

    OPEN = "nothing"
    ANYBODY = "any role that is known"
    USE = "produce or consume, on the topic or its namespace"
    PRODUCE = "produce"
    CONSUME = "consume"
    ADMINISTER = "administrator of the tenant"
    SUPER = "super user"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a peer is. `original` is whom a proxy speaks for ("" = itself); `expires_s` the end of
    what it showed, in unix seconds; `address` where it comes from, for the audit log."""

    role: str
    original: str = ""
    expires_s: float | None = None
    internal: bool = False
    address: str = field(default="", compare=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """All of these need a right."""
        return (self.role, self.original) if self.original else (self.role,)


INTERNAL = Principal(INTERNAL_ROLE, internal=True)


@dataclass(frozen=True, slots=True)
class Grants:
    """What a namespace lets roles do."""

    by_role: Actions = field(default_factory=dict)
    by_topic: Mapping[str, Actions] = field(default_factory=dict)
    by_subscription: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prefixed: bool = False

    @staticmethod
    def of(policies: Mapping[str, Any]) -> Grants:
        """From the policies of a namespace's record; what has another shape grants nothing."""
        stored = _mapping(policies.get(GRANTS))
        topics = {
            topic: _actions(granted) for topic, granted in _mapping(stored.get(BY_TOPIC)).items()
        }
        return Grants(
            _actions(stored.get(BY_ROLE)),
            topics,
            _actions(stored.get(BY_SUBSCRIPTION)),
            policies.get(AUTH_MODE) == PREFIX,
        )

    def allows(self, role: str, action: str, topic: TopicName | None) -> bool:
        """Whether the namespace, or the topic (also as the partitioned one that it belongs to),
        lets a role do something."""
        if action in self.by_role.get(role, ()):
            return True
        if topic is None or not self.by_topic:
            return False
        return any(
            action in self.by_topic.get(name, {}).get(role, ())
            for name in (str(topic), str(topic.base))
        )

    def names(self, role: str) -> bool:
        """Whether a role may do anything here: in the namespace, or in one of its topics."""
        return role in self.by_role or any(role in granted for granted in self.by_topic.values())


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _actions(found: Any) -> dict[str, frozenset[str]]:
    return {
        name: frozenset(item for item in items if isinstance(item, str))
        for name, items in _mapping(found).items()
        if isinstance(items, list | tuple)
    }


@dataclass(frozen=True, slots=True)
class Place:
    """What is asked for: a topic or only its namespace, and a subscription if one is named."""

    topic: TopicName | None = None
    subscription: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that a decision about one namespace depends on."""

    super_users: frozenset[str]
    administrators: frozenset[str] = frozenset()
    grants: Grants = field(default_factory=Grants)


def allowed(principal: Principal, right: Right, rules: Rules, place: Place = Place()) -> bool:
    """Whether `principal` has `right` there."""
    return principal.internal or all(
        _role_allowed(role, right, rules, place) for role in principal.roles
    )


def _role_allowed(role: str, right: Right, rules: Rules, place: Place) -> bool:
    if right in (Right.OPEN, Right.ANYBODY) or role in rules.super_users:
        return True
    if right is Right.SUPER:
        return False
    if role in rules.administrators:
        return True
    grants = rules.grants
    if right is Right.PRODUCE:
        return grants.allows(role, PRODUCE, place.topic)
    if right is Right.CONSUME:
        return grants.allows(role, CONSUME, place.topic) and _subscription_allowed(
            role, grants, place.subscription
        )
    if right is Right.USE:
        return any(grants.allows(role, action, place.topic) for action in (PRODUCE, CONSUME))
    return False


def _subscription_allowed(role: str, grants: Grants, subscription: str) -> bool:
    if not subscription:
        return True
    if grants.prefixed and not subscription.startswith(role):
        return False
    limited = grants.by_subscription.get(subscription)
    return not limited or role in limited
