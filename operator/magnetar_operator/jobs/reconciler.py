"""Reconciling a `DataJob`.

Owns: the order of steps, the driver pods and their executors'. Imports: world, jobs.plan,
jobs.pods, pods.care, builders, magnetar.metadata. Invariants: pods have deterministic names, so
making one twice is refused; nothing is decided about a run while its record cannot be read; only
pods that this resource owns are touched, and by force only one that is terminating on a lost node;
a driver has no rights: its executors are made and deleted here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from magnetar.errors import NamespaceNotFound, StoreError, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.topic_entries import partition_count
from magnetar.names import TopicName
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob, Run
from magnetar_operator import names
from magnetar_operator.brokers.desired import identity_of
from magnetar_operator.builders.job_pods import (
    SECRET_BYTES,
    driver_pod,
    executor_pod,
    job_policy,
    job_secret,
)
from magnetar_operator.builders.object import Manifest
from magnetar_operator.builders.service_account import spark_account
from magnetar_operator.conditions import Finding, Problem, Reason, Type, timestamp
from magnetar_operator.engine.planning import Create, Update, plan
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import World, is_paused
from magnetar_operator.jobs.plan import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    JobPlan,
    JobView,
    plan_job,
)
from magnetar_operator.jobs.pods import (
    any_runs,
    attempt_of,
    drivers_at_work,
    left_over,
    missing_executors,
    not_started,
    owned_by,
)
from magnetar_operator.kube.errors import ApiRefused, NamespaceTerminating
from magnetar_operator.kube.kinds import BY_KIND, POD, SECRET
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.care import delete_lost, lost_nodes

HISTORY_MAX = 10
STORE_RETRY_S = 3.0
READ_TIMEOUT_S = 5.0
FINAL = (SUCCEEDED, FAILED)


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    job = await world.read(key, DataJob)
    if job is None or job.metadata.deletion_timestamp:
        return None  # drivers go with their owner; records and results stay
    if is_paused(job):
        await world.events.paused(job)
        return None
    run = names.run_id(job.spec.run_request, job.metadata.uid)
    cluster = await world.cluster(job.namespace, job.spec.cluster_ref.name)
    if cluster is None:
        message = (
            f"BrokerCluster {job.namespace}/{job.spec.cluster_ref.name} does not exist; make it, "
            "or correct clusterRef"
        )
        return await _wait(world, job, run, Reason.CLUSTER_MISSING, message)
    if cluster.spec.storage.s3 is not None:
        # Neither its storage nor this can change: there is nothing to wait for.
        message = f"{Reason.STORAGE_UNSUPPORTED.meaning} {Reason.STORAGE_UNSUPPORTED.remedy}"
        await _wait(world, job, run, Reason.STORAGE_UNSUPPORTED, message)
        return None
    try:
        record, obstacle = await _read_store(world, job, cluster, run)
    except (StoreError, TimeoutError) as error:
        message = (
            "neither the run's record nor its topic can be read: "
            f"{str(error) or 'no answer in time'}"
        )
        return await _wait(world, job, run, Reason.STORE_UNAVAILABLE, message)
    pods, executors = await _pods(world, job)
    at_work = drivers_at_work(pods)
    await _let_go(world, job, [*pods, *executors])
    for executor in left_over(executors, at_work):
        await world.api.delete(executor)
    mine = owned_by(executors, [pod["metadata"]["uid"] for pod in at_work])
    view = _view(world, job, run, pods, mine, record, obstacle)
    decided = plan_job(view)
    if decided.state == RUNNING:
        refused = await _make_executors(world, job, cluster, at_work, executors)
        if refused is not None and view.not_started is None:
            decided = plan_job(replace(view, not_started=refused))
    if decided.stop:
        # First that the attempt is not used up: the pod may be gone before anybody looks again.
        await _write_status(world, job, run, decided, record)
        await _stop(world, job, pods, mine)
        return decided.again_s
    if decided.degraded:
        await world.events.once(job, "Warning", decided.reason.value, decided.message)
    if decided.create:
        await _create(world, job, cluster, run, pods, decided)
    await _write_status(world, job, run, decided, record)
    return decided.again_s


async def _wait(world: World, job: DataJob, run: str, reason: Reason, message: str) -> float:
    await world.events.once(job, "Warning", reason.value, message)
    attempt = job.status.attempt if job.status.run == run else 0
    state = job.status.state if job.status.run == run and job.status.state else PENDING
    await _write_status(
        world, job, run, JobPlan(state, reason, message, attempt, degraded=True), None
    )
    return STORE_RETRY_S


# --- reading the world ----------------------------------------------------------------------------


async def _read_store(
    world: World, job: DataJob, cluster: BrokerCluster, run: str
) -> tuple[JobRunRecord | None, Problem | None]:
    """The run's record, and what is wrong with its topic. Raises StoreError, TimeoutError."""
    reader = (await world.store_of(cluster)).reader
    async with asyncio.timeout(READ_TIMEOUT_S):
        item = await reader.get(keys.job_run(f"{job.namespace}/{job.name}", run))
        return JobRunRecord.decode(item.value) if item is not None else None, await _obstacle(
            reader, job
        )


