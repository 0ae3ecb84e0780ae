"""`magnetar report`: one file with everything needed to find out what is wrong.

Owns: what is collected and how it is named in the archive. Imports: kubernetes, redaction; tarfile.
Invariants: every part passes through redaction before it is written, and secrets are never asked
for; a part that cannot be had is named in missing.txt with the reason, and the others are collected
all the same; nothing in the cluster is changed.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar import __version__
from magnetar.cli.failures import WrongUsage
from magnetar.cli.kubernetes import Kubernetes, Manifest
from magnetar.cli.redaction import redacted, redacted_text
from magnetar.clock import SystemClock
from magnetar.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar.cli.screen import Screen
    from magnetar_operator.kube.kinds import Resource

PART_OF = "app.kubernetes.io/part-of=magnetar"
OPERATOR = "app.kubernetes.io/name=magnetar,app.kubernetes.io/component=operator"
PARALLEL_MAX = 6
LOG_BYTES_MAX = 5_000_000
PODS_MAX = 60
EXPLAINED_MAX = 5
BROKER_PATHS = {
    "status": "magnetar/v1/status",
    "damage": "magnetar/v1/damage",
    "settings": "admin/v2/brokers/configuration/runtime",
}
ABOUT = """What `magnetar report` collected. Secrets are not in here: Secret objects are never read, and values whose name or form says that they
are secret were removed. Look through it all the same before you pass it on: topic names and addresses are in it.

