"""Debian packages and kernel modules the node and the image build need.

Owns: their list and their installation. May import: report.
Invariant: only what is missing is installed, and never an upgrade of something else on purpose.
"""

from __future__ import annotations

import subprocess

from dev.kube.report import FETCH_ATTEMPTS, run_with_progress, say

NEEDED = (
    "containerd", "runc", "containernetworking-plugins", "buildah", "iptables", "conntrack", "debootstrap", "openssl",
    "iproute2", "ca-certificates", "kmod", "skopeo",
)  # fmt: skip
MODULES = ("overlay", "br_netfilter")


def missing() -> list[str]:
    return [name for name in NEEDED if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    query = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True
    )
    return query.returncode == 0 and query.stdout == "install ok installed"


def install() -> None:
    """Install what is missing; a second call does nothing."""
    if absent := missing():
        say(f"installing {' '.join(absent)}")
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2"]
        run_with_progress([*apt, "update"], lambda _: "apt-get update", attempts=FETCH_ATTEMPTS)
        command = [*apt, "install", "--yes", "--no-install-recommends", *absent]
        run_with_progress(
            command, lambda lines: f"apt-get install: {lines} lines", attempts=FETCH_ATTEMPTS
        )
    for module in MODULES:
        # built into many kernels; preflight has checked
        subprocess.run(["modprobe", module], capture_output=True)
