"""Pod templates of a broker and a coordinator, as the operator builds them.

Owns: the templates by component, their arguments, and a spec that asks clients who they are.
Imports: the operator's builders, the sample resources.
"""

from __future__ import annotations

from typing import Any

from magnetar_operator.brokers.desired import desired
from magnetar_operator.builders.coordinator_set import desired_coordinators
from tests.support.samples import DEFAULTS, cluster, coordinators

AUTH: dict[str, Any] = {
    "tokens": {"secretKey": {"name": "tokens", "key": "secret.key"}, "audience": "shop"},
    "superUserRoles": ["admin"],
}


def templates(**spec: Any) -> dict[str, dict[str, Any]]:
    """By component: a broker's and a coordinator's pod."""
    resource = cluster(**spec)
    found = [
        *desired(resource, DEFAULTS, 2, {}),
        *desired_coordinators(coordinators(), resource, DEFAULTS, 1, {}),
    ]
    wanted = {"main-broker": "broker", "tx-coordinator": "coordinator"}
    sets = {item["metadata"]["name"]: item for item in found if item["kind"] == "StatefulSet"}
    return {component: sets[name]["spec"]["template"] for name, component in wanted.items()}


def arguments(template: dict[str, Any]) -> dict[str, str]:
    given = template["spec"]["containers"][0]["args"][2:]
    return dict(zip(given[::2], given[1::2], strict=True))
