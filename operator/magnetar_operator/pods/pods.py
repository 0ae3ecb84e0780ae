"""Reading broker pods.

Owns: what a pod's manifest says about readiness, trouble and age, and what is said of pods on lost
nodes. Imports: builders.object, conditions, names, rolling. Pure. Invariant: fields that a kubelet
has not written yet are absent, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar_operator import names
from magnetar_operator.brokers.scaling import Cordon
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason, wall_ms_of
from magnetar_operator.pods.rolling import BrokerPod, difference_of

NODE_LOST_S = 30.0
LAST_WORDS_MAX = 300
_IMAGE_TROUBLE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
)
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")

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
    found = {
        names.ordinal_of(name_of(pod)): str(pod.get("status", {}).get("hostIP", ""))
        for pod in sorted_by_ordinal(pods)
    }
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
    """Why the pod is not ready, in the words of the kubelet or the scheduler; "" if they say
    nothing."""
    problem = problem_of(pod)
    return problem.message if problem is not None else str(pod.get("status", {}).get("message", ""))


def problem_of(pod: Manifest) -> Problem | None:
    """What keeps the pod from becoming ready, if it is more than time."""
    status = pod.get("status", {})
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        said = ": ".join(filter(None, (scheduled.get("reason"), scheduled.get("message"))))
        return Problem(Reason.POD_UNSCHEDULABLE, f"not scheduled: {said}")
    for container in (
        *status.get("initContainerStatuses", []),
        *status.get("containerStatuses", []),
    ):
        problem = _container_problem(container)
        if problem is not None:
            return problem
    return None


def _container_problem(container: Manifest) -> Problem | None:
    waiting = container.get("state", {}).get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    said = f"{reason}: {waiting.get('message', '')}".removesuffix(": ")
    if reason in _IMAGE_TROUBLE:
        return Problem(Reason.IMAGE_UNAVAILABLE, said)
    ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get(
        "terminated"
    )
    if (
        ended
        and (ended.get("exitCode") or reason == "CrashLoopBackOff")
        and not container.get("ready")
    ):
        # The kubelet's own words say how long it pauses, which is news again and again.
        cause = f" ({ended['reason']})" if ended.get("reason") else ""
        last = _last_words(str(ended.get("message", "")))
        return Problem(
            Reason.POD_CRASHING, f"it ended with exit code {ended.get('exitCode')}{cause}{last}"
        )
    if reason == "CrashLoopBackOff":
        return Problem(Reason.POD_CRASHING, "it ends again and again")
    return Problem(Reason.CONTAINER_NOT_STARTED, said) if reason not in ("", *_ON_ITS_WAY) else None


def _last_words(message: str) -> str:
    """The last line of what a container left, which of a traceback is the error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return f", saying: {lines[-1][:LAST_WORDS_MAX]}" if lines else ""


def first_leaving(pods: Sequence[Manifest]) -> str:
    """The name of the first pod that is stopping; "" if none is."""
    return next((name_of(pod) for pod in pods if is_terminating(pod)), "")


def first_trouble(pods: Sequence[Manifest]) -> str:
    """The first pod that is not ready and of which something is said, with what is said of it;
    "" if there is none."""
    return next(
        (
            f"{name_of(pod)}: {trouble_of(pod)}"
            for pod in pods
            if not is_ready(pod) and trouble_of(pod)
        ),
        "",
    )


def pod_problems(pods: Sequence[Manifest]) -> list[Problem]:
    """What keeps each pod that does not come up by itself from being ready, and what to do."""
    found = [
        (name_of(pod), problem_of(pod))
        for pod in sorted_by_ordinal(pods)
        if not (is_ready(pod) or is_terminating(pod))
    ]
    return [
        Problem(problem.reason, f"{name}: {problem.message}. {problem.reason.remedy}", name)
        for name, problem in found
        if problem is not None
    ]


def lost_nodes_problem(nodes: LostNodes) -> Problem | None:
    """What is to be said of nodes that do not answer."""
    # Without the seconds the message, and so the status, stays the same while nothing changes.
    return (
        Problem(
            Reason.NODE_LOST, f"nodes that do not answer: {', '.join(node for node, _ in nodes)}"
        )
        if nodes
        else None
    )


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
