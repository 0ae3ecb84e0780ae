"""The programs the node is made of, and their versions.

Owns: the version table. May import: the standard library.
Invariant: each version here is the one its go.mod under `modules/` requires (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass

KUBERNETES = "1.34.4"
ETCD = "3.6.5"
COREDNS = "1.15.0"
HELM = "3.22.0"
PAUSE = "1"
GO_MINIMUM = (1, 26)


@dataclass(frozen=True)
class Program:
    """One Go program: what to build, from which module of ours, and the version its cache entry carries."""

    name: str
    version: str
    module: str
    package: str
    linker_flags: str = ""

    @property
    def cache_key(self) -> str:
        return f"{self.name}-{self.version}"


def _kubernetes(name: str) -> Program:
    major, minor, _ = KUBERNETES.split(".")
    # Without these the API server reports v0.0.0 and clients misjudge it.
    stamps = (("gitVersion", f"v{KUBERNETES}"), ("gitMajor", major), ("gitMinor", minor))
    flags = " ".join(f"-X k8s.io/component-base/version.{field}={value}" for field, value in stamps)
    return Program(name, KUBERNETES, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", flags)


_TABLE = (
    Program("pause", PAUSE, "pause", "magnetar.local/pause"),
    Program("etcd", ETCD, "etcd", "go.etcd.io/etcd/server/v3"),
    Program("etcdctl", ETCD, "etcd", "go.etcd.io/etcd/etcdctl/v3"),
    Program("helm", HELM, "helm", "helm.sh/helm/v3/cmd/helm", f"-X helm.sh/helm/v3/internal/version.version=v{HELM}"),
    _kubernetes("kubectl"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Program("coredns", COREDNS, "coredns", "github.com/coredns/coredns"),
)
PROGRAMS: dict[str, Program] = {program.name: program for program in _TABLE}

NODE_PROGRAMS = tuple(name for name in PROGRAMS if name not in ("etcdctl", "helm"))
"""What `up` needs; helm and etcdctl are built when somebody asks for them."""
