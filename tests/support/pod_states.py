"""States of pods and of their containers, as the kubelet reports them.

Owns: pods that are ready, unschedulable, waiting or ended, as the operator reads them, and whole
container statuses for a real API server. Imports: nothing of ours.
"""

from __future__ import annotations

from typing import Any

UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes: cpu",
        }
    ]
}


def pod(name: str = "main-broker-0", ready: bool = False, **status: Any) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": "True" if ready else "False"},
        *status.pop("conditions", []),
    ]
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {"phase": "Running", "conditions": conditions, **status},
    }


def container(state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "broker", "ready": False, "state": state, **fields}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {
        "lastState": {"terminated": {"exitCode": code, "reason": reason, "message": message}},
        "restartCount": 3,
    }


def container_status(
    name: str, state: dict[str, Any], last: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "name": name, "image": "registry.example/magnetar:1", "imageID": "", "ready": False, "restartCount": 2, "state": state,
        "lastState": {"terminated": last} if last else {},
    }  # fmt: skip
