"""Reading broker pods.

Owns: what a pod's manifest says about readiness, trouble and age, and what is said of pods on lost nodes. Imports: builders.object, conditions,
names, rolling. Pure.
Invariant: fields that a kubelet has not written yet are absent, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason, wall_ms_of
from magnetar_operator.rolling import BrokerPod, difference_of
from magnetar_operator.scaling import Cordon

NODE_LOST_S = 30.0

LostNodes = tuple[tuple[str, float], ...]
"""Nodes that do not answer, and for how many seconds."""


def is_terminating(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Manifest) -> bool:
    return _condition(pod, "Ready").get("status") == "True" and not is_terminating(pod)


def name_of(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def node_of(pod: Manifest) -> str:
    return str(pod["spec"].get("nodeName", ""))


def node_addresses(pods: Sequence[Manifest]) -> dict[int, str]:
    """Ordinal -> address of the node, of the pods that have one."""
    found = {names.ordinal_of(name_of(pod)): str(pod.get("status", {}).get("hostIP", "")) for pod in sorted_by_ordinal(pods)}
    return {ordinal: address for ordinal, address in found.items() if address}


def sorted_by_ordinal(pods: Sequence[Manifest]) -> list[Manifest]:
    return sorted(pods, key=lambda pod: names.ordinal_of(name_of(pod)))


def phase_of(pod: Manifest, cordons: Mapping[str, Cordon]) -> str:
    """Pending, Starting, Ready, Draining, Terminating or Failed."""
    phase = pod.get("status", {}).get("phase", "Pending")
    if is_terminating(pod):
        return "Terminating"
    if is_ready(pod):
        cordon = cordons.get(name_of(pod))
        return "Draining" if cordon is not None and cordon.drain else "Ready"
    return {"Running": "Starting", "Failed": "Failed"}.get(phase, "Pending")


def trouble_of(pod: Manifest) -> str:
    """Why the pod is not ready, in the words of the kubelet or the scheduler; "" if they say nothing."""
    status = pod.get("status", {})
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"not scheduled: {scheduled.get('message', scheduled.get('reason', ''))}"
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated")
        if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
            last = f"; it ended with exit code {ended.get('exitCode')}" if ended else ""
            return f"{waiting.get('reason')}: {waiting.get('message', '')}{last}".strip(": ")
    return str(status.get("message", ""))


def first_leaving(pods: Sequence[Manifest]) -> str:
    """The name of the first pod that is stopping; "" if none is."""
    return next((name_of(pod) for pod in pods if is_terminating(pod)), "")


def first_trouble(pods: Sequence[Manifest]) -> str:
    """The first pod that is not ready and of which something is said, with what is said of it; "" if there is none."""
    return next((f"{name_of(pod)}: {trouble_of(pod)}" for pod in pods if not is_ready(pod) and trouble_of(pod)), "")


def lost_nodes_problem(nodes: LostNodes) -> Problem | None:
    """What is to be said of nodes that do not answer."""
    # Without the seconds the message, and so the status, stays the same while nothing changes.
    return Problem(Reason.NODE_LOST, f"nodes that do not answer: {', '.join(node for node, _ in nodes)}") if nodes else None


def rolling_view(pods: Sequence[Manifest], stateful_set: Manifest | None) -> list[BrokerPod]:
    """What `plan_roll` looks at."""
    template = stateful_set["spec"]["template"] if stateful_set is not None else None
    return [
        BrokerPod(
            name=name_of(pod),
            revision=pod["metadata"].get("labels", {}).get(names.REVISION, ""),
            ready=is_ready(pod),
            terminating=is_terminating(pod),
            difference=difference_of(pod, template) if template is not None else "",
            uid=str(pod["metadata"].get("uid", "")),
        )
        for pod in pods
    ]


def lost_for_s(node: Manifest, wall_ms: int) -> float:
    """For how long the node has not been ready; 0 while it is."""
    ready = _condition(node, "Ready")
    if not ready or ready.get("status") == "True":
        return 0.0
    return max(0.0, (wall_ms - wall_ms_of(ready["lastTransitionTime"])) / 1000)


def _condition(owner: Manifest, kind: str) -> Manifest:
    conditions: list[Manifest] = owner.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})
