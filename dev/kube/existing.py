"""A cluster the user already has.

Owns: the check that it answers. May import: binaries, paths, report.
Invariant: nothing is started, installed or changed, neither here nor there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from dev.kube import binaries
from dev.kube.paths import Paths
from dev.kube.report import run_quietly, table


def kubeconfig() -> str:
    """The user's own, as kubectl would choose it."""
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def describe(context: str, paths: Paths) -> str:
    """Server version, nodes and storage classes; raises CommandFailed when the cluster cannot be
    reached."""
    kubectl = shutil.which("kubectl") or binaries.ensure(["kubectl"], paths)["kubectl"]
    ask = [kubectl, "--context", context, "--request-timeout=10s"]
    version: dict[str, Any] = json.loads(run_quietly([*ask, "version", "--output=json"]))
    nodes = _listed([*ask, "get", "nodes", "--output=json"])
    classes = _listed([*ask, "get", "storageclasses", "--output=json"])
    rows = [
        ("server", version.get("serverVersion", {}).get("gitVersion", "unknown")),
        ("nodes", ", ".join(f"{_name(node)} ({_readiness(node)})" for node in nodes) or "none"),
        ("storage classes", ", ".join(_name(item) for item in classes) or "none"),
        ("kubeconfig", kubeconfig()),
    ]
    return table(rows, ("CONTEXT", context))


def _listed(argv: list[str | Path]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(run_quietly(argv))["items"]
    return items


def _name(item: dict[str, Any]) -> str:
    return str(item["metadata"]["name"])


def _readiness(node: dict[str, Any]) -> str:
    conditions = {
        item["type"]: item["status"] for item in node.get("status", {}).get("conditions", [])
    }
    return "Ready" if conditions.get("Ready") == "True" else "not ready"