resources/   the custom resources with their status and conditions     objects/   what the operator made of them
events.json  Kubernetes Events of the namespace                        pods.json  pods: states, restarts, nodes
logs/        the last lines of every container, and of its last incarnation   brokers/   status, damage, settings, metrics, explanations
etcd/        health and metrics of the members                         operator/  its pods and logs
missing.txt  what could not be had, and why
"""


@dataclass(slots=True)
class Archive:
    """Parts by their path in the archive, and what is missing."""

    parts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def document(self, path: str, value: Any) -> None:
        self.parts[path] = json.dumps(redacted(value), indent=1, sort_keys=True)

    def text(self, path: str, value: str) -> None:
        self.parts[path] = value

    def attempt(self, what: str, collect: Callable[[], None]) -> None:
        """Collect one part, or remember why not."""
        try:
            collect()
        except (MagnetarError, ValueError) as error:
            self.missing.append(f"{what}: {' '.join(str(error).split())}")

    def write(self, path: Path, root: str, wall_ms: int) -> None:
        """One compressed file with everything below `root`; a last pass over the text of every
        part takes secrets out of it."""
        with tarfile.open(path, "w:gz") as archive:
            for name, content in sorted(
                {**self.parts, "missing.txt": "\n".join(sorted(self.missing)) + "\n"}.items()
            ):
                data = redacted_text(content).encode()
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), wall_ms // 1000, 0o600
                archive.addfile(entry, io.BytesIO(data))


def run_report(
    kubernetes: Kubernetes,
    screen: Screen,
    path: Path | None,
    operator_namespace: str,
    log_lines: int,
) -> int:
    """Collect, write the file and say where it is; the exit code. Raises Unreachable if
    Kubernetes does not answer."""
    from magnetar_operator.conditions import timestamp

    wall_ms = SystemClock().wall_ms()
    root = f"magnetar-report-{timestamp(wall_ms).replace(':', '')}"
    target = path or Path(f"{root}.tar.gz")
    if not target.parent.is_dir():
        raise WrongUsage(f"--file: {target.parent} is not a directory", "make it first")
    archive = collect(kubernetes, operator_namespace, log_lines, screen.note)
    archive.text("README.txt", ABOUT)
    archive.write(target, root, wall_ms)
    count = len(archive.parts)

    def render() -> None:
        screen.line(
            f"{target}: {count} parts"
            + (
                f"; {len(archive.missing)} could not be had (missing.txt in it says why)"
                if archive.missing
                else ""
            )
        )

    screen.show(
        {"file": str(target), "parts": sorted(archive.parts), "missing": sorted(archive.missing)},
        render,
    )
    return 0


def collect(
    kubernetes: Kubernetes, operator_namespace: str, log_lines: int, note: Callable[[str], None]
) -> Archive:
    """Everything that can be had. Raises Unreachable, or CommandFailed without the `kubernetes`
    package."""
    archive = Archive()
    note("versions and resources")
    from magnetar_operator.kube.kinds import POD

    server = json.loads(kubernetes.raw("/version"))  # fails if the API server does not answer
    versions = {"magnetar": __version__, "kubernetes": {"serverVersion": server}}
    archive.document("versions.json", versions)
    _resources(kubernetes, archive)
    pods: list[Manifest] = []
    archive.attempt("pods", lambda: pods.extend(kubernetes.list(POD, PART_OF)))
    archive.document("pods.json", pods)
    if len(pods) > PODS_MAX:
        archive.missing.append(
            f"logs and metrics of {len(pods) - PODS_MAX} of {len(pods)} pods: the first {PODS_MAX} "
            "are enough to read"
        )
    note(f"logs and metrics of {min(len(pods), PODS_MAX)} pods")
    operators = kubernetes.within(operator_namespace)
    found: list[Manifest] = []
    archive.attempt(
        f"pods of the operator in {operator_namespace}",
        lambda: found.extend(operators.list(POD, OPERATOR)),
    )
    archive.document("operator/pods.json", found)
    with ThreadPoolExecutor(PARALLEL_MAX) as pool:
        jobs = [pool.submit(_pod, kubernetes, archive, pod, log_lines) for pod in pods[:PODS_MAX]]
        jobs += [
            pool.submit(_logs, operators, archive, pod, log_lines, "operator/")
            for pod in found[:PODS_MAX]
            if pod not in pods
        ]
        for job in jobs:
            job.result()
    return archive


def _resources(kubernetes: Kubernetes, archive: Archive) -> None:
    """Custom resources, what was made of them, and the Events about them."""
    from magnetar_operator.kube.kinds import CHILDREN, CUSTOM, EVENT

    def save(path: str, resource: Resource, selector: str = "") -> None:
        archive.attempt(path, lambda: archive.document(path, kubernetes.list(resource, selector)))

    for resource in CUSTOM.values():
        save(f"resources/{resource.plural}.json", resource)
    for resource in CHILDREN:
        save(f"objects/{resource.plural}.json", resource, PART_OF)
    save("events.json", EVENT)


def _pod(kubernetes: Kubernetes, archive: Archive, pod: Manifest, log_lines: int) -> None:
    """Logs of any pod; of brokers and etcd members also what they say of themselves."""
    _logs(kubernetes, archive, pod, log_lines, "")
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    component = pod["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    if component == "broker":
        # A broker with spec.tls.plain Closed has no other port.
        place = (
            f"https:{name}:8443"
            if pod["metadata"]["labels"].get("magnetar.io/plain") == "closed"
            else f"http:{name}:8080"
        )
        _broker(kubernetes, archive, name, f"/api/v1/namespaces/{namespace}/pods/{place}/proxy/")
    elif component == "etcd":
        root = f"/api/v1/namespaces/{namespace}/pods/http:{name}:2381/proxy/"
        for what in ("health", "metrics"):
            archive.attempt(
                f"etcd/{name}/{what}",
                _raw(kubernetes, archive, root + what, f"etcd/{name}/{what}.txt"),
            )


def _raw(kubernetes: Kubernetes, archive: Archive, url: str, path: str) -> Callable[[], None]:
    return lambda: archive.text(path, kubernetes.raw(url))


def _broker(kubernetes: Kubernetes, archive: Archive, name: str, root: str) -> None:
    status: dict[str, Any] = {}

    def document(what: str, path: str) -> Callable[[], None]:
        def run() -> None:
            value = json.loads(kubernetes.raw(root + path))
            archive.document(f"brokers/{name}/{what}.json", value)
            if what == "status":
                status.update(value)

        return run

    for what, path in BROKER_PATHS.items():
        archive.attempt(f"{what} of broker {name}", document(what, path))
    archive.attempt(
        f"metrics of broker {name}",
        lambda: archive.text(
            f"brokers/{name}/metrics.txt", _without_topics(kubernetes.raw(f"{root}metrics"))
        ),
    )
    troubled = [
        row["bundle"]
        for row in status.get("bundles", ())
        if row["state"] not in ("Owned", "Deleted")
    ]
    for bundle in troubled[:EXPLAINED_MAX]:
        what = f"explain {bundle.replace('/', '_')}"
        archive.attempt(
            f"{what} at {name}",
            document(what.replace(" ", "-"), f"magnetar/v1/explain?bundle={bundle}"),
        )


def _without_topics(metrics: str) -> str:
    """Series of single topics are too many for an archive; the others stay."""
    return "".join(line for line in metrics.splitlines(True) if ',topic="' not in line)


def _logs(kubernetes: Kubernetes, archive: Archive, pod: Manifest, lines: int, place: str) -> None:
    """The end of each container's log, and of its last incarnation if it has been restarted."""
    name = pod["metadata"]["name"]
    restarts = {
        item["name"]: item.get("restartCount", 0)
        for item in pod.get("status", {}).get("containerStatuses", ())
    }
    limits = {"tailLines": lines, "limitBytes": LOG_BYTES_MAX}

    def save(container: str, path: str, previous: str = "false") -> Callable[[], None]:
        query = {"container": container, "previous": previous, **limits}
        return lambda: archive.text(path, kubernetes.logs(name, query))

    for container in (item["name"] for item in pod["spec"].get("containers", ())):
        path = f"{place}logs/{name}.{container}"
        archive.attempt(path, save(container, f"{path}.log"))
        if restarts.get(container):
            archive.attempt(f"{path} (previous)", save(container, f"{path}.previous.log", "true"))
