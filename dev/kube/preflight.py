"""What the machine must offer, checked before anything is touched.

Owns: the table `up` prints first. May import: addresses, binaries, network, packages, paths,
report, versions.
Invariant: every row that is not fine says what will happen or what to do about it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dev.kube import binaries, network, packages
from dev.kube.addresses import BRIDGE, BRIDGE_IP, LISTENERS, POD_RANGE, SERVICE_RANGE
from dev.kube.paths import Paths
from dev.kube.report import CommandFailed, run_quietly, table
from dev.kube.versions import GO_MINIMUM, NODE_PROGRAMS, PROGRAMS

FREE_DISK_GIB_MIN = 12
"""What building the programs, the images and the node takes."""
FREE_DISK_RUNNING_GIB_MIN = 3
"""What a node that runs takes for images of another checkout."""
FREE_MEMORY_MIB_MIN = 3072
CAP_SYS_RESOURCE = 24


class State(Enum):
    """How a row stands."""

    OK = "ok"
    WILL = "will do"
    NOTE = "note"
    MISSING = "MISSING"


@dataclass(frozen=True)
class Row:
    """One thing checked."""

    check: str
    state: State
    detail: str
    remedy: str = ""


def rows(paths: Paths, *, node_is_up: bool) -> list[Row]:
    """All checks; a running node of our own owns its ports and chains."""
    found = [
        _root(),
        _debian(),
        *_packages(),
        _go(),
        _programs(paths),
        _disk(paths, FREE_DISK_RUNNING_GIB_MIN if node_is_up else FREE_DISK_GIB_MIN),
        _memory(),
        _cgroups(),
    ]
    found += [_overlay(), _bridge_filter(), _forwarding(), _oom_capability(), *_proxy()]
    if not node_is_up:
        found += [*_ports(), _ranges(), _foreign_cluster(paths)]
    return found


def render(found: list[Row]) -> str:
    cells = [(row.check, row.state.value, row.detail, row.remedy) for row in found]
    return table(cells, ("CHECK", "STATE", "FOUND", "WHAT TO DO"))


def blockers(found: list[Row]) -> list[Row]:
    return [row for row in found if row.state is State.MISSING]


def _root() -> Row:
    if os.geteuid() == 0:
        return Row("root", State.OK, "running as root")
    remedy = (
        "run it with sudo -E, or set CONTEXT to a cluster you have (kind, k3d, minikube, a cloud)"
    )
    return Row("root", State.MISSING, f"user id {os.geteuid()}", remedy)


def _debian() -> Row:
    if shutil.which("apt-get") and shutil.which("dpkg-query"):
        return Row("Debian", State.OK, "apt-get found")
    remedy = "use CONTEXT with any other cluster; this tool knows Debian and Ubuntu only"
    return Row("Debian", State.MISSING, "no apt-get", remedy)


def _packages() -> list[Row]:
    if shutil.which("dpkg-query") is None:
        return []
    missing = packages.missing()
    present = Row(
        "packages",
        State.OK,
        f"{len(packages.NEEDED) - len(missing)} of {len(packages.NEEDED)} installed",
    )
    return [
        present,
        *(Row(f"package {name}", State.WILL, "not installed", "will install") for name in missing),
    ]


def _go() -> Row:
    minimum = ".".join(str(part) for part in GO_MINIMUM)
    version = binaries.go_version()
    if version is None:
        return Row(
            "Go",
            State.MISSING,
            "not installed",
            f"install Go {minimum} or newer (go.dev/doc/install)",
        )
    found = ".".join(str(part) for part in version)
    if version < GO_MINIMUM:
        return Row(
            "Go", State.MISSING, found, f"install Go {minimum} or newer (go.dev/doc/install)"
        )
    return Row("Go", State.OK, found)


def _programs(paths: Paths) -> Row:
    missing = [name for name in NODE_PROGRAMS if binaries.cached(name, paths) is None]
    if not missing:
        return Row("programs", State.OK, f"{len(NODE_PROGRAMS)} built: {paths.binaries}")
    listed = ", ".join(f"{name} {PROGRAMS[name].version}" for name in missing)
    remedy = f"will build {listed} (all of them: 6 min on 2 idle cores)"
    return Row("programs", State.WILL, f"{len(missing)} not built yet", remedy)


def _disk(paths: Paths, needed_gib: int) -> Row:
    existing = next(path for path in (paths.cache, *paths.cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free // 2**30
    if free >= needed_gib:
        return Row("free disk", State.OK, f"{free} GiB at {existing}")
    remedy = f"free {needed_gib} GiB, or set MAGNETAR_CACHE to a larger disk"
    return Row("free disk", State.MISSING, f"{free} GiB at {existing}", remedy)


def _memory() -> Row:
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    available = int(found[1]) // 1024 if found else 0
    if available >= FREE_MEMORY_MIB_MIN:
        return Row("free memory", State.OK, f"{available} MiB")
    return Row(
        "free memory",
        State.NOTE,
        f"{available} MiB",
        f"a node and a few pods want {FREE_MEMORY_MIB_MIN} MiB",
    )


def _cgroups() -> Row:
    mounts = Path("/proc/mounts").read_text()
    has_v1 = re.search(r" cgroup \S*\bmemory\b", mounts) is not None
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    if controllers.exists() and {"cpu", "memory", "pids"} <= set(controllers.read_text().split()):
        return Row("cgroups", State.OK, "version 2")
    if has_v1:
        return Row("cgroups", State.OK, "version 1")
    return Row("cgroups", State.MISSING, "no memory controller", "mount the cgroup file systems")


def _overlay() -> Row:
    if "\toverlay\n" in Path("/proc/filesystems").read_text():
        return Row("overlay file system", State.OK, "in the kernel")
    return Row("overlay file system", State.WILL, "not loaded", "will run modprobe overlay")


def _bridge_filter() -> Row:
    if network.sysctl_path("net.bridge.bridge-nf-call-iptables").exists():
        return Row("bridge filter", State.OK, "br_netfilter is in the kernel")
    return Row("bridge filter", State.WILL, "not loaded", "will run modprobe br_netfilter")


def _forwarding() -> Row:
    value = network.sysctl_path("net.ipv4.ip_forward").read_text().strip()
    if value == "1":
        return Row("IP forwarding", State.OK, "on")
    return Row(
        "IP forwarding", State.WILL, "off", "will switch it on; `down` switches it off again"
    )


def _oom_capability() -> Row:
    found = re.search(r"CapEff:\s+([0-9a-f]+)", Path("/proc/self/status").read_text())
    if found and int(found[1], 16) >> CAP_SYS_RESOURCE & 1:
        return Row("CAP_SYS_RESOURCE", State.OK, "present")
    return Row(
        "CAP_SYS_RESOURCE", State.OK, "absent; containerd is configured not to lower oom_score_adj"
    )


def _proxy() -> list[Row]:
    proxied = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    excluded = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if not proxied or BRIDGE_IP in excluded:
        return []
    return [
        Row(
            "proxy",
            State.NOTE,
            "HTTPS_PROXY is set",
            f"add {BRIDGE_IP} to NO_PROXY for kubectl and helm",
        )
    ]


def _ports() -> list[Row]:
    try:
        listening = run_quietly(["ss", "-Hlntup"])
    except CommandFailed:
        return [
            Row("ports", State.NOTE, "ss is not installed yet", "checked again on the next start")
        ]
    taken = [
        row
        for listener in LISTENERS
        for row in port_rows(listening, listener.address, listener.port)
    ]
    return taken or [Row("ports", State.OK, f"{len(LISTENERS)} needed, all free")]


def port_rows(listening: str, address: str, port: int) -> list[Row]:
    """Who, in the output of `ss -Hlntup`, holds this address or the wildcard."""
    found: dict[str, Row] = {}
    for line in listening.splitlines():
        local = line.split()[4]
        host, _, number = local.rpartition(":")
        if number != str(port) or host.split("%")[0] not in (address, "0.0.0.0", "*", "[::]"):
            continue
        owner = re.search(r'\("([^"]+)",pid=(\d+)', line)
        who = f"{owner[1]} (pid {owner[2]})" if owner else "a process of another user or namespace"
        remedy = (
            f"stop it (kill {owner[2]}) or move it to another port"
            if owner
            else "find it with ss -lntup"
        )
        found[who] = Row(f"port {address}:{port}", State.MISSING, f"in use by {who}", remedy)
    return list(found.values())


def _ranges() -> Row:
    try:
        routes = json.loads(run_quietly(["ip", "-j", "route"]) or "[]")
    except CommandFailed:
        return Row(
            "address ranges",
            State.NOTE,
            "ip is not installed yet",
            "checked again on the next start",
        )
    taken = [f"{route['dst']} on {route.get('dev', '?')}" for route in routes if _overlaps(route)]
    if taken:
        remedy = "bring that interface down, or set CONTEXT to another cluster"
        return Row("address ranges", State.MISSING, f"in use: {', '.join(taken)}", remedy)
    return Row("address ranges", State.OK, f"{POD_RANGE} and {SERVICE_RANGE} are free")


def _overlaps(route: dict[str, str]) -> bool:
    if route["dst"] == "default" or route.get("dev") == BRIDGE:
        return False
    destination = ipaddress.ip_network(route["dst"], strict=False)
    return any(
        destination.overlaps(ipaddress.ip_network(ours)) for ours in (POD_RANGE, SERVICE_RANGE)
    )


def _foreign_cluster(paths: Paths) -> Row:
    chains = [] if network.changes_pending(paths) else network.foreign_chains()
    if not chains:
        return Row("other clusters", State.OK, "no other kube-proxy's rules on this host")
    remedy = "another Kubernetes runs on this host: use it with CONTEXT"
    return Row("other clusters", State.MISSING, f"{len(chains)} kube-proxy chains", remedy)
