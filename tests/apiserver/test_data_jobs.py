"""DataJobs against a real API server and a real etcd; kubelet, scheduler and drivers are played
by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import JobProgressRecord, JobRunRecord
from magnetar.names import TopicName
from tests.apiserver.job_stage import TOPIC, Jobs, SetClock
from tests.apiserver.stage import (
    Brokers,
    Scene,
    bind,
    brokers_of,
    external,
    look_at_all,
    make_lost_node,
    quiet,
    running_operator,
    until,
)

pytestmark = pytest.mark.slow


async def begun(
    scene: Scene, brokers: Brokers, cluster_etcd: EtcdProcess
) -> tuple[Jobs, dict[str, Any]]:
    """The job of a cluster, and its first driver."""
    scene.create("BrokerCluster", "main", external(cluster_etcd))
    jobs = Jobs(scene, brokers)
    await jobs.make()
    return jobs, await until("the first driver", jobs.driver)


@pytest.mark.parametrize(
    ("topic", "partitions"),
    [(TOPIC, 0), (TOPIC, 2), (f"{TOPIC}-partition-1", 2)],
    ids=["plain", "partitioned", "partition"],
)
async def test_a_job_waits_for_its_topic_and_then_begins(
    scene: Scene, cluster_etcd: EtcdProcess, topic: str, partitions: int
) -> None:
    """It names namespace or topic and what to do, and makes no driver, which would find nothing
    and succeed. An entry suffices."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        jobs.create(topic)
        said = await jobs.says("NamespaceNotFound")
        assert said.startswith(
            "namespace public/default of topic persistent://public/default/prices"
        )
        assert scene.condition(jobs.path) | {
            "status": "False",
            "reason": "NamespaceNotFound",
        } == scene.condition(jobs.path)
        await brokers.enter("persistent://public/default/other")
        assert await jobs.says("TopicNotFound") == (
            f"topic {topic} does not exist in this cluster; correct the name, or create the "
            "topic or publish to it first"
        )
        assert scene.events("TopicNotFound")
        status = (scene.get(jobs.path) or {})["status"]
        assert (status["state"], status["attempt"]) == ("Pending", 0)
        assert jobs.driver() is None
        await brokers.enter(TOPIC, partitions)
        await until("the first driver", jobs.driver)
        await until(
            "no complaint",
            lambda: scene.condition(jobs.path, "Degraded").get("status") == "False",
        )


