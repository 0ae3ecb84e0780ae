"""Reading a managed etcd's pods and sizes, and saying what it is.

Owns: `EtcdLifecycle`, the view that plans are made on, which image the pods get, and status.etcd.
Imports: pods.pods, conditions, etcd siblings, builders, resources. Pure. Invariants: fields that a
kubelet has not written yet are absent, not errors; the same view gives the same status, and sizes
in it change only with a tenth of themselves, so that a steady state writes none; clients are given
other endpoints only while etcd is as wanted; a new image of the start container alone restarts
no member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import EtcdMemberStatus, EtcdStatus, ManagedEtcd
from magnetar_operator import names
from magnetar_operator.builders.etcd_set import START, EtcdShape, etcd_set
from magnetar_operator.builders.object import Defaults, Manifest, member_endpoints
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.planning import differences
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.figures import Figures, Sighting
from magnetar_operator.etcd.membership import MEMBERS_MAX, EtcdPlan, EtcdPod, EtcdView, Restart
from magnetar_operator.etcd.upkeep import Upkeep
from magnetar_operator.etcd.versions import choose_image
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.rolling import difference_of

CLAIM = "data"
_PULL_TROUBLE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
)
_MIB = 1 << 20


MOVING_S = 1.0
TROUBLE_S = 5.0
RESTED_S = 30.0

_UNDER_WAY = frozenset(
    {
        Reason.ETCD_SCALING,
        Reason.ETCD_REPLACING,
        Reason.ETCD_ROLLING,
        Reason.ETCD_ROLL_WAITS,
        Reason.STORE_STARTING,
    }
)
"""Reasons of Progressing; all others of etcd's are reasons of Degraded."""


@dataclass(frozen=True, slots=True)
class EtcdLifecycle:
    """What was seen of a managed etcd, and what is to be done about it."""

    plan: EtcdPlan
    upkeep: Upkeep
    shape: EtcdShape
    status: EtcdStatus
    seen: Sighting
    pods: tuple[Manifest, ...]
    refused: str = ""

    @property
    def problems(self) -> list[Problem]:
        """What Degraded says."""
        found = []
        if self.upkeep.reason is not None:
            found.append(Problem(self.upkeep.reason, self.upkeep.message))
        if self.plan.reason is not None and self.plan.reason not in _UNDER_WAY:
            found.append(Problem(self.plan.reason, self.plan.message))
        if self.refused:
            found.append(Problem(Reason.ETCD_VERSION, self.refused))
        return found

    @property
    def pod_problems(self) -> list[Problem]:
        """What keeps pods from being ready, but for those without data: of them the plan speaks,
        and it may be about to let them join."""
        return broker_pods.pod_problems(
            [
                pod
                for pod in self.pods
                if not _start_refusal(pod.get("status", {})).startswith(etcd_start.EMPTY)
            ]
        )

    @property
    def progress(self) -> Problem | None:
        """What Progressing says."""
        return (
            Problem(self.plan.reason, self.plan.message)
            if self.plan.reason in _UNDER_WAY and self.plan.reason
            else None
        )

    @property
    def restarting(self) -> str:
        """The restart that begins now, or under which there is no etcd: clients are not restarted
        during it. "" = none."""
        going = [broker_pods.name_of(pod) for pod in self.pods if broker_pods.is_terminating(pod)]
        if isinstance(self.plan.step, Restart):
            return f"the restart of etcd pod {self.plan.step.ordinal}"
        return f"the successor of {going[0]}" if going and len(self.pods) == 1 else ""

    @property
    def again_s(self) -> float:
        """Seconds after which to look again: etcd's own changes have no Kubernetes events."""
        if (
            self.plan.step is not None
            or not self.upkeep.is_idle
            or self.plan.reason is Reason.ETCD_SCALING
        ):
            return MOVING_S
        return (
            TROUBLE_S
            if self.plan.reason is not None or self.upkeep.reason is not None
            else RESTED_S
        )


