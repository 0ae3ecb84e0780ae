"""`magnetar drain --replace`: a broker's pod is drained, deleted and comes back.

Owns: the request (an annotation on the pod's BrokerCluster, written with the user's own rights) and
waiting for its end. Imports: kubernetes, screen. Invariants: the request names the pod's uid, so that
repeating it does nothing to the successor; requests of others stay; nothing but the annotation is
written, because the operator does the work.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from magnetar.cli.failures import REFUSED, Refused, WrongUsage
from magnetar.cli.kubernetes import CONFLICT, NOT_FOUND, Kubernetes, Manifest
from magnetar.clock import SystemClock

if TYPE_CHECKING:
    from magnetar.cli.screen import Screen

LOOK_S = 1.0
CONFLICTS_MAX = 10
CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Target:
    """The pod to replace and the cluster that it belongs to."""

    pod: Manifest
    cluster: Manifest

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def cluster_name(self) -> str:
        return str(self.cluster["metadata"]["name"])

    @property
    def brokers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.get("status", {}).get("brokers", [])
        return found


def run_replace(
    kubernetes: Kubernetes,
    screen: Screen,
    pod: str,
    *,
    undo: bool,
    dry_run: bool,
    wait: bool,
    force: bool,
    timeout_s: float,
) -> int:
    """Ask for the replacement of `pod`, or (`undo`) take the request back; the exit code."""
    target = _target(kubernetes, pod)
    if undo:
        _request(kubernetes, target, withdraw=True)
        screen.done(
            f"{pod} is not replaced, if it had not been yet; it takes bundles again",
            pod=pod,
            cluster=target.cluster_name,
        )
        return 0
    _check(target, force)
    bundles = next((int(row["bundles"]) for row in target.brokers if row["name"] == pod), 0)
    if dry_run:
        others = [str(row["name"]) for row in target.brokers if row["name"] != pod]
        where = (
            f"to {', '.join(others)}"
            if others
            else "to no other broker: they are served again when it is back"
        )
        sentence = (
            f"{pod} would hand {bundles} bundles over {where}; then its pod is deleted and comes "
            "back"
        )
        screen.done(
            sentence, pod=pod, cluster=target.cluster_name, bundles=bundles, candidates=others
        )
        return 0
    _request(kubernetes, target, withdraw=False)
    if not wait:
        screen.done(
            f"{pod} is to be replaced; kubectl describe brokercluster {target.cluster_name} shows "
            "how far it is",
            pod=pod,
        )
        return 0
    return _await(kubernetes, screen, target, timeout_s)


def _target(kubernetes: Kubernetes, pod: str) -> Target:
    """Raises Refused if there is no such pod, WrongUsage if it is no broker's."""
    from magnetar_operator import names
    from magnetar_operator.kube.kinds import POD

    found = kubernetes.get(POD, pod)
    if found is None:
        raise Refused(
            NOT_FOUND,
            f"there is no pod {pod}",
            "kubectl get pods --selector app.kubernetes.io/component=broker lists them; -n "
            "NAMESPACE chooses the namespace",
        )
    labels = found["metadata"].get("labels", {})
    cluster = labels.get(names.CLUSTER, "")
    if labels.get(names.COMPONENT) != names.BROKER or not names.is_broker_pod(cluster, pod):
        raise WrongUsage(f"{pod} is not a broker's pod", "name one such as main-broker-0")
    return Target(found, _cluster_of(kubernetes, found))


def _cluster_of(kubernetes: Kubernetes, pod: Manifest) -> Manifest:
    """Raises Refused if the pod's cluster is gone."""
    from magnetar_operator import names
    from magnetar_operator.kube.kinds import BROKER_CLUSTER

    cluster = pod["metadata"]["labels"][names.CLUSTER]
    owner = kubernetes.get(BROKER_CLUSTER, cluster)
    if owner is None:
        what = f"{pod['metadata']['name']} belongs to BrokerCluster {cluster}, which does not exist"
        raise Refused(NOT_FOUND, what, "make the cluster again: its volumes are kept")
    return owner


