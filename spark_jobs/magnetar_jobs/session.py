"""The Spark session of a job.

Owns: every `spark.*` setting (facts: 3.3), the checks before a JVM is started, and progress lines while it runs.
Imports: pyspark (only when a session is built), structlog, errors.
Invariants: `spark_settings` is pure and gives the same settings for the same arguments; a missing Java, image or pod identity is
reported in words with the remedy before Spark gets a chance to fail with a stack trace; the session is always stopped, which ends
its executors.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from magnetar.errors import InvalidRequest, MagnetarError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
JAVA_MINIMUM = 17
JAVA_REMEDY = "install openjdk-17-jre-headless or set JAVA_HOME"
MEMORY_OVERHEAD_MINIMUM_MIB = 384
MEMORY_OVERHEAD_SHARE = 0.4
PROGRESS_INTERVAL_S = 5.0
ARROW_RECORDS_PER_BATCH_MAX = 10_000
POD_NAME_LENGTH_MAX = 40
DRIVER_MEMORY_MIB = 512


class JavaMissing(MagnetarError):
    """No Java of a sufficient version: Spark cannot start."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a job may be told about where and how large it runs. The Kubernetes fields matter for a `k8s://` master only."""

    name: str
    master: str = "local[2]"
    executors: int = 1
    executor_memory_mib: int = 1024
    executor_cores: int = 1
    executor_cpu: str = ""
    image: str = ""
    namespace: str = "default"
    service_account: str = "magnetar-spark"
    claim: str = ""
    executor_volume_path: str = "/var/lib/magnetar"

    @property
    def on_kubernetes(self) -> bool:
        return self.master.startswith("k8s://")

    @property
    def parallelism(self) -> int:
        """Tasks that can run at the same time."""
        if self.on_kubernetes:
            return self.executors * self.executor_cores
        threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", self.master)
        if threads is None:
            raise InvalidRequest(f"master: {self.master!r} is not offered; use local[N] or k8s://https://host:port")
        return (os.cpu_count() or 1) if threads[1] == "*" else int(threads[1] or 1)


