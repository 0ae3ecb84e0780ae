"""Bringing the node up, down, and telling how it is.

Owns: the order of things. May import: everything else in this package. Invariants: `up` on a
running node changes nothing, on a damaged one it repairs what is dead; two commands at once are
serialised by a lock; `down` works from any half-started state.
"""

from __future__ import annotations

import fcntl
import http.client
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.kube import (
    api,
    binaries,
    certificates,
    components,
    configuration,
    containers,
    network,
    packages,
    preflight,
    processes,
    volumes,
)
from dev.kube.components import COMPONENT_NAMES, Component
from dev.kube.paths import Paths
from dev.kube.report import say, table
from dev.kube.versions import NODE_PROGRAMS

READY_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.1
REPORT_SECONDS = 8.0
LOG_LINES_SHOWN = 15
CLOCK_SLACK_SECONDS = 1.0  # the API keeps whole seconds, rounded down


class NotReady(RuntimeError):
    """The machine or a component is not able to run the node; the message says what to do."""


@contextmanager
def exclusive(paths: Paths) -> Iterator[None]:
    """One command at a time changes the node."""
    paths.lock.parent.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that changes the local cluster")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(paths: Paths) -> None:
    with exclusive(paths):
        if is_healthy(paths):
            say(f"already running: {paths.kubeconfig}")
            return
        programs = _prepare_machine(paths)
        _boot(paths, programs)


def _prepare_machine(paths: Paths) -> dict[str, Path]:
    node_is_up = is_running(paths)
    found = preflight.rows(paths, node_is_up=node_is_up)
    say(preflight.render(found))
    if blockers := preflight.blockers(found):
        raise NotReady("; ".join(f"{row.check}: {row.detail} -> {row.remedy}" for row in blockers))
    programs = _build_and_install(paths)
    if not node_is_up and (late := preflight.blockers(preflight.rows(paths, node_is_up=False))):
        # ss and ip may only just have been installed.
        raise NotReady("; ".join(f"{row.check}: {row.detail} -> {row.remedy}" for row in late))
    return programs


def _build_and_install(paths: Paths) -> dict[str, Path]:
    """Compiling takes longest, so it begins first and the packages are installed concurrently."""
    failures: list[BaseException] = []

    def build() -> None:
        try:
            binaries.ensure(NODE_PROGRAMS, paths)
        except BaseException as error:  # handed to the caller below
            failures.append(error)

    builder = threading.Thread(target=build, daemon=True)
    builder.start()
    packages.install()
    builder.join()
    if failures:
        raise failures[0]
    return binaries.ensure(NODE_PROGRAMS, paths)


def _boot(paths: Paths, programs: dict[str, Path]) -> None:
    started = time.monotonic()
    paths.make_private_directories()
    certificates.ensure(paths.certificates)
    configuration.write(paths)
    network.prepare(paths)
    by_name = {component.name: component for component in components.node(paths, programs)}
    for name in ("containerd", "etcd", "kube-apiserver"):
        _start(by_name.pop(name), paths)
    _wait(paths, "containerd", "containerd answers", lambda: containers.is_ready(paths))
    containers.load_pause(paths)
    _wait(paths, "kube-apiserver", "API server is ready", lambda: api.server_ready(paths))
    for component in by_name.values():
        _start(component, paths)
    volumes.apply(paths)
    _wait(paths, "kubelet", "node is ready", lambda: _node_ready(paths))
    say(f"node Ready in {time.monotonic() - started:.1f} s")
    _wait_for_services(paths)
    if dead := sorted(set(COMPONENT_NAMES) - set(_running(paths))):
        raise NotReady("\n".join(f"{name} has ended:\n{_log_end(paths, name)}" for name in dead))
    say(f"pods can start after {time.monotonic() - started:.1f} s; KUBECONFIG={paths.kubeconfig}")


def _wait_for_services(paths: Paths) -> None:
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait(
        paths,
        "kube-controller-manager",
        "service account exists",
        lambda: api.exists(paths, account),
    )
    _wait(paths, "kube-proxy", "services are routed", lambda: _answers(10256, "/healthz"))
    _wait(paths, "coredns", "DNS answers", lambda: _answers(18181, "/ready"))


def _answers(port: int, path: str) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


def _pid_file(paths: Paths, name: str) -> Path:
    return paths.processes / f"{name}.json"


def _log(paths: Paths, name: str) -> Path:
    return paths.logs / f"{name}.log"


def _start(component: Component, paths: Paths) -> None:
    """Start a component unless it runs already with this very command and configuration."""
    pid_file = _pid_file(paths, component.name)
    digest = processes.command_digest(component.argv, component.inputs)
    record = processes.running(pid_file)
    if record is not None and record.command == digest:
        return
    if record is not None:
        say(f"restarting {component.name}: its configuration changed")
        processes.stop(pid_file)
    log = _log(paths, component.name)
    processes.start(component.argv, pid_file=pid_file, log=log, digest=digest, cwd=paths.cluster)


