"""Spark settings of a job, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.errors import InvalidRequest
from magnetar_jobs.session import JavaMissing, SessionSettings, executor_prefix, pod_template, require_java, spark_settings
from magnetar_operator.builders.driver_pod import driver_pod
from magnetar_operator.builders.executor_pod import executor_pod
from tests.unit.operator.samples import DEFAULTS, cluster, job

KUBERNETES = SessionSettings(
    name="compact",
    master="k8s://https://10.96.0.1:443",
    executors=3,
    executor_memory_mib=512,
    executor_cores=2,
    image="registry.local/magnetar:1",
    namespace="jobs",
    claim="storage",
    executor_volume_path="/var/lib/magnetar",
)
POD = {"POD_IP": "10.244.0.7", "POD_NAME": "compact-demo-1", "PATH": "/usr/bin"}


def test_push_down_is_enabled_everywhere_or_planning_would_fail() -> None:
    for settings in (SessionSettings(name="x"), KUBERNETES):
        assert spark_settings(settings, POD)["spark.sql.python.filterPushdown.enabled"] == "true"


def test_executors_dial_the_pod_ip_by_both_settings() -> None:
    values = spark_settings(KUBERNETES, POD)
    assert values["spark.driver.host"] == values["spark.driver.bindAddress"] == "10.244.0.7"
    assert values["spark.driver.port"] == "7078"
    assert values["spark.kubernetes.driver.pod.name"] == "compact-demo-1"
    assert values["spark.kubernetes.authenticate.executor.serviceAccountName"] == "magnetar-spark"


def test_python_gets_memory_beside_the_heap() -> None:
    assert spark_settings(KUBERNETES, POD)["spark.executor.memoryOverhead"] == "384m"


def test_executors_ask_for_their_cores_or_for_what_is_said() -> None:
    """A task's slot is a core in either case."""
    for cpu, asked in (("", "2"), ("200m", "200m")):
        values = spark_settings(replace(KUBERNETES, executor_cpu=cpu), POD)
        assert values["spark.kubernetes.executor.request.cores"] == asked
        assert values["spark.executor.cores"] == "2"


def test_the_volume_is_mounted_at_the_same_path() -> None:
    values = spark_settings(KUBERNETES, POD)
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.magnetar"
    assert values[f"{volume}.options.claimName"] == "storage"
    assert values[f"{volume}.mount.path"] == "/var/lib/magnetar"


@pytest.mark.parametrize("missing", ["POD_IP", "POD_NAME"])
def test_a_missing_pod_identity_is_named(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing):
        spark_settings(KUBERNETES, {key: value for key, value in POD.items() if key != missing})


def test_no_image_is_invented() -> None:
    with pytest.raises(InvalidRequest, match="--image"):
        spark_settings(SessionSettings(name="x", master="k8s://https://h:1"), POD)


def test_a_master_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="yarn"):
        spark_settings(SessionSettings(name="x", master="yarn"), {})


def test_parallelism_counts_threads_or_executor_cores() -> None:
    assert SessionSettings(name="x", master="local[3]").parallelism == 3
    assert SessionSettings(name="x", master="local").parallelism == 1
    assert KUBERNETES.parallelism == 6


def test_executor_names_are_valid_and_unique_per_driver_pod() -> None:
    assert executor_prefix("Compact_Demo-1") == "compact-demo-1"
    assert len(executor_prefix("x" * 300)) <= 40
    assert executor_prefix("a" * 60 + "-1") != executor_prefix("a" * 60 + "-2")


def test_executors_pass_the_restricted_standard() -> None:
    spec = pod_template(1000, 1000)["spec"]
    assert isinstance(spec, dict)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_missing_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="openjdk-17"):
        require_java({"PATH": str(tmp_path)})


def test_an_old_java_is_recognised_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("")
    java.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(JavaMissing, match="is Java 11"):
        require_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("sizes", [{}, {"memoryMib": 4096, "cores": 4}, {"cores": 2, "cpu": "100m"}])
def test_the_operator_asks_about_executors_of_the_size_that_spark_makes(sizes: dict[str, Any]) -> None:
    """Whether a quota admits them is found out with a pod of its own, which is only rehearsed."""
    resource = job(executors=sizes)
    command = iter(driver_pod(resource, cluster(), DEFAULTS, "once", 1)["spec"]["containers"][0]["args"])
    given = {word: next(command) for word in command if word.startswith("--")}
    settings = replace(
        KUBERNETES,
        executor_memory_mib=int(given["--executor-memory-mib"]),
        executor_cores=int(given["--executor-cores"]),
        executor_cpu=given["--executor-cpu"],
    )
    spark = spark_settings(settings, POD)
    megabytes = sum(int(spark[f"spark.executor.{part}"].removesuffix("m")) for part in ("memory", "memoryOverhead"))
    pod = executor_pod(resource, cluster(), DEFAULTS, "prices-1")
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": spark["spark.kubernetes.executor.request.cores"], "memory": f"{megabytes}Mi"},
        "limits": {"memory": f"{megabytes}Mi"},
    }
    assert pod["spec"]["serviceAccountName"] == spark["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert pod["metadata"]["namespace"] == resource.namespace
