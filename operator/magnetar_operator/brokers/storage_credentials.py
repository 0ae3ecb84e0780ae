"""Looking at the credentials of a cluster's storage.

Owns: reading their secret, by name, and what follows for the template of brokers or coordinators.
Imports: world, builders, conditions. Invariants: a secret that is missing or incomplete rolls
no pod: running pods have what they need, and their successors would not start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.resources.base import CustomResource
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.storage import S3Credentials
from magnetar_operator import names
from magnetar_operator.builders.message_storage import (
    credentials_digest,
    credentials_of,
    credentials_problem,
)
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.world import World
from magnetar_operator.kube.kinds import SECRET

LOOK_AGAIN_S = 5.0
"""Secrets are not watched: a repair is seen by looking only."""


def secrets_again_s(*problems: Sequence[Problem]) -> float:
    """When the secrets of a cluster are to be looked at for their own sake: soon while there are
    problems with them, else never (inf)."""
    return LOOK_AGAIN_S if any(problems) else math.inf


@dataclass(frozen=True, slots=True)
class SeenCredentials:
    """What goes into the template ("" = there are none), and what is wrong."""

    digest: str = ""
    problems: tuple[Problem, ...] = ()


async def see_credentials(
    world: World, cluster: BrokerCluster, owner: CustomResource, stateful_set: Manifest | None
) -> SeenCredentials:
    """For the pods of `stateful_set`, which `owner` has. Raises KubernetesError."""
    chosen = credentials_of(cluster)
    if chosen is None:
        return SeenCredentials()
    secret, problem = await read_credentials(world, cluster, chosen)
    if secret is not None and problem is None:
        return SeenCredentials(credentials_digest(cluster, chosen, secret))
    assert problem is not None, "a secret that does not exist is one"
    await world.events.once(owner, "Warning", problem.reason.value, problem.message)
    return SeenCredentials(_known(stateful_set or {}), (problem,))


async def read_credentials(
    world: World, cluster: BrokerCluster, chosen: S3Credentials
) -> tuple[Manifest | None, Problem | None]:
    """Their secret, and why it will not do. Raises KubernetesError."""
    secret = await world.api.get(SECRET, cluster.namespace, chosen.secret_ref.name)
    said = credentials_problem(chosen, secret)
    return secret, Problem(Reason.CREDENTIALS_MISSING, said) if said else None


def _known(stateful_set: Manifest) -> str:
    template = stateful_set.get("spec", {}).get("template", {}).get("metadata", {})
    return str(template.get("annotations", {}).get(names.CREDENTIALS_HASH, ""))
