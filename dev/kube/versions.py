"""The programs the node is made of, and their versions.

Owns: the version table. May import: the standard library.
Invariant: each version here is the one its go.mod under `modules/` requires (a test compares them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KUBERNETES = "1.34.4"
ETCD = "3.6.5"
COREDNS = "1.13.1"
HELM = "3.19.5"
PAUSE = "1"
GO_MINIMUM = (1, 26)
NODE = "node"
"""The module of all programs but pause: what they share, four fifths of all packages, is then
compiled once."""


@dataclass(frozen=True)
class Program:
    """One Go program: what to build, from which module of ours, and the version its cache entry
    carries; `source` is the module that brings it."""

    name: str
    version: str
    module: str
    package: str
    source: str = ""

    @property
    def cache_key(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def built_as(self) -> str:
        """The name that Go gives it: that of its package, without the version of a module."""
        parts = self.package.split("/")
        return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def _kubernetes(name: str) -> Program:
    return Program(name, KUBERNETES, NODE, f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes")


def stamps() -> str:
    """Linker flags that tell programs their version; one that has no such variable ignores it."""
    major, minor, _ = KUBERNETES.split(".")
    # Without these the API server reports v0.0.0 and clients misjudge it.
    fields = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    values = {f"k8s.io/component-base/version.{name}": value for name, value in fields.items()}
    values["helm.sh/helm/v3/internal/version.version"] = f"v{HELM}"
    return " ".join(f"-X {name}={value}" for name, value in values.items())


_TABLE = (
    Program("pause", PAUSE, "pause", "magnetar.local/pause"),
    Program("etcd", ETCD, NODE, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    Program("etcdctl", ETCD, NODE, "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdctl/v3"),
    Program("helm", HELM, NODE, "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3"),
    _kubernetes("kubectl"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Program("coredns", COREDNS, NODE, "magnetar.local/node/coredns", "github.com/coredns/coredns"),
)
PROGRAMS: dict[str, Program] = {program.name: program for program in _TABLE}

NODE_PROGRAMS = tuple(name for name in PROGRAMS if name not in ("etcdctl", "helm"))
"""What `up` needs; helm and etcdctl are built when a command needs them."""
