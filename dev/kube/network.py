"""The node's bridge, kernel settings and packet filter rules.

Owns: `cni0`, our iptables chains, and the kernel settings the node changes. May import: addresses,
paths, processes, report. Invariant: what `prepare` and the daemons changed, `restore` undoes:
settings get their previous values back and only rules of this cluster are removed (`up` refuses to
run beside another cluster's kube-proxy, so KUBE-* chains are ours).
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dev.kube.addresses import BRIDGE, BRIDGE_IP, POD_RANGE
from dev.kube.paths import Paths
from dev.kube.processes import boot
from dev.kube.report import CommandFailed, run_quietly

FORWARD_CHAIN = "MAGNETAR-FORWARD"
CHAIN_PREFIXES = ("KUBE-", "CNI-", FORWARD_CHAIN)
NEEDED_SYSCTLS = {"net.ipv4.ip_forward": "1", "net.bridge.bridge-nf-call-iptables": "1"}
# The kubelet and kube-proxy set these themselves.
TOUCHED_SYSCTLS = (
    *NEEDED_SYSCTLS, "vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes", "net.ipv4.conf.all.route_localnet",
)  # fmt: skip
PLUGIN_RESULTS = Path("/var/lib/cni/results")


def sysctl_path(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def prepare(paths: Paths) -> None:
    """Settings, bridge and the rules that let pods reach each other; safe to repeat."""
    _save_sysctls(paths)
    for name, value in NEEDED_SYSCTLS.items():
        path = sysctl_path(name)
        if path.exists() and path.read_text().strip() != value:
            path.write_text(value)
    _make_bridge()
    _allow_forwarding()


def restore(paths: Paths) -> None:
    """Remove the bridge, the rules and the plug-ins' leftovers, and put the settings back."""
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
    for family in ("iptables", "ip6tables"):
        remove_rules(family)
    _remove_plugin_results(paths)
    _restore_sysctls(paths)


def _remove_plugin_results(paths: Paths) -> None:
    """The plug-ins keep results in one fixed place; ours name a sandbox below our state
    directory."""
    for result in PLUGIN_RESULTS.glob("*"):
        if f"{paths.cluster}/" in result.read_text(errors="replace"):
            result.unlink()
    for directory in (PLUGIN_RESULTS, PLUGIN_RESULTS.parent):
        with contextlib.suppress(OSError):  # absent, or in use
            directory.rmdir()


def bridge_exists() -> bool:
    return Path("/sys/class/net", BRIDGE).exists()


def _make_bridge() -> None:
    """Before any pod: the kubelet refuses a loopback node address, so the node continues the
    bridge."""
    if not bridge_exists():
        run_quietly(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run_quietly(["ip", "addr", "replace", f"{BRIDGE_IP}/24", "dev", BRIDGE])
    run_quietly(["ip", "link", "set", BRIDGE, "up"])


def _allow_forwarding() -> None:
    """Docker and some firewalls drop forwarded packets by default, bridged pod traffic included."""
    rules = [
        "*filter",
        f":{FORWARD_CHAIN} - [0:0]",
        f"-A {FORWARD_CHAIN} -i {BRIDGE} -j ACCEPT",
        f"-A {FORWARD_CHAIN} -o {BRIDGE} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ]
    jump = (
        ["FORWARD", "-s", POD_RANGE, "-j", FORWARD_CHAIN],
        ["FORWARD", "-d", POD_RANGE, "-j", FORWARD_CHAIN],
    )
    run_quietly(["iptables-restore", "--noflush"], text_input="\n".join([*rules, "COMMIT", ""]))
    for rule in jump:
        if subprocess.run(["iptables", "-C", *rule], capture_output=True).returncode != 0:
            run_quietly(["iptables", "-I", *rule])


def foreign_chains() -> list[str]:
    """Another cluster's kube-proxy chains; meaningful only while our own node is down."""
    try:
        saved = run_quietly(["iptables-save"])
    except CommandFailed:
        return []
    return sorted(set(re.findall(r"^:(KUBE-[\w-]+)", saved, re.MULTILINE)))


def remove_rules(family: str) -> None:
    """Remove our chains and the jumps to them, one atomic transaction per table."""
    try:
        saved = run_quietly([f"{family}-save"])
    except CommandFailed:
        return
    if script := removal_script(saved):
        run_quietly([f"{family}-restore", "--noflush"], text_input=script)


def removal_script(saved: str) -> str:
    """An iptables-restore script that removes our chains from what iptables-save printed; empty
    if there are none."""
    tables: list[str] = []
    for block in re.findall(r"^\*(\w+)\n(.*?)^COMMIT", saved, re.MULTILINE | re.DOTALL):
        table, lines = block[0], block[1].splitlines()
        chains = [line[1:].split()[0] for line in lines if line.startswith(":")]
        ours = [chain for chain in chains if chain.startswith(CHAIN_PREFIXES)]
        if ours:
            tables += [f"*{table}", *_removals(lines, ours), "COMMIT"]
    return "\n".join([*tables, ""]) if tables else ""


def _removals(lines: Iterable[str], ours: list[str]) -> list[str]:
    def jumps_to_ours(rule: str) -> bool:
        target = re.search(r" -[jg] (\S+)", rule)
        return target is not None and target[1] in ours

    foreign = [line for line in lines if line.startswith("-A ") and line.split()[1] not in ours]
    jumps = [f"-D {rule.removeprefix('-A ')}" for rule in foreign if jumps_to_ours(rule)]
    # Flush all before deleting any: chains refer to each other.
    return [*jumps, *(f"-F {chain}" for chain in ours), *(f"-X {chain}" for chain in ours)]


def changes_pending(paths: Paths) -> bool:
    """Whether this boot of the machine carries changes of ours that `down` has yet to undo."""
    return _saved(paths) is not None


def _save_sysctls(paths: Paths) -> None:
    """Remember the user's values once, on the way up from a clean machine."""
    if _saved(paths) is not None:
        return
    values = {
        name: sysctl_path(name).read_text().strip()
        for name in TOUCHED_SYSCTLS
        if sysctl_path(name).exists()
    }
    paths.saved_sysctls.write_text(json.dumps({"boot": boot(), "values": values}))


def _saved(paths: Paths) -> dict[str, str] | None:
    """The values of this boot; a reboot has undone everything already."""
    try:
        content = json.loads(paths.saved_sysctls.read_text())
        values: dict[str, str] = content["values"]
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return values if content["boot"] == boot() else None


def _restore_sysctls(paths: Paths) -> None:
    for name, value in (_saved(paths) or {}).items():
        path = sysctl_path(name)
        if path.exists() and path.read_text().strip() != value:
            path.write_text(value)
    paths.saved_sysctls.unlink(missing_ok=True)