def _wait(paths: Paths, name: str, what: str, check: Callable[[], bool]) -> None:
    started = reported = time.monotonic()
    while not check():
        now = time.monotonic()
        if processes.running(_pid_file(paths, name)) is None:
            raise NotReady(f"{name} has ended:\n{_log_end(paths, name)}")
        if now - started > READY_TIMEOUT_SECONDS:
            raise NotReady(
                f"not yet true after {READY_TIMEOUT_SECONDS:.0f} s: {what}\n{_log_end(paths, name)}"
            )
        if now - reported > REPORT_SECONDS:
            reported = now
            say(f"  waiting until {what}, {now - started:.0f} s")
        time.sleep(POLL_SECONDS)


def _log_end(paths: Paths, name: str) -> str:
    log = _log(paths, name)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([*(f"  {line}" for line in lines[-LOG_LINES_SHOWN:]), f"  (all of it: {log})"])


def _running(paths: Paths) -> list[str]:
    return [
        name for name in COMPONENT_NAMES if processes.running(_pid_file(paths, name)) is not None
    ]


def is_running(paths: Paths) -> bool:
    """Whether any component of ours runs."""
    return bool(_running(paths))


def is_healthy(paths: Paths) -> bool:
    """Every component runs as it would be started now, and the node accepts pods."""
    if len(_running(paths)) < len(COMPONENT_NAMES) or not network.bridge_exists():
        return False
    programs = {name: binaries.cached(name, paths) for name in NODE_PROGRAMS}
    known = {name: path for name, path in programs.items() if path is not None}
    if len(known) < len(programs):
        return False
    configuration.write(paths)
    return all(
        _is_current(component, paths) for component in components.node(paths, known)
    ) and _node_ready(paths)


def _node_ready(paths: Paths) -> bool:
    """Ready by the word of the kubelet that runs now: a dead one's last report stays in the API
    for a while."""
    record = processes.running(_pid_file(paths, "kubelet"))
    used = processes.usage(record) if record is not None else None
    return used is not None and api.node_ready(
        paths, since=time.time() - used.uptime_seconds - CLOCK_SLACK_SECONDS
    )


def _is_current(component: Component, paths: Paths) -> bool:
    record = processes.running(_pid_file(paths, component.name))
    return record is not None and record.command == processes.command_digest(
        component.argv, component.inputs
    )


def down(paths: Paths, *, purge: bool) -> None:
    """Stop everything we started; the objects in etcd and the volumes stay unless purged."""
    with exclusive(paths):
        started = time.monotonic()
        # The kubelet first, or it would start pods again; containerd after its pods; etcd after its
        # only client.
        stopped = [
            name
            for name in reversed(COMPONENT_NAMES)
            if name != "containerd" and _stop(paths, name)
        ]
        pods = containers.kill_pods(paths)
        stopped += ["containerd"] if _stop(paths, "containerd") else []
        containers.unmount_all(paths)
        if network.changes_pending(paths) or stopped:
            containers.remove_cgroups()
            containers.remove_kubelet_leftovers(paths)
            network.restore(paths)
        for directory in (paths.containerd_state, paths.network_plugin_state):
            shutil.rmtree(directory, ignore_errors=True)
        if purge:
            _purge(paths)
        say(
            f"stopped {len(stopped)} components and {pods} pod shims in "
            f"{time.monotonic() - started:.1f} s"
        )


def _stop(paths: Paths, name: str) -> bool:
    return processes.stop(_pid_file(paths, name))


def _purge(paths: Paths) -> None:
    if left := containers.mounts_below(paths.cluster, Path("/proc/self/mountinfo").read_text()):
        raise NotReady(f"not removing {paths.cluster}: still mounted: {', '.join(left)}")
    if paths.cluster.exists():
        shutil.rmtree(paths.cluster)


def status(paths: Paths) -> tuple[bool, str]:
    """Whether the node is ready, and a table of its components."""
    lines = [_status_row(paths, name) for name in COMPONENT_NAMES]
    ready = _node_ready(paths)
    text = table(lines, ("COMPONENT", "STATE", "PID", "MEMORY", "UP FOR", "LOG"))
    return (
        ready,
        f"{text}\n\nnode: {'Ready' if ready else 'not ready'}; kubeconfig: {paths.kubeconfig}",
    )


def _status_row(paths: Paths, name: str) -> tuple[str, ...]:
    record = processes.running(_pid_file(paths, name))
    used = processes.usage(record) if record is not None else None
    log = str(_log(paths, name))
    if record is None or used is None:
        state = "died" if processes.read_record(_pid_file(paths, name)) is not None else "stopped"
        return (name, state, "-", "-", "-", log)
    return (
        name,
        "running",
        str(record.pid),
        f"{used.resident_mib} MiB",
        f"{used.uptime_seconds:.0f} s",
        log,
    )


def load(paths: Paths, archive: Path) -> None:
    if not archive.is_file():
        raise NotReady(f"{archive}: no such archive")
    if processes.running(_pid_file(paths, "containerd")) is None:
        raise NotReady("the local cluster is not running: python3 -m dev.kube up")
    containers.load(paths, archive)