def view_of(
    cluster: BrokerCluster,
    managed: ManagedEtcd,
    stateful_set: Manifest | None,
    config: Manifest | None,
    pods: Iterable[Manifest],
    claims: Iterable[Manifest],
    seen: Sighting,
) -> EtcdView:
    """One look. `config` is the ConfigMap as it is."""
    return EtcdView(
        wanted=managed.replicas,
        replicas=stateful_set["spec"]["replicas"] if stateful_set is not None else None,
        pods={
            names.ordinal_of(broker_pods.name_of(pod)): pod_of(pod, stateful_set) for pod in pods
        },
        claims=frozenset(names.ordinal_of(claim["metadata"]["name"]) for claim in claims),
        known=is_known(cluster),
        members=seen.members,
        voices=seen.voices,
        admission=_admission(config),
    )


def is_known(cluster: BrokerCluster) -> bool:
    """Whether its etcd has been up, and no restore says that this one is lost and an empty one
    may be begun."""
    identity = cluster.status.etcd.cluster_id
    if identity and identity in (
        cluster.metadata.annotations.get(names.BEGIN_ETCD, ""),
        cluster.status.restore.replaces,
    ):
        return False
    return bool(identity or cluster.status.storage_id)


def _admission(config: Manifest | None) -> int | None:
    opened = config.get("data", {}).get(etcd_start.OPEN, "") if config is not None else ""
    return names.ordinal_of(opened) if opened else None


def pod_of(pod: Manifest, stateful_set: Manifest | None) -> EtcdPod:
    """What one pod's manifest says."""
    ready = broker_pods.is_ready(pod)
    status = pod.get("status", {})
    ended = any(
        item.get("restartCount", 0) or "terminated" in item.get("state", {})
        for item in status.get("containerStatuses", [])
    )
    return EtcdPod(
        ready=ready,
        terminating=broker_pods.is_terminating(pod),
        outdated=_outdated(pod, stateful_set),
        empty=_start_refusal(status).startswith(etcd_start.EMPTY),
        failing=ended and not ready,
    )


def _outdated(pod: Manifest, stateful_set: Manifest | None) -> str:
    """What the newest template has otherwise; "" until the StatefulSet's controller has seen it."""
    status = stateful_set.get("status", {}) if stateful_set is not None else {}
    if stateful_set is None or status.get("observedGeneration") != stateful_set["metadata"].get(
        "generation"
    ):
        return ""
    newest = status.get("updateRevision", "")
    if not newest or pod["metadata"].get("labels", {}).get(names.REVISION, "") == newest:
        return ""
    return difference_of(pod, stateful_set["spec"]["template"])


def _start_refusal(status: Manifest) -> str:
    """How the start container ended last, while it has not passed."""
    for item in status.get("initContainerStatuses", []):
        state = item.get("state", {})
        if item.get("name") != START or state.get("terminated", {}).get("exitCode") == 0:
            continue
        ended = state.get("terminated") or item.get("lastState", {}).get("terminated") or {}
        return str(ended.get("message", ""))
    return ""


def is_mine(cluster: BrokerCluster, pod: Manifest) -> bool:
    """Whether it is a pod of the cluster's etcd set."""
    stem, _, ordinal = broker_pods.name_of(pod).rpartition("-")
    return stem == names.etcd_set(cluster.name) and ordinal.isdigit()


def is_claim(cluster: BrokerCluster, claim: Manifest) -> bool:
    """Whether it is a member's volume."""
    stem, _, ordinal = str(claim["metadata"]["name"]).rpartition("-")
    return stem == f"{CLAIM}-{names.etcd_set(cluster.name)}" and ordinal.isdigit()


# --- the set --------------------------------------------------------------------------------------


