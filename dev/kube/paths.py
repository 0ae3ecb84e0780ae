"""Where the local cluster keeps its files.

Owns: the layout of the cache directory. May import: the standard library. Invariant: everything
lives under one cache directory of the user, never in the checkout and never in ~/.kube.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
MODULES = HERE / "modules"
MANIFESTS = HERE / "manifests"


def cache_directory(environment: Mapping[str, str]) -> Path:
    """MAGNETAR_CACHE, else the user's cache directory as the XDG base directory specification
    names it."""
    if chosen := environment.get("MAGNETAR_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "magnetar"


@dataclass(frozen=True)
class Paths:
    """Every path the tools write, derived from the cache directory."""

    cache: Path

    @classmethod
    def from_environment(cls) -> Paths:
        return cls(cache_directory(os.environ))

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def cluster(self) -> Path:
        return self.cache / "cluster"

    @property
    def kubeconfig(self) -> Path:
        return self.cluster / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.cluster / "certificates"

    @property
    def configuration(self) -> Path:
        return self.cluster / "configuration"

    @property
    def processes(self) -> Path:
        return self.cluster / "processes"

    @property
    def logs(self) -> Path:
        return self.cluster / "logs"

    @property
    def volumes(self) -> Path:
        return self.cluster / "volumes"

    @property
    def saved_sysctls(self) -> Path:
        return self.cluster / "sysctls.json"

    @property
    def lock(self) -> Path:
        return self.cache / "cluster.lock"

    @property
    def containerd_socket(self) -> Path:
        return self.cluster / "containerd.sock"

    @property
    def containerd_root(self) -> Path:
        return self.cluster / "containerd"

    @property
    def containerd_state(self) -> Path:
        return self.cluster / "containerd-state"

    @property
    def kubelet(self) -> Path:
        return self.cluster / "kubelet"

    @property
    def network_plugin_state(self) -> Path:
        return self.cluster / "cni"

    def make_private_directories(self) -> None:
        """Create the state directory, readable by its owner only."""
        private = (
            self.cluster, self.certificates, self.configuration, self.processes, self.logs, self.volumes,
            self.containerd_root, self.containerd_state, self.kubelet, self.network_plugin_state,
        )  # fmt: skip
        for directory in private:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            directory.chmod(0o700)
