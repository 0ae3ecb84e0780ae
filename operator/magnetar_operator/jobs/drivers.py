"""Making and deleting a job's pods.

Owns: the effects of the plans of runs on Kubernetes. Imports: world, jobs.plan, jobs.pods,
pods.care, builders. Invariants: pods have deterministic names, so making one twice is refused; only
pods that this resource owns are touched, and by force only one that is terminating on a lost node;
a driver has no rights: its executors are made and deleted here.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob
from magnetar_operator import names
from magnetar_operator.brokers.desired import identity_of
from magnetar_operator.builders.job_pods import (
    SECRET_BYTES,
    driver_pod,
    executor_pod,
    job_policy,
    job_secret,
)
from magnetar_operator.builders.service_account import spark_account
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.planning import Create, Update, plan
from magnetar_operator.engine.world import World
from magnetar_operator.jobs.plan import JobPlan
from magnetar_operator.jobs.pods import (
    JobPods,
    attempt_of,
    drivers_at_work,
    left_over,
    missing_executors,
)
from magnetar_operator.kube.errors import ApiRefused, NamespaceTerminating
from magnetar_operator.kube.kinds import BY_KIND, POD, SECRET
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.care import delete_lost, lost_nodes


async def pods_of(world: World, job: DataJob) -> JobPods:
    """Raises KubernetesError."""
    found = await world.api.list(POD, job.namespace, names.selector_text({names.JOB: job.name}))
    return JobPods.among(found, job.metadata.uid)


async def let_go(world: World, job: DataJob, pods: JobPods) -> None:
    """End the wait for pods that were deleted and whose node cannot confirm it, and delete
    executors without a driver. Raises KubernetesError.

    A driver that runs on all the same does no harm: of two commits the second fails, and a success
    stays recorded. No run waits for one, so that Kubernetes' own eviction decides when the pods of
    a silent node are to go: each costs an attempt.
    """
    everything = (*pods.drivers, *pods.executors)
    going = [pod for pod in everything if broker_pods.is_terminating(pod)]
    await delete_lost(world, job, going, await lost_nodes(world, going))
    for executor in left_over(pods.executors, drivers_at_work(pods.drivers)):
        await world.api.delete(executor)


async def stop(world: World, job: DataJob, pods: JobPods, reason: Reason) -> None:
    """Stop a run's drivers and their executors. Raises KubernetesError."""
    for pod in pods.executors:
        await world.api.delete(pod)
    for pod in pods.drivers:
        if (
            not attempt_of(pod).is_over
            and not broker_pods.is_terminating(pod)
            and await world.api.delete(pod)
        ):
            await world.events.normal(
                job, reason.value, f"driver {pod['metadata']['name']} is stopped"
            )


async def begin_attempt(
    world: World,
    job: DataJob,
    cluster: BrokerCluster,
    run: str,
    decided: JobPlan,
    deadline_s: int | None,
) -> str:
    """Make the driver of an attempt; its name. Raises KubernetesError."""
    await _ensure_parts(world, job, cluster)
    manifest = driver_pod(job, cluster, world.defaults, run, decided.create, deadline_s)
    name = str(manifest["metadata"]["name"])
    if await world.api.create(POD, manifest) is not None:
        await world.events.normal(job, "Started", f"{decided.message} (run {run}, pod {name})")
    return name


async def make_executors(
    world: World, job: DataJob, cluster: BrokerCluster, pods: JobPods
) -> Problem | None:
    """Make the executors that drivers at work lack; why Kubernetes refuses one. Raises
    KubernetesError."""
    for driver in drivers_at_work(pods.drivers):
        for number in missing_executors(driver, pods.executors, job.spec.executors.instances):
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


async def delete_over(world: World, pods: JobPods, runs: Sequence[str]) -> None:
    """Delete drivers that have ended, of all runs but these. Raises KubernetesError."""
    labels = {run[: names.LABEL_LENGTH_MAX] for run in runs}
    for label, pod in pods.over():
        if label not in labels:
            await world.api.delete(pod)


async def delete_waiting(world: World, pods: JobPods, runs: Sequence[str]) -> None:
    """Delete drivers of these runs, which are over, that have not begun to run: the next run would
    wait for them. Raises KubernetesError."""
    for run in runs:
        mine = pods.of_run(run)
        waiting = set(mine.waiting())
        for pod in mine.drivers:
            if pod["metadata"]["uid"] in waiting and not broker_pods.is_terminating(pod):
                await world.api.delete(pod)


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
