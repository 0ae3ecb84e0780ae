"""Container states of pods, for tests."""

from __future__ import annotations

from typing import Any


def container(
    name: str, state: dict[str, Any], last: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "name": name, "image": "registry.example/magnetar:1", "imageID": "", "ready": False, "restartCount": 2, "state": state,
        "lastState": {"terminated": last} if last else {},
    }  # fmt: skip
