"""The node's daemons and their command lines.

Owns: what each component is started with. May import: addresses, configuration, paths. Invariant:
pure text building; equal input gives an equal command, so that an unchanged component is never
restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dev.kube import addresses as net
from dev.kube.configuration import client_configuration
from dev.kube.paths import CHECKOUT, Paths


@dataclass(frozen=True)
class Component:
    """A daemon to run: its command and the files whose change must restart it."""

    name: str
    argv: tuple[str, ...]
    inputs: tuple[Path, ...] = ()


def _flags(program: Path | str, flags: Mapping[str, object]) -> tuple[str, ...]:
    return (str(program), *(f"--{name}={value}" for name, value in flags.items()))


def etcd(paths: Paths, program: Path) -> Component:
    pki = paths.certificates
    identity = {
        "cert-file": pki / "etcd.crt",
        "key-file": pki / "etcd.key",
        "trusted-ca-file": pki / "etcd-ca.crt",
    }
    flags: dict[str, object] = {
        "name": net.NODE_NAME,
        "data-dir": paths.cluster / "etcd",
        "listen-client-urls": net.ETCD_URL,
        "advertise-client-urls": net.ETCD_URL,
        "listen-peer-urls": net.ETCD_PEER_URL,
        "initial-advertise-peer-urls": net.ETCD_PEER_URL,
        "initial-cluster": f"{net.NODE_NAME}={net.ETCD_PEER_URL}",
        "log-level": "warn",
        # A throw-away cluster: speed over surviving a power cut of the developer's machine.
        "unsafe-no-fsync": "true",
        "client-cert-auth": "true",
        "peer-client-cert-auth": "true",
        **identity,
        **{f"peer-{name}": value for name, value in identity.items()},
    }
    return Component("etcd", _flags(program, flags))


def api_server(paths: Paths, program: Path) -> Component:
    pki = paths.certificates
    flags: dict[str, object] = {
        "bind-address": net.BRIDGE_IP,
        "advertise-address": net.BRIDGE_IP,
        "endpoint-reconciler-type": "lease",
        "authorization-mode": "Node,RBAC",
        "anonymous-auth": "false",
        "allow-privileged": "true",
        "service-cluster-ip-range": net.SERVICE_RANGE,
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "etcd-servers": net.ETCD_URL,
        "etcd-cafile": pki / "etcd-ca.crt",
        "etcd-certfile": pki / "apiserver-etcd-client.crt",
        "etcd-keyfile": pki / "apiserver-etcd-client.key",
        "kubelet-client-certificate": pki / "apiserver-kubelet-client.crt",
        "kubelet-client-key": pki / "apiserver-kubelet-client.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "service-accounts.pub",
        "service-account-signing-key-file": pki / "service-accounts.key",
        "enable-admission-plugins": "NodeRestriction",
        "shutdown-delay-duration": "0s",
    }
    return Component("kube-apiserver", _flags(program, flags))


def controller_manager(paths: Paths, program: Path) -> Component:
    pki = paths.certificates
    flags: dict[str, object] = {
        "bind-address": net.LOOPBACK,
        "kubeconfig": client_configuration(paths, "controller-manager"),
        "authentication-kubeconfig": client_configuration(paths, "controller-manager"),
        "authorization-kubeconfig": client_configuration(paths, "controller-manager"),
        "tls-cert-file": pki / "controller-manager.crt",
        "tls-private-key-file": pki / "controller-manager.key",
        "client-ca-file": pki / "ca.crt",
        "root-ca-file": pki / "ca.crt",
        "service-account-private-key-file": pki / "service-accounts.key",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "allocate-node-cidrs": "false",
    }
    return Component("kube-controller-manager", _flags(program, flags))


def scheduler(paths: Paths, program: Path) -> Component:
    pki = paths.certificates
    flags: dict[str, object] = {
        "bind-address": net.LOOPBACK,
        "kubeconfig": client_configuration(paths, "scheduler"),
        "authentication-kubeconfig": client_configuration(paths, "scheduler"),
        "authorization-kubeconfig": client_configuration(paths, "scheduler"),
        "tls-cert-file": pki / "scheduler.crt",
        "tls-private-key-file": pki / "scheduler.key",
        "client-ca-file": pki / "ca.crt",
        "leader-elect": "false",
    }
    return Component("kube-scheduler", _flags(program, flags))


def containerd(paths: Paths) -> Component:
    configuration = paths.configuration / "containerd.toml"
    return Component("containerd", ("containerd", "--config", str(configuration)), (configuration,))


def kubelet(paths: Paths, program: Path) -> Component:
    configuration = paths.configuration / "kubelet.json"
    flags: dict[str, object] = {
        "config": configuration,
        "kubeconfig": client_configuration(paths, "kubelet"),
        "root-dir": paths.kubelet,
        "hostname-override": net.NODE_NAME,
        "node-ip": net.BRIDGE_IP,
    }
    return Component("kubelet", _flags(program, flags), (configuration,))


def proxy(paths: Paths, program: Path) -> Component:
    configuration = paths.configuration / "kube-proxy.json"
    return Component("kube-proxy", _flags(program, {"config": configuration}), (configuration,))


def dns(paths: Paths, program: Path) -> Component:
    configuration = paths.configuration / "Corefile"
    return Component("coredns", (str(program), "-conf", str(configuration)), (configuration,))


def reclaimer(paths: Paths) -> Component:
    """Empties volumes whose claims were deleted, as the provisioner of a storage class would."""
    environment = ("/usr/bin/env", f"PYTHONPATH={CHECKOUT}", f"MAGNETAR_CACHE={paths.cache}")
    return Component("reclaimer", (*environment, "python3", "-m", "dev.kube", "reclaim-volumes"))


def node(paths: Paths, programs: Mapping[str, Path]) -> tuple[Component, ...]:
    """All components in the order they start."""
    builders: tuple[tuple[str, Callable[[Paths, Path], Component]], ...] = (
        ("etcd", etcd), ("kube-apiserver", api_server), ("kube-controller-manager", controller_manager),
        ("kube-scheduler", scheduler), ("kubelet", kubelet), ("kube-proxy", proxy), ("coredns", dns),
    )  # fmt: skip
    return (
        containerd(paths),
        *(build(paths, programs[name]) for name, build in builders),
        reclaimer(paths),
    )


COMPONENT_NAMES = (
    "containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
    "coredns", "reclaimer",
)  # fmt: skip