def shape_of(
    cluster: BrokerCluster,
    managed: ManagedEtcd,
    defaults: Defaults,
    plan: EtcdPlan,
    stateful_set: Manifest | None,
    pods: Iterable[Manifest],
    figures: Mapping[int, Figures],
) -> tuple[EtcdShape, str]:
    """The set that is wanted now, and why it does not get the image wanted ("" = it does)."""
    wanted = managed.image or defaults.etcd_image
    spare = plan.replicas == MEMBERS_MAX and plan.reason not in (
        Reason.ETCD_SCALING,
        Reason.ETCD_REPLACING,
    )
    if stateful_set is None:
        return EtcdShape(plan.replicas, plan.admission, wanted, spare=spare), ""
    template = stateful_set["spec"]["template"]
    current = next(
        (item["image"] for item in template["spec"]["containers"] if item["name"] == "etcd"), ""
    )
    image, problem = choose_image(wanted, current, [seen.version for seen in figures.values()])
    start = next(
        (
            item["image"]
            for item in template["spec"].get("initContainers", [])
            if item["name"] == START
        ),
        "",
    )
    kept = EtcdShape(plan.replicas, plan.admission, image, start, spare)
    candidate = etcd_set(cluster, managed, defaults, kept)["spec"]["template"]
    if (
        start
        and not any(map(_cannot_pull_start, pods))
        and not any(differences(candidate, template))
    ):
        return kept, problem
    return EtcdShape(plan.replicas, plan.admission, image, spare=spare), problem


def _cannot_pull_start(pod: Manifest) -> bool:
    statuses = pod.get("status", {}).get("initContainerStatuses", [])
    return any(
        item.get("state", {}).get("waiting", {}).get("reason") in _PULL_TROUBLE for item in statuses
    )


# --- the status -----------------------------------------------------------------------------------


def status_of(
    cluster: BrokerCluster,
    managed: ManagedEtcd,
    plan: EtcdPlan,
    seen: Sighting,
    ordinals: Iterable[int],
) -> EtcdStatus:
    """status.etcd. What cannot be seen now stays as it was."""
    before = cluster.status.etcd
    identity = (
        next((f"{figures.cluster:x}" for figures in seen.figures.values()), "")
        if seen.members is not None
        else ""
    )
    as_wanted = seen.members is not None and plan.step is None and plan.reason is None
    sizes = [(figures.size // _MIB, figures.used // _MIB) for figures in seen.figures.values()]
    size, used = max(sizes, default=(before.database_mib, before.used_mib))
    return EtcdStatus(
        cluster_id=identity or before.cluster_id,
        members=tuple(_member(cluster, seen, ordinal) for ordinal in sorted(ordinals)),
        endpoints=member_endpoints(cluster, managed.replicas) if as_wanted else before.endpoints,
        database_mib=_steady(before.database_mib, size),
        used_mib=_steady(before.used_mib, used),
        quota_mib=managed.quota_mib,
        pending_restarts=tuple(
            f"{names.etcd_member(cluster.name, ordinal)}: {why}" for ordinal, why in plan.pending
        ),
    )


def _member(cluster: BrokerCluster, seen: Sighting, ordinal: int) -> EtcdMemberStatus:
    entry = next((member for member in seen.members or () if member.ordinal == ordinal), None)
    figures = seen.figures.get(ordinal)
    role = ""
    if figures is not None:
        leads = figures.voice.leader == figures.voice.member
        role = "Leader" if leads else "Learner" if figures.learner else "Follower"
    return EtcdMemberStatus(
        name=names.etcd_member(cluster.name, ordinal),
        id=f"{entry.id:x}"
        if entry is not None
        else f"{figures.voice.member:x}"
        if figures is not None
        else "",
        role=role,
        version=figures.version if figures is not None else "",
    )


def _steady(before: int, now: int) -> int:
    """The former value unless it has changed by more than a tenth and 8 MiB."""
    return now if abs(now - before) > max(8, before // 10) or not before else before
