"""`magnetar plan`: what applying a file to Kubernetes would do.

Owns: asking the API server (a dry run, so that its own rules answer) and laying the preview out.
Imports: kubernetes, resources, the operator's pure planning. Nothing is changed. Invariants: exit 1
exactly if a document would be refused; what is shown of a cluster comes from the operator's own
builders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.cli.failures import REFUSED, Refused, WrongUsage
from magnetar.cli.kubernetes import FORBIDDEN, INVALID, Kubernetes, Manifest
from magnetar.cli.manifests import documents_of, is_script
from magnetar.errors import InvalidRequest

if TYPE_CHECKING:
    from magnetar.cli.screen import Screen
    from magnetar_operator.brokers.previewing import Preview
    from magnetar_operator.engine.planning import Change

VALUE_LENGTH_MAX = 80


def run_plan(kubernetes: Kubernetes, screen: Screen, path: Path) -> int:
    """Show what every document below `path` would do; the exit code."""
    found = [pair for pair in documents_of(path) if not is_script(pair[1])]
    if not found:
        raise WrongUsage(
            f"--filename: {path} holds no manifest", "give a .yaml file or a directory of them"
        )
    plans = [_plan(kubernetes, str(source), document) for source, document in found]
    screen.show(plans, lambda: _render(screen, plans))
    return REFUSED if any(plan["action"] == "refused" for plan in plans) else 0


def _plan(kubernetes: Kubernetes, source: str, document: Manifest) -> dict[str, Any]:
    """The plan of one document, as scripts get it."""
    from magnetar.resources import KINDS, parse_manifest
    from magnetar_operator.kube.kinds import CUSTOM

    kind, metadata = str(document.get("kind")), document.get("metadata") or {}
    plan: dict[str, Any] = {
        "resource": f"{kind.lower()}/{metadata.get('name', '?')}",
        "source": source,
        "changes": [],
        "notes": [],
    }
    try:
        name = parse_manifest(document, source).name
    except InvalidRequest as error:
        return plan | {"action": "refused", "reason": str(error)}
    kubernetes = kubernetes.within(str(metadata.get("namespace", kubernetes.namespace)))
    live = kubernetes.get(CUSTOM[kind], name)
    try:
        result = kubernetes.apply_dry_run(CUSTOM[kind], live, document)
    except Refused as error:
        if error.status not in (INVALID, FORBIDDEN):
            raise
        if error.status == INVALID:
            return plan | {"action": "refused", "reason": str(error)}
        plan["notes"].append(f"the API server did not check it: {error}")
        merged = {**(live or {}).get("spec", {}), **document.get("spec", {})}
        result = {**(live or document), "spec": merged}
    new = KINDS[kind].model_validate(result)
    old = KINDS[kind].model_validate(live) if live is not None else None
    return plan | _difference(plan["notes"], old, new)


def _difference(notes: list[str], old: Any, new: Any) -> dict[str, Any]:
    from magnetar.resources import BrokerCluster
    from magnetar_operator.brokers.previewing import field_changes, preview

    specs = [
        item.spec.model_dump(by_alias=True, mode="json") if item is not None else {}
        for item in (old, new)
    ]
    changes = field_changes(*specs) if old is not None else []
    found: dict[str, Any] = {
        "action": "create" if old is None else "change" if changes else "none",
        "changes": [_change(change) for change in changes],
    }
    if isinstance(new, BrokerCluster):
        shown = preview(old, new)
        found |= _preview(shown)
        found["notes"] = [*notes, *shown.notes]
    return found


def _change(change: Change) -> dict[str, Any]:
    return {"field": change.path, "old": change.old, "new": change.new}


def _preview(shown: Preview) -> dict[str, Any]:
    return {
        "objects": [
            {
                "action": item.action,
                "kind": item.kind,
                "name": item.name,
                "changes": [_change(change) for change in item.changes],
            }
            for item in shown.objects
        ],
        "restarts": [{"broker": broker, "reason": reason} for broker, reason in shown.restarts],
        "leaving": [{"broker": item.broker, "bundles": item.bundles} for item in shown.leaving],
        "joining": list(shown.joining),
    }


# --- for people -----------------------------------------------------------------------------------

_TITLES = {
    "create": "is created",
    "change": "changes",
    "none": "stays as it is",
    "refused": "is refused",
}


def _render(screen: Screen, plans: list[dict[str, Any]]) -> None:
    for plan in plans:
        screen.line(f"{plan['resource']} {_TITLES[plan['action']]}")
        if plan["action"] == "refused":
            screen.line(f"  {plan['reason']}")
        for change in plan["changes"]:
            screen.line(f"  {change['field']}: {_value(change['old'])} -> {_value(change['new'])}")
        for item in plan.get("objects", ()):
            screen.line(f"  {item['action']} {item['kind']} {item['name']}")
            for change in item["changes"]:
                screen.line(
                    f"    {change['field']}: {_value(change['old'])} -> {_value(change['new'])}"
                )
        _render_brokers(screen, plan)
        for note in plan["notes"]:
            screen.line(f"  note: {note}")


def _render_brokers(screen: Screen, plan: dict[str, Any]) -> None:
    if plan.get("joining"):
        screen.line(f"  brokers that join: {', '.join(plan['joining'])}")
    for at, row in enumerate(plan.get("leaving", ()), 1):
        screen.line(f"  {at}. {row['broker']} hands {row['bundles']} bundles over, then goes")
    if plan.get("restarts"):
        order = ", ".join(row["broker"] for row in plan["restarts"])
        reason = plan["restarts"][0]["reason"]
        screen.line(
            f"  {len(plan['restarts'])} brokers restart, one at a time ({reason} differs): {order}"
        )


def _value(value: Any) -> str:
    if value is None:
        return "absent"
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[: VALUE_LENGTH_MAX - 3]}..."
