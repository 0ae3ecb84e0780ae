"""Policies that administrators have stored, as decisions read them.

Owns: reading Pulsar's JSON of isolation policies, failure domains and anti-affinity groups, and the
zones that the operator has stored.
Imports: balance.filters, metadata records. Pure. Invariant: a document that cannot be read counts
as none, and is named in the log once it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.balance.filters import IsolationPolicy
from magnetar.errors import InvalidRequest

ANTI_AFFINITY = "anti_affinity"
"""The name of the policy of a namespace."""
MIN_AVAILABLE = "min_available"


def isolation_policy(name: str, document: Any) -> IsolationPolicy:
    """Pulsar's NamespaceIsolationData. Raises InvalidRequest."""
    if not isinstance(document, dict):
        raise InvalidRequest(f"isolation policy {name}: {document!r} is not an object")
    failover = document.get("auto_failover_policy") or {}
    kind = failover.get("policy_type", MIN_AVAILABLE) if isinstance(failover, dict) else failover
    if kind != MIN_AVAILABLE:
        raise InvalidRequest(
            f"isolation policy {name}: auto_failover_policy.policy_type: {kind!r} is not offered; "
            f"use {MIN_AVAILABLE}"
        )
    given = failover.get("parameters") or {}
    policy = IsolationPolicy(
        name,
        _texts(name, document, "namespaces"),
        _texts(name, document, "primary"),
        _texts(name, document, "secondary"),
        int(_number(name, given, "min_limit", 0)),
        _number(name, given, "usage_threshold", 1000),
    )
    policy.check()
    return policy


def _texts(name: str, document: Mapping[str, Any], field: str) -> tuple[str, ...]:
    found = document.get(field) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        raise InvalidRequest(
            f"isolation policy {name}: {field}: {found!r} is not a list of regular expressions"
        )
    return tuple(found)


def _number(name: str, given: Any, field: str, default: float) -> float:
    found = given.get(field, default) if isinstance(given, dict) else given
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1_000_000:
        raise InvalidRequest(
            f"isolation policy {name}: auto_failover_policy.parameters.{field}: {found!r} is not a "
            "number from 0 to 1000000"
        )
    return number


def isolation_policies(documents: Mapping[str, Any]) -> tuple[IsolationPolicy, ...]:
    """Those that can be read, by name."""
    found = []
    for name, document in sorted(documents.items()):
        try:
            found.append(isolation_policy(name, document))
        except InvalidRequest:
            continue
    return tuple(found)


def domains(documents: Mapping[str, Any]) -> dict[str, str]:
    """Failure domains by the address of a broker."""
    found: dict[str, str] = {}
    for name, document in sorted(documents.items(), reverse=True):
        brokers = document.get("brokers") if isinstance(document, dict) else None
        for broker in brokers if isinstance(brokers, list) else ():
            if isinstance(broker, str):
                found[broker] = name
    return found


def zones(documents: Mapping[str, Any]) -> dict[str, str]:
    """Zones of nodes by broker."""
    return {
        broker: entry["zone"]
        for broker, entry in documents.items()
        if isinstance(entry, dict) and isinstance(entry.get("zone"), str) and entry["zone"]
    }
