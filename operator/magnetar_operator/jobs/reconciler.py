"""Reconciling a `DataJob`.

Owns: the order of steps, reading records, the status. Imports: world, jobs.plan, jobs.schedule,
jobs.runs, jobs.drivers, magnetar.metadata. Invariants: nothing is decided about a run while its
record cannot be read, nor by a record older than what its pods show; a run is in the status before it has a driver; the record of a run that is
forgotten goes before its entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from magnetar.errors import NamespaceNotFound, StoreError, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import JobProgressRecord, JobRunRecord
from magnetar.metadata.store import Delete, MetadataStore
from magnetar.metadata.topic_entries import partition_count
from magnetar.names import NamespaceName, TopicName
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob, JobProgress, Run
from magnetar_operator.brokers.storage_credentials import read_credentials
from magnetar_operator.builders.message_storage import credentials_of
from magnetar_operator.conditions import Problem, Reason, timestamp, wall_ms_of
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import World, is_paused
from magnetar_operator.jobs import drivers
from magnetar_operator.jobs.failures import Failures
from magnetar_operator.jobs.plan import (
    FINAL,
    PENDING,
    RUNNING,
    SUCCEEDED,
    JobPlan,
    JobView,
    plan_job,
)
from magnetar_operator.jobs.pods import JobPods, any_runs, attempt_of, not_started
from magnetar_operator.jobs.runs import (
    RunRecords,
    entry_after,
    findings,
    is_over,
    limits_of,
    progress_of,
    remembered,
    schedule_view,
    shown_plan,
    status_fields,
    with_begun,
    with_deadline,
)
from magnetar_operator.jobs.schedule import Schedule, giving_way, plan_schedule
from magnetar_operator.kube.kinds import BY_KIND

STORE_RETRY_S = 3.0
READ_TIMEOUT_S = 5.0
AGAIN_MIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """What was decided of one run."""

    entry: Run
    plan: JobPlan


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    job = await world.read(key, DataJob)
    if job is None or job.metadata.deletion_timestamp:
        return None  # drivers go with their owner; records and results stay
    if is_paused(job):
        await world.events.paused(job)
        return None
    cluster = await world.cluster(job.namespace, job.spec.cluster_ref.name)
    if cluster is None:
        message = (
            f"BrokerCluster {job.namespace}/{job.spec.cluster_ref.name} does not exist; make it, "
            "or correct clusterRef"
        )
        return await _wait(world, job, Reason.CLUSTER_MISSING, message)
    planned = plan_schedule(schedule_view(job, world.clock.wall_ms()))
    history = with_begun(job.status.history, planned.begin)
    # The pods first: a driver writes its record before it ends.
    pods = await drivers.pods_of(world, job)
    try:
        records, obstacle = await _read_store(world, job, cluster, history)
    except (StoreError, TimeoutError) as error:
        message = (
            "neither the run's record nor its topic can be read: "
            f"{str(error) or 'no answer in time'}"
        )
        return await _wait(world, job, Reason.STORE_UNAVAILABLE, message)
    if planned.begin:
        job = await _note(world, job, planned, history)
    await _report_schedule(world, job, planned)
    await drivers.let_go(world, job, pods)
    steps = await _advance(world, job, cluster, pods, records, obstacle)
    return await _conclude(world, job, cluster, pods, planned, steps, records)


async def _wait(world: World, job: DataJob, reason: Reason, message: str) -> float:
    """Nothing can be decided now."""
    await world.events.standing(job, [Problem(reason, message)])
    plan = JobPlan(PENDING, reason, message, 0, degraded=True)
    update = {
        "observed_generation": job.metadata.generation,
        "state": job.status.state or PENDING,
        "conditions": world.conditions(job, job.status.conditions, findings(plan)),
    }
    await world.write_status(job, job.status.model_copy(update=update))
    return STORE_RETRY_S


async def _note(world: World, job: DataJob, planned: Schedule, history: tuple[Run, ...]) -> DataJob:
    """Put the runs that begin into the status: whatever happens next, they are known. Raises
    KubernetesError."""
    plan = JobPlan(PENDING, Reason.PENDING, "the run begins", 0)
    status = job.status.model_copy(update=status_fields(job, planned, history, plan))
    await world.write_status(job, status)
    return job.model_copy(update={"status": status})


async def _report_schedule(world: World, job: DataJob, planned: Schedule) -> None:
    """Say which time of the schedule is not run, or waits."""
    if planned.missed_ms:
        await world.events.once(
            job,
            "Warning",
            "MissedSchedule",
            f"the run of {timestamp(planned.missed_ms)} was due more than "
            f"{job.spec.starting_deadline_seconds} s ago and is left out",
        )
    if planned.waiting_ms:
        await world.events.once(
            job,
            "Normal",
            "RunUnderWay",
            f"the run of {timestamp(planned.waiting_ms)} waits for the end of the one under way",
        )


# --- reading --------------------------------------------------------------------------------------


async def _read_store(
    world: World, job: DataJob, cluster: BrokerCluster, history: Sequence[Run]
) -> tuple[RunRecords, Problem | None]:
    """The records of the latest run and of those under way, and why no driver can begin. Raises
    StoreError, TimeoutError, KubernetesError."""
    reader = (await world.store_of(cluster)).reader
    found, progress = {}, {}
    async with asyncio.timeout(READ_TIMEOUT_S):
        for number, entry in enumerate(history):
            if number == 0 or entry.state not in FINAL:
                item = await reader.get(keys.job_run(_job_key(job), entry.run))
                if item is not None:
                    found[entry.run] = JobRunRecord.decode(item.value)
            if number == 0 and entry.state == RUNNING:
                item = await reader.get(keys.job_progress(_job_key(job), entry.run))
                if item is not None:
                    progress[entry.run] = JobProgressRecord.decode(item.value)
        obstacle = await _credentials_problem(world, cluster) or await _obstacle(world, reader, job)
        return RunRecords(found, progress), obstacle


def _job_key(job: DataJob) -> str:
    return f"{job.namespace}/{job.name}"


async def _obstacle(world: World, reader: MetadataStore, job: DataJob) -> Problem | None:
    """Why a driver would find nothing to do: it would succeed all the same, or never start. Raises
    StoreError, KubernetesError."""
    if job.spec.type == "PySpark":
        return await _script_problem(world, job)
    if job.spec.type == "LoadAnalytics":
        return None  # without a history it fails, and says so
    topic, namespace = _source(job)
    if namespace and await reader.get(keys.namespace(NamespaceName.parse(namespace))) is None:
        missing = f"namespace {namespace} does not exist in this cluster"
        return Problem(
            Reason.NAMESPACE_MISSING, f"{missing}; correct the name, or create the namespace first"
        )
    if not topic:
        return None
    try:
        await partition_count(reader, TopicName.parse(topic))
    except NamespaceNotFound as error:
        return Problem(Reason.NAMESPACE_MISSING, str(error))
    except TopicNotFound as error:
        return Problem(Reason.TOPIC_MISSING, str(error))
    return None


async def _credentials_problem(world: World, cluster: BrokerCluster) -> Problem | None:
    """Why no pod of a job would start. Raises KubernetesError."""
    chosen = credentials_of(cluster)
    if chosen is None:
        return None
    return (await read_credentials(world, cluster, chosen))[1]


def _source(job: DataJob) -> tuple[str, str]:
    """The topic whose messages a job works on, or the namespace; "" for the other one."""
    topics = job.spec.topics
    assert topics is not None, "the model's rules admit no such job without topic or namespace"
    return topics.topic or "", topics.namespace or ""


async def _script_problem(world: World, job: DataJob) -> Problem | None:
    """Raises KubernetesError."""
    script = job.spec.py_spark
    assert script is not None, "the model's rules admit no such job without a script"
    found = await world.api.get(BY_KIND["ConfigMap"], job.namespace, script.config_map)
    if found is not None and script.key in found.get("data", {}):
        return None
    missing = "does not exist" if found is None else f"has no entry {script.key}"
    reason = Reason.SCRIPT_MISSING
    return Problem(reason, f"ConfigMap {script.config_map} {missing}. {reason.remedy}")


def _view(
    job: DataJob,
    entry: Run,
    pods: JobPods,
    mine: JobPods,
    records: RunRecords,
    obstacle: Problem | None,
    now_ms: int,
    waits: Mapping[str, float],
) -> JobView:
    alone = job.spec.concurrency_policy != "Allow"
    return JobView(
        suspended=job.spec.suspend,
        limits=limits_of(job),
        last_attempt=entry.attempts,
        attempts=tuple(
            replace(attempt_of(pod), waited_s=waits.get(pod["metadata"]["uid"], 0.0))
            for pod in mine.drivers
        ),
        record=records.of(entry.run),
        other_driver=pods.driver_of_another(entry.run) if alone else "",
        now_ms=now_ms,
        obstacle=obstacle,
        not_started=not_started([*mine.drivers, *mine.executors]),
        executors_run=any_runs(mine.executors),
        gives_way=giving_way(job.spec.concurrency_policy, job.status.history).get(entry.run, ""),
        failures=Failures.of(entry.failures, entry.last_failure),
        error=entry.last_error,
        deadline_ms=wall_ms_of(entry.deadline_at) if entry.deadline_at else 0,
    )


# --- effects --------------------------------------------------------------------------------------


async def _advance(
    world: World,
    job: DataJob,
    cluster: BrokerCluster,
    pods: JobPods,
    records: RunRecords,
    obstacle: Problem | None,
) -> dict[str, Step]:
    """One step of every run under way, the oldest first. Raises KubernetesError."""
    steps, problems = {}, list[Problem]()
    made = ""
    waits = world.waits.seen(job.metadata.uid, pods.waiting(), world.clock.monotonic())
    for found in reversed(job.status.history):
        if is_over(found, records):
            continue
        now_ms = world.clock.wall_ms()
        entry, mine = with_deadline(job, found, now_ms), pods.of_run(found.run)
        view = _view(job, entry, pods, mine, records, obstacle, now_ms, waits)
        if made and job.spec.concurrency_policy != "Allow":
            view = replace(view, other_driver=made)
        decided = plan_job(view)
        if decided.state == RUNNING and not decided.stop:
            refused = await drivers.make_executors(world, job, cluster, mine)
            if refused is not None and view.not_started is None:
                decided = plan_job(replace(view, not_started=refused))
        if decided.degraded:
            problems.append(Problem(decided.reason, decided.message, entry.run))
        if decided.create:
            left_s = -(-(view.deadline_ms - now_ms) // 1000) if view.deadline_ms else None
            made = await drivers.begin_attempt(world, job, cluster, entry.run, decided, left_s)
        steps[entry.run] = Step(entry, decided)
    await world.events.standing(job, problems)
    return steps


async def _conclude(
    world: World,
    job: DataJob,
    cluster: BrokerCluster,
    pods: JobPods,
    planned: Schedule,
    steps: Mapping[str, Step],
    records: RunRecords,
) -> float | None:
    """Write what was decided, stop what is to be stopped, and forget what is too old. Raises
    KubernetesError."""
    now_ms = world.clock.wall_ms()
    plans = {run: step.plan for run, step in steps.items()}
    history = tuple(
        entry_after(steps[entry.run].entry, plans[entry.run], records.of(entry.run), now_ms)
        if entry.run in steps
        else entry
        for entry in job.status.history
    )
    kept = remembered(job, history)
    forgotten = {entry.run for entry in history} - {entry.run for entry in kept}
    if not await _forget(world, job, cluster, forgotten):
        kept = history
    ending_s, with_pods = _pods_kept(job, kept, now_ms)
    await drivers.delete_over(world, pods, with_pods)
    over = [entry.run for entry in history if entry.state in FINAL]
    await drivers.delete_waiting(world, pods, over)
    plan, progress = shown_plan(job, kept, plans), progress_of(kept, records)
    fields = status_fields(job, planned, kept, plan, progress)
    conditions = world.conditions(job, job.status.conditions, findings(plan))
    # First that a stopped attempt is not used up: its pod may be gone before anybody looks again.
    await world.write_status(
        job, job.status.model_copy(update={**fields, "conditions": conditions})
    )
    for run, decided in plans.items():
        if decided.stop:
            await drivers.stop(world, job, pods.of_run(run), decided.reason)
    await _report(world, job, history, plans, progress)
    waits = [decided.again_s for decided in plans.values() if decided.again_s is not None]
    if planned.next_ms and not job.spec.suspend:
        waits.append(max(AGAIN_MIN_S, (planned.next_ms - now_ms) / 1000))
    return min([*waits, *ending_s], default=None)


async def _report(
    world: World,
    job: DataJob,
    history: Sequence[Run],
    plans: Mapping[str, JobPlan],
    progress: JobProgress | None,
) -> None:
    """Say that runs have ended, and that the latest one is in another phase."""
    before = {entry.run: entry.state for entry in job.status.history}
    for entry in history:
        if entry.state in FINAL and before[entry.run] != entry.state:
            world.jobs.ended(entry)
            report = world.events.normal if entry.state == SUCCEEDED else world.events.warning
            decided = plans[entry.run]
            await report(job, decided.reason.value, f"run {entry.run}: {decided.message}")
    shown = job.status.progress
    if progress is not None and (shown is None or shown.phase != progress.phase):
        text = f"run {history[0].run}: {progress.phase}"
        if progress.topics_total:
            text += f"; {progress.topics_done} of {progress.topics_total} topics are done"
        await world.events.normal(job, "PhaseChanged", text)


async def _forget(world: World, job: DataJob, cluster: BrokerCluster, runs: Iterable[str]) -> bool:
    """Delete the records of runs; False if the store does not take it now: they stay in the
    history. Raises KubernetesError."""
    job_key = _job_key(job)
    deletions = [
        Delete(key)
        for run in sorted(runs)
        for key in (keys.job_run(job_key, run), keys.job_progress(job_key, run))
    ]
    if not deletions:
        return True
    try:
        await (await world.store_of(cluster)).write((), deletions)
    except (StoreError, TimeoutError):
        return False
    return True


def _pods_kept(job: DataJob, history: Sequence[Run], now_ms: int) -> tuple[list[float], list[str]]:
    """When the pods of runs that are over are to go, in seconds, and the runs whose pods stay."""
    ttl_s = job.spec.ttl_seconds_after_finished
    waits, runs = [], []
    for entry in history:
        left_s = float("inf")
        if entry.state in FINAL and ttl_s is not None and entry.finished_at:
            left_s = wall_ms_of(entry.finished_at) / 1000 + ttl_s - now_ms / 1000
        if left_s > 0:
            runs.append(entry.run)
            if left_s != float("inf"):
                waits.append(left_s)
    return waits, runs
