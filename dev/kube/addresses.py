"""Names, address ranges and ports of the local node.

Owns: every number another file would otherwise repeat. May import: the standard library.
Invariant: every listener is bound to loopback or to the bridge, never to an outside interface.
"""

from __future__ import annotations

from dataclasses import dataclass

NODE_NAME = "magnetar"
NETWORK_NAME = "magnetar"
BRIDGE = "cni0"
BRIDGE_IP = "10.244.0.1"
POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"
LOOPBACK = "127.0.0.1"
API_URL = f"https://{BRIDGE_IP}:6443"
ETCD_URL = f"https://{LOOPBACK}:12379"
ETCD_PEER_URL = f"https://{LOOPBACK}:12380"


@dataclass(frozen=True)
class Listener:
    """A port one component binds."""

    component: str
    address: str
    port: int
    purpose: str


LISTENERS = (
    # Not 2379: tests and users run an etcd of their own there.
    Listener("etcd", LOOPBACK, 12379, "clients"),
    Listener("etcd", LOOPBACK, 12380, "peers"),
    Listener("kube-apiserver", BRIDGE_IP, 6443, "API"),
    Listener("kube-controller-manager", LOOPBACK, 10257, "health"),
    Listener("kube-scheduler", LOOPBACK, 10259, "health"),
    Listener("kubelet", BRIDGE_IP, 10250, "logs and exec"),
    Listener("kubelet", LOOPBACK, 10248, "health"),
    Listener("kube-proxy", LOOPBACK, 10256, "health"),
    Listener("kube-proxy", LOOPBACK, 10249, "metrics"),
    Listener("coredns", BRIDGE_IP, 53, "DNS"),
    Listener("coredns", LOOPBACK, 18181, "health"),
)
