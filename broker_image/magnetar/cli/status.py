"""`magnetar status`.

Owns: what people see of a cluster's health, and what counts as unhealthy. Imports: rest, screen,
conditions. Invariant: exit code 1 exactly if `problems` is not empty; a script reads the same list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.cli import conditions
from magnetar.cli.failures import REFUSED, Refused
from magnetar.cli.rest import NOT_FOUND, Rest
from magnetar.cli.screen import Screen, broker_of, since_text
from magnetar.cli.session import Session

SETTLED = ("Owned", "Deleted")
BUNDLES_SHOWN_MAX = 40
_BROKER_COLUMNS = (
    "broker", "state", "service URL", "up", "bundles", "topics", "in msg/s", "out msg/s", "cpu", "memory",
)  # fmt: skip


def run_status(session: Session, bundles: bool, namespace: str = "", context: str = "") -> int:
    """Show brokers, bundles, damage and what Kubernetes says; the exit code."""
    status = session.rest.get("/magnetar/v1/status")
    damage = _damage(session.rest)
    resources, unseen = conditions.look(namespace, context, status["storage_id"])
    problems = [*problems_of(status, damage), *conditions.problems_of(resources)]
    value = {
        **status,
        **damage,
        "resources": resources,
        "resources_unseen": unseen,
        "healthy": not problems,
        "problems": problems,
    }
    session.screen.show(value, lambda: _render(session.screen, value, bundles))
    return REFUSED if problems else 0


def _damage(rest: Rest) -> dict[str, Any]:
    try:
        found = rest.get("/magnetar/v1/damage", {"cluster": True})
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        found = {}
    return {
        name: found.get(name, kind())
        for name, kind in (("damage", list), ("short_of_space", dict), ("unreachable", list))
    }


def problems_of(status: Mapping[str, Any], damage: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, one sentence each."""
    found = []
    if not status["leader"]:
        found.append(
            "there is no leader; one is elected within a lease if any broker reaches the metadata "
            "store"
        )
    if not any(row["state"] == "serving" for row in status["brokers"]):
        found.append(
            "no broker takes bundles; start one, or lift a cordon with `magnetar drain BROKER "
            "--undo`"
        )
    live = {row["incarnation"] for row in status["brokers"]}
    for row in status["bundles"]:
        if row["state"] not in SETTLED:
            found.append(f"bundle {row['bundle']} is {row['state']}, not Owned ({row['reason']})")
        elif row["state"] == "Owned" and row["owner"] not in live:
            found.append(
                f"bundle {row['bundle']} belongs to {row['owner']}, which is gone; the leader "
                "reassigns it"
            )
    found += [f"broker {name} is registered but does not answer" for name in damage["unreachable"]]
    found += [
        f"broker {name} publishes nothing: {why}" for name, why in damage["short_of_space"].items()
    ]
    found += [
        f"storage damage at {row.get('broker') or 'a broker'}: {row['error']}"
        for row in damage["damage"]
    ]
    return found


def _render(screen: Screen, value: Mapping[str, Any], bundles: bool) -> None:
    screen.line(
        f"cluster storage {value['storage_id']}, leader {broker_of(value['leader']) or 'none'}"
    )
    screen.line()
    screen.table(
        _BROKER_COLUMNS,
        [
            (
                row["broker"],
                row["state"],
                row["service_url"],
                since_text(row.get("started_ms")),
                row["bundles"],
                row["topics"],
                row["in"],
                row["out"],
                _percent(row.get("cpu")),
                _percent(row.get("memory")),
            )
            for row in value["brokers"]
        ],
    )
    screen.line()
    _render_bundles(screen, value["bundles"], bundles)
    _render_damage(screen, value["damage"])
    _render_conditions(screen, value["resources"])
    screen.line()
    screen.line(
        "healthy"
        if value["healthy"]
        else "\n".join(["unhealthy:", *(f"  {problem}" for problem in value["problems"])])
    )


def _render_bundles(screen: Screen, found: Sequence[Mapping[str, Any]], every: bool) -> None:
    rows = [row for row in found if row["state"] != "Deleted"]
    troubled = [row for row in rows if row["state"] != "Owned"]
    shown = rows if every or len(rows) <= BUNDLES_SHOWN_MAX else troubled
    if shown:
        screen.table(
            ("bundle", "state", "epoch", "owner", "reason"),
            [
                (
                    row["bundle"],
                    row["state"],
                    row["epoch"],
                    broker_of(row["owner"]) or "-",
                    row["reason"],
                )
                for row in shown
            ],
        )
    if len(shown) < len(rows):
        screen.line(
            f"{len(rows) - len(troubled)} of {len(rows)} bundles are Owned; --bundles lists them "
            "all"
        )


def _render_damage(screen: Screen, found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        return
    screen.line()
    screen.table(
        ("damage at", "what", "topic or bundle", "file", "offset", "since", "error"),
        [
            (
                row.get("broker"),
                row["what"],
                row["topic"] or row["bundle"],
                row["file"],
                row["offset"],
                since_text(row["since_ms"]),
                row["error"],
            )
            for row in found
        ],
    )


def _render_conditions(screen: Screen, resources: Sequence[Mapping[str, Any]]) -> None:
    rows, left_out = conditions.rows_of(resources)
    if rows:
        screen.line()
        screen.table(("resource", "condition", "status", "reason", "message"), rows)
    if left_out:
        screen.line(left_out)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}%"