def _check(target: Target, force: bool) -> None:
    """Raises Refused for what would not work, or would hurt without --force."""
    from magnetar_operator import names

    paused = target.cluster["metadata"].get("annotations", {}).get(names.PAUSED, "")
    if paused.lower() in ("true", "yes", "1"):
        raise Refused(
            CONFLICT,
            f"BrokerCluster {target.cluster_name} is paused",
            f"remove its annotation {names.PAUSED}",
        )
    if len(target.brokers) <= 1 and not force:
        raise Refused(
            CONFLICT,
            f"{target.name} is the only broker: its topics are not served until it is back",
            "add one, or use --force",
        )


def _request(kubernetes: Kubernetes, target: Target, withdraw: bool) -> None:
    """Add the request to the annotation, or take it out; those whose pods are gone go too.
    Raises Refused."""
    for _ in range(CONFLICTS_MAX):
        try:
            _annotate(kubernetes, target, withdraw)
            return
        except Refused as error:
            # The operator writes the status often, and each time the cluster gets another version.
            if error.status != CONFLICT:
                raise
        target = replace(target, cluster=_cluster_of(kubernetes, target.pod))
    raise Refused(CONFLICT, f"BrokerCluster {target.cluster_name} keeps changing", "try again")


def _annotate(kubernetes: Kubernetes, target: Target, withdraw: bool) -> None:
    """Write the annotation if the cluster is still the one that was read. Raises Refused, with
    CONFLICT if it is not."""
    from magnetar_operator import names
    from magnetar_operator.brokers.replacing import requests_of
    from magnetar_operator.kube.kinds import BROKER_CLUSTER, POD

    current = target.cluster["metadata"].get("annotations", {}).get(names.REPLACE, "")
    known = list(requests_of(current))
    pods = kubernetes.list(POD, f"{names.CLUSTER}={target.cluster_name}") if known else []
    alive = {(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods}
    mine = (target.name, target.uid)
    wanted = [request for request in known if request in alive and request != mine] + (
        [] if withdraw else [mine]
    )
    if known == wanted:
        return
    text = ",".join(f"{pod}@{uid}" for pod, uid in wanted)
    kubernetes.annotate(BROKER_CLUSTER, target.cluster, names.REPLACE, text)


def _await(kubernetes: Kubernetes, screen: Screen, target: Target, timeout_s: float) -> int:
    """Show what the operator says until the successor is ready."""
    from magnetar_operator.kube.kinds import BROKER_CLUSTER, POD

    started, shown = CLOCK.monotonic(), ""
    while True:
        pod = kubernetes.get(POD, target.name)
        cluster = kubernetes.get(BROKER_CLUSTER, target.cluster_name) or target.cluster
        conditions = {
            found["type"]: found for found in cluster.get("status", {}).get("conditions", [])
        }
        if (
            pod is not None
            and pod["metadata"]["uid"] != target.uid
            and _is_ready(pod)
            and _is_lifted(cluster)
        ):
            seconds = CLOCK.monotonic() - started
            screen.done(
                f"{target.name} was drained, has been replaced and is ready again",
                pod=target.name,
                replaced=True,
                seconds=round(seconds, 1),
            )
            return 0
        stuck = conditions.get("Degraded", {})
        says = stuck if stuck.get("status") == "True" else conditions.get("Progressing", {})
        message = str(says.get("message", ""))
        if message != shown and says.get("status") == "True":
            shown = message
            screen.note(message)
        if CLOCK.monotonic() - started > timeout_s:
            return _gave_up(screen, target.name, message, timeout_s)
        threading.Event().wait(LOOK_S)


def _gave_up(screen: Screen, pod: str, message: str, timeout_s: float) -> int:
    undo = f"magnetar drain --replace {pod} --undo"
    sentence = (
        f"{pod} is not replaced after {timeout_s:.0f} s: {message}\n  The request stands; {undo} "
        "takes it back"
    )
    screen.show({"pod": pod, "replaced": False, "message": message}, lambda: screen.line(sentence))
    return REFUSED


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def _is_lifted(cluster: Manifest) -> bool:
    """Whether the operator has finished with it: the cordon is off."""
    action: str = cluster.get("status", {}).get("scaling", {}).get("action", "")
    return action != "Replace"