async def _obstacle(reader: MetadataStore, job: DataJob) -> Problem | None:
    """Why a driver would find nothing to compact: it would succeed all the same. Raises
    StoreError."""
    assert job.spec.compaction is not None, (
        "the model's rules admit no compaction job without a topic"
    )
    try:
        await partition_count(reader, TopicName.parse(job.spec.compaction.topic))
    except NamespaceNotFound as error:
        return Problem(Reason.NAMESPACE_MISSING, str(error))
    except TopicNotFound as error:
        return Problem(Reason.TOPIC_MISSING, str(error))
    return None


async def _pods(world: World, job: DataJob) -> tuple[list[Manifest], list[Manifest]]:
    """The job's drivers, and the executors of these. Raises KubernetesError."""
    found = await world.api.list(POD, job.namespace, names.selector_text({names.JOB: job.name}))
    drivers = owned_by(found, [job.metadata.uid])
    return drivers, owned_by(found, [pod["metadata"]["uid"] for pod in drivers])


def _is_of(pod: Manifest, run: str) -> bool:
    return bool(pod["metadata"]["labels"].get(names.RUN) == run[: names.LABEL_LENGTH_MAX])


def _view(
    world: World,
    job: DataJob,
    run: str,
    pods: list[Manifest],
    executors: list[Manifest],
    record: JobRunRecord | None,
    obstacle: Problem | None,
) -> JobView:
    attempts = {pod["metadata"]["name"]: attempt_of(pod) for pod in pods}
    other = next(
        (
            pod["metadata"]["name"]
            for pod in pods
            if not _is_of(pod, run) and not attempts[pod["metadata"]["name"]].is_over
        ),
        "",
    )
    return JobView(
        suspended=job.spec.suspend,
        attempts_max=job.spec.attempts_max,
        last_attempt=job.status.attempt if job.status.run == run else 0,
        attempts=tuple(attempts[pod["metadata"]["name"]] for pod in pods if _is_of(pod, run)),
        record=record,
        other_driver=other,
        now_ms=world.clock.wall_ms(),
        obstacle=obstacle,
        not_started=not_started([*(pod for pod in pods if _is_of(pod, run)), *executors]),
        executors_run=any_runs(executors),
    )


# --- effects --------------------------------------------------------------------------------------


async def _stop(
    world: World, job: DataJob, pods: list[Manifest], executors: list[Manifest]
) -> None:
    """Stop the job's drivers and their executors. Raises KubernetesError."""
    for pod in executors:
        await world.api.delete(pod)
    for pod in pods:
        if (
            not attempt_of(pod).is_over
            and not broker_pods.is_terminating(pod)
            and await world.api.delete(pod)
        ):
            await world.events.normal(
                job, Reason.SUSPENDED.value, f"driver {pod['metadata']['name']} is stopped"
            )


async def _let_go(world: World, job: DataJob, pods: list[Manifest]) -> None:
    """End the wait for pods that were deleted and whose node cannot confirm it. Raises
    KubernetesError.

    A driver that runs on all the same does no harm: of two commits the second fails, and a success
    stays recorded. No run waits for one, so that Kubernetes' own eviction decides when the pods of
    a silent node are to go: each costs an attempt.
    """
    going = [pod for pod in pods if broker_pods.is_terminating(pod)]
    await delete_lost(world, job, going, await lost_nodes(world, going))


