"""Which pod is restarted next.

Owns: the decision, why a pod needs a restart, and what is said of it. Imports: names,
builders.object, conditions. Pure. Invariants: at most one broker is restarted at a time; an
outdated pod that is sick goes first, because restarting it costs nothing; a healthy one
goes only while every other broker is ready and the metadata store answers; nothing is restarted
while the number of brokers changes. Deleting a pod is a drain: it gets SIGTERM and the grace period
to transfer its bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """What rolling looks at."""

    name: str
    revision: str
    ready: bool
    terminating: bool
    difference: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class RollPlan:
    """`restart` is the pod to delete now ("" = none); `pending` all outdated ones with the
    reason; `waits_for` what the next restart waits for."""

    restart: str = ""
    pending: tuple[tuple[str, str], ...] = ()
    waits_for: str = ""

    @property
    def progress(self) -> Problem | None:
        """What is to be said while pods are outdated."""
        if self.restart:
            return Problem(
                Reason.ROLLING,
                f"{self.restart} is restarted; {len(self.pending)} pods have an old template",
            )
        if self.pending:
            return Problem(
                Reason.ROLL_WAITS,
                f"{len(self.pending)} pods have an old template; waiting for {self.waits_for}",
            )
        return None


def plan_roll(
    pods: Sequence[BrokerPod],
    revision: str,
    replicas: int,
    scaling: bool,
    what: str = "brokers",
    awaits: str = "",
) -> RollPlan:
    """The next restart. `revision` is the StatefulSet's update revision ("" = not known yet);
    `what` the pods are, in the plural; `awaits` is what a healthy pod waits for ("" = nothing),
    because it could not transfer what it has, nor its successor begin. A sick one hands nothing
    over in any case, and only by its restart a bad template is replaced by a good one."""
    ordered = sorted(pods, key=lambda pod: names.ordinal_of(pod.name))
    outdated = [
        pod for pod in ordered if revision and pod.revision != revision and not pod.terminating
    ]
    pending = tuple((pod.name, pod.difference) for pod in outdated)
    if not outdated:
        return RollPlan()
    terminating = next((pod.name for pod in ordered if pod.terminating), "")
    if scaling or terminating:
        return RollPlan(
            pending=pending, waits_for=terminating or f"{what} that are added, removed or replaced"
        )
    sick = next((pod.name for pod in outdated if not pod.ready), "")
    if sick:
        return RollPlan(sick, pending)
    if awaits:
        return RollPlan(pending=pending, waits_for=awaits)
    unready = next((pod.name for pod in ordered if not pod.ready), "")
    if unready or len(ordered) < replicas:
        return RollPlan(
            pending=pending,
            waits_for=unready or f"{replicas - len(ordered)} {what} that do not exist yet",
        )
    # The highest ordinal first, as a StatefulSet does it: the lowest is the one that scaling keeps
    # longest.
    return RollPlan(outdated[-1].name, pending)


def held(plan: RollPlan, problems: Sequence[Problem]) -> RollPlan:
    """The plan while `problems` would keep a pod that is made now from starting: no pod is
    restarted, whatever state he is in."""
    return (
        replace(plan, restart="", waits_for=f"the end of this: {problems[0].message}")
        if problems
        else plan
    )


def difference_of(pod: Manifest, template: Manifest) -> str:
    """What a pod's template differs in: Image, Config or Template."""
    containers = {item["name"]: item.get("image") for item in pod["spec"].get("containers", [])}
    if any(
        containers.get(item["name"]) != item.get("image") for item in template["spec"]["containers"]
    ):
        return "Image"
    annotations = pod["metadata"].get("annotations", {})
    if annotations.get(names.CONFIG_HASH) != template["metadata"].get("annotations", {}).get(
        names.CONFIG_HASH
    ):
        return "Config"
    return "Template"
