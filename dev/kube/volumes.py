"""Static volumes of the local node.

Owns: the PersistentVolumes and the directories behind them. May import: addresses, api, paths,
report. Invariant: a bound volume is never emptied; a recycled one is empty before it can be claimed
again. One whose claim was deleted has no user: a pod that mounts a claim keeps it.
"""

from __future__ import annotations

import http
import json
import shutil
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.kube import api
from dev.kube.addresses import NODE_NAME
from dev.kube.paths import MANIFESTS, Paths
from dev.kube.report import say

ETCD_VOLUMES = 4


@dataclass(frozen=True)
class Volume:
    """One directory offered as a PersistentVolume."""

    directory: str
    size: str
    mode: str

    @property
    def name(self) -> str:
        return f"magnetar-local-{self.directory}"


VOLUMES = (
    Volume("shared", "50Gi", "ReadWriteMany"),
    Volume("shared-2", "50Gi", "ReadWriteMany"),
    *(Volume(f"etcd-{ordinal}", "2Gi", "ReadWriteOnce") for ordinal in range(ETCD_VOLUMES)),
)


def manifests(paths: Paths) -> str:
    """Storage class, rights and volumes, ready to apply."""
    return "---\n".join(
        [(MANIFESTS / "base.yaml").read_text(), *(manifest(volume, paths) for volume in VOLUMES)]
    )


def manifest(volume: Volume, paths: Paths) -> str:
    template = string.Template((MANIFESTS / "volume.yaml").read_text())
    # A JSON string is a YAML string too, whatever the path contains.
    path = json.dumps(str(paths.volumes / volume.directory))
    return template.substitute(
        name=volume.name, size=volume.size, mode=volume.mode, path=path, node=NODE_NAME
    )


def make_directories(paths: Paths) -> None:
    for volume in VOLUMES:
        _make_directory(paths.volumes / volume.directory)


def _make_directory(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    # Pods run as users of their own; the parent directory keeps other users of the host out.
    directory.chmod(0o777)


def apply(paths: Paths) -> None:
    make_directories(paths)
    api.kubectl(paths, "apply", "--filename=-", text_input=manifests(paths))


def wipe(paths: Paths) -> list[str]:
    """Recycle every volume that no claim holds; returns the names of those still bound."""
    bound = _bound(paths)
    _recycle(paths, [volume for volume in VOLUMES if volume.name not in bound])
    return sorted(bound)


def reclaim(paths: Paths) -> None:
    """Recycle the volumes whose claim was deleted; quiet while there are none, or no API server."""
    status, body = api.get(paths, "/api/v1/persistentvolumes")
    released = in_phase(json.loads(body), "Released") if status == http.HTTPStatus.OK else set()
    if found := [volume for volume in VOLUMES if volume.name in released]:
        _recycle(paths, found)


def in_phase(listed: dict[str, Any], phase: str) -> set[str]:
    """Names of the volumes of a list that are in a phase."""
    return {
        item["metadata"]["name"]
        for item in listed["items"]
        if item.get("status", {}).get("phase") == phase
    }


def _recycle(paths: Paths, free: list[Volume]) -> None:
    if free:
        names = [volume.name for volume in free]
        api.kubectl(
            paths,
            "delete",
            "persistentvolume",
            "--ignore-not-found",
            "--wait=true",
            "--timeout=30s",
            *names,
        )
    for volume in free:
        shutil.rmtree(paths.volumes / volume.directory, ignore_errors=True)
        _make_directory(paths.volumes / volume.directory)
    apply(paths)
    say(f"{len(free)} volumes are empty and available")


def _bound(paths: Paths) -> set[str]:
    return in_phase(
        json.loads(api.kubectl(paths, "get", "persistentvolume", "--output=json")), "Bound"
    )
