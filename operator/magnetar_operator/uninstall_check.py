"""`python -m magnetar_operator.uninstall_check`: whether the operator may go.

Owns: what `helm uninstall` asks first, and its sentence. Imports: kube.api, resources, events.
Invariants: it lists, and writes one Event when it objects, since its Job goes when it has failed;
exit code 0 = nothing needs the operator, 1 = something does, 2 = it could not be found out (then
the operator stays).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Sequence

from magnetar.clock import SystemClock
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube.api import KubernetesApi, connect
from magnetar_operator.kube.errors import KubernetesError
from magnetar_operator.kube.events import event
from magnetar_operator.kube.kinds import BROKER_CLUSTER, TOPIC_NAMESPACE, Resource
from magnetar_operator.metrics import OperatorMetrics

SHOWN_MAX = 5
REASON = "UninstallRefused"


def objection(clusters: Iterable[Manifest], namespaces: Iterable[Manifest]) -> str:
    """Why the operator has to stay, with what to do; "" if it need not."""
    left = sorted(_reference(item) for item in clusters)
    held = sorted(_reference(item) for item in namespaces if item["metadata"].get("finalizers"))
    if not left and not held:
        return ""
    sentences = []
    if left:
        sentences.append(
            f"BrokerClusters exist ({_shown(left)}): without an operator nothing scales, repairs or "
            "restarts their brokers."
        )
    if held:
        sentences.append(
            f"TopicNamespaces have a finalizer ({_shown(held)}): without an operator their "
            "deletion would never end."
        )
    sentences.append(
        "Delete them first (volumes stay), or run helm uninstall with --no-hooks to leave them as "
        "they are."
    )
    return " ".join(sentences)


def _reference(manifest: Manifest) -> str:
    return f"{manifest['metadata'].get('namespace', '')}/{manifest['metadata']['name']}"


def _shown(references: Sequence[str]) -> str:
    more = f" and {len(references) - SHOWN_MAX} more" if len(references) > SHOWN_MAX else ""
    return ", ".join(references[:SHOWN_MAX]) + more


def objecting(objection: str, job: str, namespace: str, wall_ms: int) -> Manifest:
    """The Event of an objection, for those who do not see what the Job has printed."""
    involved = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "namespace": namespace}
    return event(f"{job}.{wall_ms:012x}", involved, "Warning", REASON, objection, wall_ms, job)


async def check(namespaces: Sequence[str], job: str, release: str) -> str:
    """The objection of what exists in these Kubernetes namespaces; none = in all. Raises
    KubernetesError.

    `job` is what runs this, in the namespace `release`.
    """
    client = await connect()
    try:
        clock = SystemClock()
        api = KubernetesApi(client, clock, OperatorMetrics(), may_write=lambda: True)

        async def found(resource: Resource) -> list[Manifest]:
            try:
                lists = [await api.list(resource, namespace) for namespace in namespaces or ("",)]
            except KubernetesError as error:
                if error.status == 404:
                    return []  # the kind is not defined, so that nothing of it exists
                raise
            return [item for items in lists for item in items]

        problem = objection(await found(BROKER_CLUSTER), await found(TOPIC_NAMESPACE))
        if problem:
            with contextlib.suppress(KubernetesError):  # what it has printed says the same
                await api.post_event(objecting(problem, job, release, clock.wall_ms()))
        return problem
    finally:
        await client.close()


def main() -> int:
    namespaces = [
        part.strip()
        for part in os.environ.get("MAGNETAR_WATCH_NAMESPACES", "").split(",")
        if part.strip()
    ]
    try:
        problem = asyncio.run(
            check(namespaces, os.environ["MAGNETAR_JOB"], os.environ["MAGNETAR_RELEASE_NAMESPACE"])
        )
    except KubernetesError as error:
        print(
            f"what exists could not be found out, so the operator stays: {error}", file=sys.stderr
        )
        return 2
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