async def test_a_topic_that_goes_between_attempts_is_named_as_well(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        jobs, pod = await begun(scene, brokers, cluster_etcd)
        await brokers.store.delete(keys.partitioned_topic(TopicName.parse(TOPIC)))
        jobs.end(pod, {"exitCode": 1, "reason": "Error"})
        await jobs.says("TopicNotFound")
        assert jobs.driver(2) is None
        await brokers.enter(TOPIC)
        await until("the second driver", lambda: jobs.driver(2))


async def test_a_job_waits_for_a_store_that_does_not_answer(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Whether the topic exists is not known then, and not guessed: no driver, and no topic that
    is said to be missing."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        nobody = {"etcd": {"external": {"endpoints": ["127.0.0.1:1"]}}}
        scene.create("BrokerCluster", "main", nobody)
        jobs = Jobs(scene, brokers)
        await jobs.make()
        assert (await jobs.says("MetadataStoreUnavailable")).startswith(
            "neither the run's record nor its topic can be read"
        )
        assert jobs.driver() is None


async def test_a_pod_that_no_node_takes_is_named_until_one_does(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """First the driver's, then an executor's, while the driver is at work."""
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes: Insufficient cpu",
    }
    words = "not scheduled: Unschedulable: 0/1 nodes: Insufficient cpu. "

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        jobs, driver = await begun(scene, brokers, cluster_etcd)
        name = driver["metadata"]["name"]
        jobs.report(name, "Pending", unschedulable)
        assert (await jobs.says("PodUnschedulable")).startswith(f"{name}: {words}")
        assert scene.condition(jobs.path)["reason"] == "PodUnschedulable"
        jobs.report(name, "Running", podIP="10.1.2.3")
        await until(
            "the driver is at work",
            lambda: scene.condition(jobs.path, "Progressing").get("reason") == "Running",
        )
        assert scene.condition(jobs.path, "Degraded")["status"] == "False"

        await until("its executor", jobs.executors)
        jobs.report(f"{name}-exec-1", "Pending", unschedulable)
        assert (await jobs.says("PodUnschedulable")).startswith(f"{name}-exec-1: {words}")
        assert (scene.get(jobs.path) or {})["status"]["state"] == "Running"
        assert scene.events("PodUnschedulable")
        jobs.report(f"{name}-exec-1", "Running")
        await until(
            "all is well",
            lambda: scene.condition(jobs.path, "Degraded").get("status") == "False",
        )


def tried(scene: Scene) -> str:
    """What the API server says to one more pod, which it does not make."""
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    _, answer = scene.plane.request("POST", f"{scene.core('pods')}?dryRun=All", pod)
    return str(answer.get("message", ""))


async def test_executors_that_a_quota_forbids_are_reported_until_there_is_room(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """There is no pod to look at. They come when there is room."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "1"}},
    }

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        jobs, driver = await begun(scene, brokers, cluster_etcd)
        scene.plane.must("POST", scene.core("resourcequotas"), quota)
        used = {"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}
        scene.merge(f"{scene.core('resourcequotas', 'few')}/status", used)
        await until("the API server goes by the quota", lambda: "exceeded quota" in tried(scene))
        name = driver["metadata"]["name"]
        jobs.report(name, "Running", podIP="10.1.2.3")
        said = await jobs.says("ExecutorsRefused")
        assert "exceeded quota: few" in said
        assert "lower spec.executors" in said
        assert (scene.get(jobs.path) or {})["status"]["state"] == "Running"
        assert [pod["metadata"]["name"] for pod in scene.pods()] == [name]
        scene.delete(scene.core("resourcequotas", "few"))
        await until("its executor", jobs.executors)
        await until(
            "all is well",
            lambda: scene.condition(jobs.path, "Degraded").get("status") == "False",
        )


async def test_executors_are_made_for_a_driver_that_runs_and_go_with_it(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Nobody but the operator makes them: a driver has no rights. One that is evicted is made
    again; they reach nobody but each other."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await brokers.enter(TOPIC)
        jobs.create(executors={"instances": 2})
        driver = await until("the driver", jobs.driver)
        name = driver["metadata"]["name"]
        first, second = f"{name}-exec-1", f"{name}-exec-2"
        jobs.report(name, "Running")
        await quiet(operator)
        assert jobs.executors() == {}, "without an address of its driver no executor finds it"

        jobs.report(name, "Running", podIP="10.1.2.3")
        made = await until("both executors", lambda: len(found := jobs.executors()) == 2 and found)
        assert set(made) == {first, second}
        for pod in (driver, *made.values()):
            assert pod["spec"]["automountServiceAccountToken"] is False
        assert [
            owner["uid"] for pod in made.values() for owner in pod["metadata"]["ownerReferences"]
        ] == 2 * [driver["metadata"]["uid"]]
        policy = scene.get(
            scene.core("networkpolicies", "prices-spark", "/apis/networking.k8s.io/v1")
        )
        assert policy is not None
        assert policy["metadata"]["ownerReferences"][0]["kind"] == "DataJob"

        for pod in made:
            jobs.report(pod, "Running")
        uid = made[second]["metadata"]["uid"]
        jobs.report(second, "Failed", reason="Evicted")
        await until(
            "it is made again",
            lambda: jobs.executors().get(second, made[second])["metadata"]["uid"] != uid,
        )
        assert jobs.executors()[first]["metadata"]["uid"] == made[first]["metadata"]["uid"]

        jobs.end(driver, {"exitCode": 1, "reason": "Error"})
        await until("they go with their driver", lambda: not jobs.executors())
        again = await until("the next attempt", lambda: jobs.driver(2))
        jobs.report(again["metadata"]["name"], "Running", podIP="10.1.2.4")
        await until("executors of its own", lambda: len(jobs.executors()) == 2)
        assert all(pod.startswith(again["metadata"]["name"]) for pod in jobs.executors())
        scene.merge(jobs.path, {"spec": {"suspend": True}})
        await until("none is left of a job that is suspended", lambda: not jobs.executors())


async def test_a_job_of_a_cluster_that_does_not_exist_says_so(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        jobs = Jobs(scene, brokers)
        await jobs.make()
        assert "/main does not exist" in await jobs.says("ClusterNotFound")
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        await until("the first driver", jobs.driver)


async def test_a_job_is_judged_by_its_record(scene: Scene, cluster_etcd: EtcdProcess) -> None:
    """A failed pod is followed by another attempt; the record of a success counts although the
    pod has vanished; a new token runs again."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        uid = await jobs.make()

        pod = await until("the first driver", lambda: jobs.driver(1))
        arguments = pod["spec"]["containers"][0]["args"]
        run = f"once-{uid[:8]}"
        assert arguments[arguments.index("--run") + 1] == run
        jobs.end(
            pod,
            {
                "exitCode": 1,
                "reason": "Error",
                "message": "a log\nStorageError: the disk is full",
            },
        )
        second = await until("the second driver", lambda: jobs.driver(2))

        saying = "it ended with exit code 1 (Error), saying: StorageError: the disk is full"
        await until("the failure is reported", lambda: saying in " ".join(scene.events("Started")))

        record = JobRunRecord("compaction", "succeeded", 1000, 2000, {"keys": 7})
        await brokers.store.put(f"jobs/{scene.namespace}/prices/{run}", record.encode())
        scene.delete(scene.core("pods", second["metadata"]["name"]))
        done = await until(
            "Succeeded",
            lambda: (
                (found := scene.get(jobs.path))
                and found["status"]["state"] == "Succeeded"
                and found
            ),
        )
        assert done["status"]["history"][0]["result"] == {"keys": "7"}
        assert done["status"]["history"][0]["startedAt"] == "1970-01-01T00:00:01Z"

        scene.merge(jobs.path, {"spec": {"runRequest": "again"}})
        third = await until("a driver of the new run", lambda: jobs.driver(1, "again"))
        assert third["metadata"]["labels"]["magnetar.io/run"] == f"again-{uid[:8]}"
        scene.merge(jobs.path, {"spec": {"suspend": True}})
        await until(
            "Suspended",
            lambda: (
                (scene.get(jobs.path) or {})["status"]["state"] == "Suspended"
                and jobs.driver(1, "again") is None
            ),
        )


async def test_a_job_shows_how_far_its_driver_is_and_why_an_attempt_failed(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """As the driver says: an Event at each phase, not at each step. Nothing is shown of one that
    has ended; its error stays, whatever follows, and its end is counted."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        jobs, pod = await begun(scene, brokers, cluster_etcd)
        job, run = f"{scene.namespace}/prices", pod["metadata"]["labels"]["magnetar.io/run"]
        jobs.report(pod["metadata"]["name"], "Running", podIP="10.1.2.3")

        async def shows(phase: str, percent: int) -> dict[str, Any]:
            record = JobProgressRecord(phase, 1, 4, 10, 40, percent, 5, 60, 1000)
            await brokers.store.put(keys.job_progress(job, run), record.encode())
            found: dict[str, Any] = await until(
                f"{phase} {percent}",
                lambda: (
                    (shown := jobs.status().get("progress", {})).get("complete") == f"{percent}%"
                    and shown
                ),
            )
            return found

        shown = await shows("Reading", 31)
        assert (shown["phase"], shown["topicsDone"], shown["topicsTotal"]) == ("Reading", 1, 4)
        assert (shown["bytesPerSecond"], shown["secondsLeft"]) == (5, 60)
        await shows("Reading", 35)
        await shows("Writing", 40)
        events = await until(
            "both phases", lambda: len(said := scene.events("PhaseChanged")) > 1 and said
        )
        assert sorted(events) == [
            f"run {run}: {phase}; 1 of 4 topics are done" for phase in ("Reading", "Writing")
        ]
        columns = scene.plane.kubectl("-n", scene.namespace, "get", "datajobs").stdout
        assert "PHASE" in columns
        assert "40%" in columns

        failed = JobRunRecord("compaction", "failed", 1, 2, {}, "StorageError: the disk is full")
        await brokers.store.put(keys.job_run(job, run), failed.encode())
        jobs.end(pod, {"exitCode": 1, "reason": "Error"})
        await until("the next attempt", lambda: jobs.driver(2))
        status = await until(
            "no progress", lambda: "progress" not in (found := jobs.status()) and found
        )
        assert status["history"][0]["lastError"] == "StorageError: the disk is full"
        done = JobRunRecord("compaction", "succeeded", 1000, 61_000, {})
        await brokers.store.put(keys.job_run(job, run), done.encode())
        await until("Succeeded", lambda: jobs.history() == [("once", "Succeeded")])
        assert jobs.status()["history"][0]["lastError"] == "StorageError: the disk is full"
        assert await until("its Event", lambda: scene.events("Succeeded"))
        await quiet(operator)
        text = operator.metrics.render().decode()
        assert 'magnetar_operator_job_runs_total{state="Succeeded"} 1.0' in text
        assert 'magnetar_operator_job_run_seconds_sum{state="Succeeded"} 60.0' in text


async def test_pods_get_what_is_added_and_what_would_be_too_much_is_refused(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """By the API server, which names the field: what is no field to kubectl, and variables of
    the operator by a rule."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await brokers.enter(TOPIC)
        with pytest.raises(AssertionError, match="choose another name"):
            jobs.create(driver={"podTemplate": {"env": [{"name": "SPARK_HOME", "value": "/"}]}})
        for refused in ("hostNetwork", "serviceAccountName", "securityContext", "volumes"):
            manifest = {
                "apiVersion": "magnetar.io/v1alpha1",
                "kind": "DataJob",
                "metadata": {"name": "prices"},
                "spec": {
                    "clusterRef": {"name": "main"},
                    "compaction": {"topic": TOPIC},
                    "executors": {"podTemplate": {refused: {}}},
                },
            }
            said = scene.plane.kubectl(
                "-n", scene.namespace, "create", "-f", "-", text_input=json.dumps(manifest)
            )
            assert said.returncode != 0
            assert f'unknown field "spec.executors.podTemplate.{refused}"' in said.stderr
        template = {
            "nodeSelector": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "env": [{"name": "LEVEL", "value": "debug"}],
        }
        jobs.create(driver={"podTemplate": template})
        driver = await until("the driver", jobs.driver)
        assert driver["spec"]["nodeSelector"] == {"pool": "spot"}
        (container,) = driver["spec"]["containers"]
        assert {"name": "LEVEL", "value": "debug"} in container["env"]
        jobs.report(driver["metadata"]["name"], "Running", podIP="10.1.2.3")
        (executor,) = (await until("its executor", jobs.executors)).values()
        assert "nodeSelector" not in executor["spec"]


async def test_a_script_is_waited_for_and_then_run(scene: Scene, cluster_etcd: EtcdProcess) -> None:
    """First its ConfigMap, then its entry; without either no driver is made."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        spec = {"clusterRef": {"name": "main"}, "type": "PySpark"}
        with pytest.raises(AssertionError, match=r"type PySpark needs pySpark\.configMap"):
            scene.create("DataJob", "prices", spec)
        scene.create("DataJob", "prices", {**spec, "pySpark": {"configMap": "report"}})
        assert (await jobs.says("ScriptNotFound")).startswith("ConfigMap report does not exist")
        report = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "report"}}
        scene.plane.must("POST", scene.core("configmaps"), report)
        await until(
            "the entry is missed",
            lambda: (
                "has no entry main.py" in scene.condition(jobs.path, "Degraded").get("message", "")
            ),
        )
        assert jobs.driver() is None
        scene.merge(scene.core("configmaps", "report"), {"data": {"main.py": "print(1)"}})
        driver = await until("the driver", jobs.driver)
        assert "magnetar_jobs.script" in driver["spec"]["containers"][0]["args"]


async def test_a_log_compaction_waits_for_its_namespace_and_names_topic_or_namespace(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The API server refuses both, neither, and a name that is no topic's; the job waits for what
    does not exist, and its driver gets the name. Its counts are in the history."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        spec = {"clusterRef": {"name": "main"}, "type": "TransactionLogCompaction"}
        for whose, refusal in (
            (None, "type TransactionLogCompaction needs"),
            ({}, "write either topic or namespace"),
            ({"topic": TOPIC, "namespace": "public/default"}, "write either topic or namespace"),
            ({"topic": "non-persistent://a/b/c"}, "write persistent://tenant/namespace/topic"),
        ):
            fields = {} if whose is None else {"transactionLogCompaction": whose}
            with pytest.raises(AssertionError, match=refusal):
                scene.create("DataJob", "prices", {**spec, **fields})
        named = {"transactionLogCompaction": {"namespace": "public/default"}}
        scene.create("DataJob", "prices", {**spec, **named})
        said = await jobs.says("NamespaceNotFound")
        assert said.startswith("namespace public/default does not exist")
        assert jobs.driver() is None
        await brokers.enter(TOPIC)
        driver = await until("the driver", jobs.driver)
        arguments = driver["spec"]["containers"][0]["args"]
        assert arguments[2:5] == ["magnetar_jobs.transaction_log", "--namespace", "public/default"]
        done = JobRunRecord("transaction-log", "succeeded", 1, 2, {"files": 3})
        run = str(jobs.status()["run"])
        await brokers.store.put(keys.job_run(f"{scene.namespace}/prices", run), done.encode())
        jobs.end(driver, {"exitCode": 0, "reason": "Completed"})
        await until("Succeeded", lambda: jobs.history() == [("once", "Succeeded")])
        assert jobs.status()["history"][0]["result"] == {"files": "3"}


async def test_attempts_are_repeated_by_the_kind_of_their_failure(
    scene: Scene, cluster_etcd: EtcdProcess, clock: SetClock
) -> None:
    """An eviction and a pod that no node takes in time use no attempt of the job up; its own
    failure does. All attempts together have one deadline."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await brokers.enter(TOPIC)
        retries = {"podsLost": 1, "unschedulable": 1, "startTimeoutSeconds": 3600}
        jobs.create(attemptsMax=1, retries=retries, deadlineSeconds=3600)
        first = await until("the first driver", jobs.driver)
        assert 3480 <= first["spec"]["activeDeadlineSeconds"] <= 3600
        jobs.report(first["metadata"]["name"], "Failed", reason="Evicted")
        second = await until("a driver after the eviction", lambda: jobs.driver(2))
        unschedulable = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes: Insufficient cpu",
        }
        jobs.report(second["metadata"]["name"], "Pending", unschedulable)
        await jobs.says("PodUnschedulable")
        clock.ahead_ms += 600_000  # which makes no driver late, but
        scene.merge(jobs.path, {"spec": {"retries": {"startTimeoutSeconds": 5}}})
        third = await until("a driver after the timeout", lambda: jobs.driver(3))
        assert jobs.driver(2) is None
        assert third["spec"]["activeDeadlineSeconds"] < 3100
        (entry,) = jobs.status()["history"]
        jobs.report(third["metadata"]["name"], "Running", podIP="10.1.2.3")
        assert entry["failures"] == {"podsLost": 1, "unschedulable": 1}
        assert "Insufficient cpu" in entry["lastError"]
        jobs.end(third, {"exitCode": 1, "reason": "Error"})
        said = await jobs.says("Failed")
        assert "attempt 3 failed (the job itself)" in said
        assert "spec.attemptsMax is 1" in said
        assert jobs.status()["history"][0]["lastFailure"] == "job"
        await look_at_all(operator)
        await quiet(operator)
        assert jobs.driver(4) is None


async def test_a_driver_on_a_lost_node_that_was_asked_to_go_is_deleted_by_force(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Its pod would stay Running permanently, and with it the attempt; until it is asked to go
    nobody touches it."""

    node = f"node-{scene.namespace}"
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        make_lost_node(scene, node)
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await jobs.make()

        first = await until("the first driver", lambda: jobs.driver(1))
        name = first["metadata"]["name"]
        bind(scene, name, node)
        unready = {"type": "Ready", "status": "False"}
        scene.merge(
            f"{scene.core('pods', name)}/status",
            {"status": {"phase": "Running", "conditions": [unready]}},
        )
        await until("at work", lambda: (scene.get(jobs.path) or {})["status"]["state"] == "Running")
        await look_at_all(operator)
        await quiet(operator)
        assert not scene.events("NodeLost")

        scene.delete(scene.core("pods", name))
        await until("the next attempt", lambda: jobs.driver(2))
        assert jobs.driver(1) is None
        (event,) = await until("an event", lambda: scene.events("NodeLost"))
        assert name in event
        assert node in event


async def test_load_analytics_needs_no_topic_and_is_validated(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Its driver is made at once, with what the resource says; the API server knows the bounds."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        spec = {"clusterRef": {"name": "main"}, "type": "LoadAnalytics"}
        for wrong, why in (
            ({"historyDays": 0}, "historyDays"),
            ({"validHours": 169}, "validHours"),
            ({"windowSeconds": 59}, "windowSeconds"),
            ({"windowSeconds": 60}, "use wider windows"),
        ):
            with pytest.raises(AssertionError, match=why):
                scene.create("DataJob", "prices", {**spec, "loadAnalytics": wrong})
        scene.create("DataJob", "prices", {**spec, "loadAnalytics": {"validHours": 3}})
        driver = await until("the driver", jobs.driver)
        arguments = driver["spec"]["containers"][0]["args"]
        assert "magnetar_jobs.load_analytics" in arguments
        assert arguments[arguments.index("--valid-hours") + 1] == "3"
