"""Looking at what a cluster's client security is made of.

Owns: reading the secrets that the spec names, the cluster's own key, and what follows for conditions and rolls. Imports: world, builders, conditions.
Invariants: secrets are read by name, never listed or watched; the cluster's own key is made once and kept as long as it will do; while a secret is
missing or unusable no pod is restarted, because its successor could not start; no Event, status or log holds what is in a secret.
"""

from __future__ import annotations

from magnetar.security.keys import SECRET_BYTES_MIN
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.builders.security import (
    internal_key,
    internal_secret,
    is_secured,
    token_entry,
    token_key_problem,
)
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.planning import Taken, taken
from magnetar_operator.refusals import ApiRefused
from magnetar_operator.resources import SECRET
from magnetar_operator.world import World


async def see_security(world: World, cluster: BrokerCluster) -> list[Problem]:
    """What keeps pods that are made now from starting. Raises KubernetesError."""
    entry = token_entry(cluster)
    return judge(cluster, await world.api.get(SECRET, cluster.namespace, entry.name)) if entry is not None else []


def judge(cluster: BrokerCluster, token: Manifest | None) -> list[Problem]:
    """What the secret with the token key amounts to (None: it does not exist). Pure."""
    entry = token_entry(cluster)
    if entry is None:
        return []
    wrong = f"secret {entry.name} does not exist" if token is None else token_key_problem(cluster, token)
    return [Problem(Reason.TOKEN_KEY_MISSING, f"{wrong}. {Reason.TOKEN_KEY_MISSING.remedy}")] if wrong else []


async def tell_security(world: World, cluster: BrokerCluster, problems: list[Problem]) -> None:
    """One Event for each problem that begins. Raises KubernetesError."""
    for problem in problems:
        await world.events.once(cluster, "Warning", problem.reason.word, problem.message)
    if not problems:
        world.events.forget(cluster.metadata.uid, Reason.TOKEN_KEY_MISSING.word)


async def ensure_internal_key(world: World, cluster: BrokerCluster) -> list[Problem]:
    """Make the cluster's own key, or make it anew if it will not do. Raises KubernetesError."""
    if not is_secured(cluster):
        return []
    found = await world.api.get(SECRET, cluster.namespace, names.internal_secret(cluster.name))
    key = world.clock.random_bits(8 * SECRET_BYTES_MIN).to_bytes(SECRET_BYTES_MIN, "big")
    wanted = internal_secret(cluster, key)
    name = wanted["metadata"]["name"]
    try:
        if found is None:
            if await world.api.create(SECRET, wanted) is not None:
                await world.events.normal(cluster, "Created", f"Secret {name}")
            return []
        somebody = taken(wanted, found, cluster.metadata.uid)
        if isinstance(somebody, Taken):
            owner = somebody.owner or "somebody else"
            return [Problem(Reason.NAME_TAKEN, f"Secret {name} exists and belongs to {owner}. {Reason.NAME_TAKEN.remedy}")]
        if not internal_key(found):
            await world.api.apply(wanted)
            await world.events.warning(cluster, "DriftCorrected", f"Secret {name}: its key would not do, and is a new one")
    except ApiRefused as error:
        return [Problem(Reason.REFUSED, str(error))]
    return []
