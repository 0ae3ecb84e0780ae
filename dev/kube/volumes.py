"""Static volumes of the local node.

Owns: the PersistentVolumes and the directories behind them. May import: addresses, api, paths, report.
Invariant: a bound volume is never emptied; a recycled one is empty before it can be claimed again.
"""

from __future__ import annotations

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
    return "---\n".join([(MANIFESTS / "base.yaml").read_text(), *(manifest(volume, paths) for volume in VOLUMES)])


def manifest(volume: Volume, paths: Paths) -> str:
    template = string.Template((MANIFESTS / "volume.yaml").read_text())
    # A JSON string is a YAML string too, whatever the path contains.
    path = json.dumps(str(paths.volumes / volume.directory))
    return template.substitute(name=volume.name, size=volume.size, mode=volume.mode, path=path, node=NODE_NAME)


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
    free = [volume for volume in VOLUMES if volume.name not in bound]
    if free:
        names = [volume.name for volume in free]
        api.kubectl(paths, "delete", "persistentvolume", "--ignore-not-found", "--wait=true", "--timeout=30s", *names)
    for volume in free:
        shutil.rmtree(paths.volumes / volume.directory, ignore_errors=True)
        _make_directory(paths.volumes / volume.directory)
    apply(paths)
    say(f"{len(free)} volumes are empty and available")
    return sorted(bound)


def _bound(paths: Paths) -> set[str]:
    listed: dict[str, Any] = json.loads(api.kubectl(paths, "get", "persistentvolume", "--output=json"))
    return {item["metadata"]["name"] for item in listed["items"] if item["status"]["phase"] == "Bound"}