def spark_settings(settings: SessionSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Every Spark setting of a job. `environment` gives POD_IP and POD_NAME on Kubernetes. Raises InvalidRequest naming what
    is absent."""
    values = {
        "spark.app.name": settings.name,
        "spark.master": settings.master,
        # With a local master the driver is the executor; on Kubernetes it only plans and collects a few rows per task.
        "spark.driver.memory": f"{DRIVER_MEMORY_MIB if settings.on_kubernetes else settings.executor_memory_mib}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS_PER_BATCH_MAX),
        "spark.sql.shuffle.partitions": str(max(2, 2 * settings.parallelism)),
        "spark.sql.session.timeZone": "UTC",
        # Output names carry the attempt, so speculation would be safe; it would still write payloads twice for nothing.
        "spark.speculation": "false",
    }
    if settings.on_kubernetes:
        return values | _kubernetes_settings(settings, environment)
    return values | {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _kubernetes_settings(settings: SessionSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Client mode from a pod: executors dial the driver's pod IP and die with its pod."""
    pod_ip, pod_name = _required(environment, "POD_IP"), _required(environment, "POD_NAME")
    if not settings.image:
        raise InvalidRequest("image: a k8s:// master needs --image, the image that the driver itself runs")
    overhead = max(MEMORY_OVERHEAD_MINIMUM_MIB, int(settings.executor_memory_mib * MEMORY_OVERHEAD_SHARE))
    values = {
        # Executors use the bind address since Spark 4.1, so both are the pod's own.
        "spark.driver.host": pod_ip,
        "spark.driver.bindAddress": pod_ip,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.kubernetes.namespace": settings.namespace,
        "spark.kubernetes.driver.pod.name": pod_name,
        "spark.kubernetes.driver.annotateExitException": "true",
        "spark.kubernetes.executor.podNamePrefix": executor_prefix(pod_name),
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.enablePollingWithResourceVersion": "true",
        "spark.kubernetes.container.image": settings.image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        # Of the executors only: in client mode the driver is what its pod already runs as.
        "spark.kubernetes.authenticate.executor.serviceAccountName": settings.service_account,
        "spark.executor.instances": str(settings.executors),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.kubernetes.executor.request.cores": settings.executor_cpu or str(settings.executor_cores),
        "spark.executor.memory": f"{settings.executor_memory_mib}m",
        # Python's memory is outside the heap, and the factor for Python applications applies in cluster mode only.
        "spark.executor.memoryOverhead": f"{overhead}m",
        "spark.executorEnv.PYSPARK_PYTHON": environment.get("PYSPARK_PYTHON", sys.executable),
        "spark.kubernetes.executor.podTemplateFile": _write_pod_template(),
    }
    if environment.get("PYTHONPATH"):
        values["spark.executorEnv.PYTHONPATH"] = environment["PYTHONPATH"]
    if settings.claim:
        volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.magnetar"
        values |= {
            f"{volume}.options.claimName": settings.claim,
            f"{volume}.mount.path": settings.executor_volume_path,
            f"{volume}.mount.readOnly": "false",
        }
    return values


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InvalidRequest(f"{name} is not set: a k8s:// master needs it from the driver pod's downward API")
    return value


def executor_prefix(pod_name: str) -> str:
    """A prefix for executor pod names, unique per driver pod and short enough for `-exec-<n>` and a host name label."""
    return re.sub(r"[^a-z0-9-]", "-", pod_name.lower())[-POD_NAME_LENGTH_MAX:].strip("-") or "magnetar"


def pod_template(user: int, group: int) -> dict[str, object]:
    """Executors run as the driver's user (who can read the volume) and pass the `restricted` pod security standard unless that
    is root."""
    container = {
        "name": "executor",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": user != 0,
        },
    }
    security = {
        "runAsUser": user,
        "runAsGroup": group,
        "fsGroup": group,
        "runAsNonRoot": user != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec = {"securityContext": security, "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _write_pod_template() -> str:
    # JSON is YAML. One file per driver process; its pod's file system goes with it.
    path = Path(tempfile.gettempdir()) / f"magnetar-executor-{os.getpid()}.yaml"
    path.write_text(json.dumps(pod_template(os.getuid(), os.getgid())))
    return str(path)


def require_java(environment: Mapping[str, str]) -> Path:
    """The `java` that Spark will start. Raises JavaMissing with the remedy."""
    home = environment.get("JAVA_HOME", "")
    found = shutil.which("java", path=f"{home}/bin" if home else environment.get("PATH", ""))
    if found is None:
        place = f"JAVA_HOME={home}" if home else "PATH"
        raise JavaMissing(f"no java in {place}: Spark needs Java {JAVA_MINIMUM} or newer; {JAVA_REMEDY}")
    release = Path(found).resolve().parent.parent / "release"
    version = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
    if version is not None and int(version[1]) < JAVA_MINIMUM:
        raise JavaMissing(f"{found} is Java {version[1]}: Spark needs Java {JAVA_MINIMUM} or newer; {JAVA_REMEDY}")
    return Path(found)


@contextmanager
def spark_session(settings: SessionSettings, environment: Mapping[str, str] = os.environ) -> Iterator[SparkSession]:
    """A session that reports progress and is stopped at the end. Raises JavaMissing, InvalidRequest."""
    require_java(environment)
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    configuration = SparkConf()
    for key, value in spark_settings(settings, environment).items():
        configuration.set(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log.info("spark.starting", master=settings.master, executors=settings.executors if settings.on_kubernetes else 0)
    session = SparkSession.builder.config(conf=configuration).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    log.info("spark.started", application=session.sparkContext.applicationId)
    try:
        with report_progress(session):
            yield session
    finally:
        session.stop()


@contextmanager
def report_progress(session: SparkSession, interval_s: float = PROGRESS_INTERVAL_S) -> Iterator[None]:
    """Log stages and tasks every `interval_s` while the block runs."""
    done = threading.Event()
    tracker = session.sparkContext.statusTracker()

    def report() -> None:
        while not done.wait(interval_s):
            for identifier in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(identifier)
                if stage is not None:
                    log.info(
                        "spark.progress",
                        stage=identifier,
                        name=stage.name,
                        tasks=stage.numTasks,
                        completed=stage.numCompletedTasks,
                        active=stage.numActiveTasks,
                        failed=stage.numFailedTasks,
                    )

    reporter = threading.Thread(target=report, name="spark-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