async def _create(
    world: World,
    job: DataJob,
    cluster: BrokerCluster,
    run: str,
    pods: list[Manifest],
    decided: JobPlan,
) -> None:
    """Make the driver of an attempt. Raises KubernetesError."""
    for pod in pods:
        if not _is_of(pod, run):
            await world.api.delete(pod)  # of an earlier run, and over; its record stays
    await _ensure_parts(world, job, cluster)
    manifest = driver_pod(job, cluster, world.defaults, run, decided.create)
    if await world.api.create(POD, manifest) is not None:
        await world.events.normal(
            job, "Started", f"{decided.message} (run {run}, pod {manifest['metadata']['name']})"
        )


async def _make_executors(
    world: World,
    job: DataJob,
    cluster: BrokerCluster,
    drivers: list[Manifest],
    executors: list[Manifest],
) -> Problem | None:
    """Make the executors that drivers at work lack; why Kubernetes refuses one. Raises
    KubernetesError."""
    for driver in drivers:
        for number in missing_executors(driver, executors, job.spec.executors.instances):
            try:
                await world.api.create(
                    POD, executor_pod(job, cluster, world.defaults, driver, number)
                )
            except NamespaceTerminating:
                raise
            except ApiRefused as error:
                reason = Reason.EXECUTORS_REFUSED
                return Problem(reason, f"an executor is refused: {error}. {reason.remedy}")
    return None


async def _ensure_parts(world: World, job: DataJob, cluster: BrokerCluster) -> None:
    """What the pods need beside the cluster's: their account, their secret, and who may reach
    them. Raises KubernetesError."""
    if await world.api.get(SECRET, job.namespace, names.job_parts(job.name)) is None:
        key = world.clock.random_bits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
        await world.api.create(SECRET, job_secret(job, cluster, key))
    wanted = [spark_account(job.namespace), job_policy(job, cluster)]
    found = [
        await world.api.get(BY_KIND[kind], job.namespace, name)
        for kind, name in map(identity_of, wanted)
    ]
    have = {identity_of(item): item for item in found if item is not None}
    for step in plan(wanted, have, owner_uid=job.metadata.uid):
        if isinstance(step, Create | Update):
            await world.api.apply(step.manifest)


# --- status ---------------------------------------------------------------------------------------


async def _write_status(
    world: World, job: DataJob, run: str, decided: JobPlan, record: JobRunRecord | None
) -> None:
    began = next((entry for entry in job.status.history if entry.run == run), None)
    now = timestamp(world.clock.wall_ms())
    final = decided.state in FINAL
    started = timestamp(record.started_ms) if record is not None and record.started_ms else ""
    finished = timestamp(record.finished_ms) if record is not None and record.finished_ms else now
    entry = Run(
        run=run,
        state=decided.state,
        attempts=decided.attempt,
        started_at=started
        or (began.started_at if began is not None else "")
        or (now if decided.attempt else ""),
        finished_at=(began.finished_at if began is not None and began.finished_at else finished)
        if final
        else "",
        message=record.message
        if decided.state == SUCCEEDED and record is not None
        else decided.message,
        result={name: str(value) for name, value in record.result.items()}
        if record is not None and decided.state == SUCCEEDED
        else {},
    )
    others = [known for known in job.status.history if known.run != run]
    findings = _findings(decided)
    update = {
        "observed_generation": job.metadata.generation,
        "state": decided.state,
        "run": run,
        "attempt": decided.attempt,
        "driver_pod": names.driver_pod(job.name, job.metadata.uid, run, decided.attempt)
        if decided.attempt
        else "",
        "history": (entry, *others)[:HISTORY_MAX],
        "conditions": world.conditions(job, job.status.conditions, findings),
    }
    was = job.status.state if job.status.run == run else ""
    await world.write_status(job, job.status.model_copy(update=update))
    if final and was != decided.state:
        tell = world.events.normal if decided.state == SUCCEEDED else world.events.warning
        await tell(job, decided.reason.value, f"run {run}: {decided.message}")


def _findings(decided: JobPlan) -> list[Finding]:
    moving = decided.state not in (*FINAL, SUSPENDED) and not decided.degraded
    return [
        Finding(Type.PROGRESSING, moving, decided.reason, decided.message),
        Finding(
            Type.DEGRADED,
            decided.degraded or decided.state == FAILED,
            decided.reason,
            decided.message,
        ),
        Finding(Type.READY, decided.state == SUCCEEDED, decided.reason, decided.message),
    ]
