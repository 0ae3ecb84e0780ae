"""Looking at what a cluster's client security is made of.

Owns: reading the secrets that the spec names, the cluster's own key, and what follows for
conditions and rolls. Imports: world, builders, conditions. Invariants: secrets are read by name,
never listed or watched; the cluster's own key is kept as long as it is usable and no annotation
asks for another one; the key is written only as it was read; while a secret is missing or unusable
no pod is restarted, and none gets a new template, because it could not start; no Event, status or
log holds what is in a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from magnetar.resources.base import CustomResource
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.security.keys import SECRET_BYTES_MIN
from magnetar_operator import names
from magnetar_operator.brokers.internal_rotation import InternalKeys, advanced
from magnetar_operator.builders.client_tls import (
    authority_of,
    broker_hosts,
    certificate_of,
    judged,
    secret_problem,
)
from magnetar_operator.builders.object import Manifest
from magnetar_operator.builders.security import (
    internal_keys,
    internal_secret,
    is_secured,
    knows_authority,
    token_entry,
    token_key_problem,
    users_entry,
    users_problem,
)
from magnetar_operator.conditions import Finding, Problem, Reason, Type
from magnetar_operator.engine.planning import Taken, taken
from magnetar_operator.engine.world import World
from magnetar_operator.kube.errors import ApiRefused
from magnetar_operator.kube.kinds import SECRET

OF_SECRETS = (
    Reason.TLS_SECRET_MISSING, Reason.TLS_SECRET_UNUSABLE, Reason.CLIENT_AUTHORITY_MISSING, Reason.TOKEN_KEY_MISSING, Reason.CERTIFICATE_EXPIRED,
    Reason.CERTIFICATE_EXPIRES, Reason.CERTIFICATE_NAMES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeenSecurity:
    """`blocking` keeps pods from starting, `problems` has what else is wrong, `findings` the
    condition of the certificate; `authority`: its secret has one that other processes are
    checked by (None: it cannot be read now)."""

    blocking: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()
    findings: tuple[Finding, ...] = ()
    authority: bool | None = False

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        return (*self.blocking, *self.problems)


async def secure_clients(world: World, cluster: BrokerCluster) -> SeenSecurity:
    """Look at the secrets, keep the cluster's own key, and report what is wrong. Raises
    KubernetesError."""
    seen = await see_security(world, cluster, broker_hosts(cluster))
    seen = replace(seen, blocking=(*seen.blocking, *await _ensure_internal_key(world, cluster)))
    await tell(world, cluster, seen)
    return seen


async def see_security(world: World, cluster: BrokerCluster, hosts: Sequence[str]) -> SeenSecurity:
    """Read the secrets that the cluster's spec names. `hosts`: what its certificate should be
    for. Raises KubernetesError."""
    if not is_secured(cluster):
        return SeenSecurity()
    tls, entry, listed = cluster.spec.tls, token_entry(cluster), users_entry(cluster)
    pair, token, users = await asyncio.gather(
        *(
            _read(world, cluster, name)
            for name in (
                tls.secret_name if tls is not None else "",
                entry.name if entry is not None else "",
                listed.name if listed is not None else "",
            )
        )
    )
    return judge(cluster, pair, token, world.clock.wall_ms(), hosts, users)


async def _read(world: World, cluster: BrokerCluster, name: str) -> Manifest | None:
    return await world.api.get(SECRET, cluster.namespace, name) if name else None


def judge(
    cluster: BrokerCluster,
    pair: Manifest | None,
    token: Manifest | None,
    wall_ms: int,
    hosts: Sequence[str] = (),
    users: Manifest | None = None,
) -> SeenSecurity:
    """What the secrets of the certificate, of the token key and of users amount to (None: there is
    no such secret). Pure."""
    blocking, problems = [], []
    findings: tuple[Finding, ...] = ()
    authority: bool | None = False
    for entry, secret, problem in (
        (token_entry(cluster), token, token_key_problem),
        (users_entry(cluster), users, users_problem),
    ):
        if entry is None:
            continue
        wrong = (
            f"secret {entry.name} does not exist" if secret is None else problem(cluster, secret)
        )
        if wrong:
            blocking.append(
                Problem(Reason.TOKEN_KEY_MISSING, f"{wrong}. {Reason.TOKEN_KEY_MISSING.remedy}")
            )
    if cluster.spec.tls is not None:
        unusable = secret_problem(cluster, pair)
        if unusable is not None:
            blocking.append(unusable)
            authority = None
            findings = (Finding(Type.CERTIFICATE, False, unusable.reason, unusable.message),)
        else:
            assert pair is not None
            authority = authority_of(pair)
            reason, said = judged(certificate_of(pair), hosts, wall_ms)
            message = f"certificate of secret {cluster.spec.tls.secret_name}: {said}"
            findings = (Finding(Type.CERTIFICATE, reason is Reason.AS_DESIRED, reason, message),)
            if reason is Reason.CERTIFICATE_EXPIRED:
                problems.append(Problem(reason, message))
    return SeenSecurity(tuple(blocking), tuple(problems), findings, authority)


def authority_known(seen: SeenSecurity, config: Manifest | None) -> bool:
    """As it was seen; while the secret cannot be read, as the ConfigMap of an earlier pass has
    it."""
    return knows_authority(config) if seen.authority is None else seen.authority


async def tell(world: World, owner: CustomResource, seen: SeenSecurity) -> None:
    """One Event about `owner` for each state that begins. Raises KubernetesError."""
    wrong = {finding.reason: finding.message for finding in seen.findings if not finding.holds}
    wrong |= {problem.reason: problem.message for problem in seen.all_problems}
    for reason, message in wrong.items():
        await world.events.once(owner, "Warning", reason.value, message)
    for reason in set(OF_SECRETS) - set(wrong):
        world.events.forget(owner.metadata.uid, reason.value)


async def _ensure_internal_key(world: World, cluster: BrokerCluster) -> list[Problem]:
    """Make the cluster's own key, make it again if it is unusable, or take the next step of its
    rotation. Raises KubernetesError."""
    if not is_secured(cluster):
        return []

    def draw() -> bytes:
        return world.clock.random_bits(8 * SECRET_BYTES_MIN).to_bytes(SECRET_BYTES_MIN, "big")

    name = names.internal_secret(cluster.name)
    found = await world.api.get(SECRET, cluster.namespace, name)
    known = internal_keys(found) if found is not None else None
    keys = known or InternalKeys((draw(),))
    wanted = internal_secret(cluster, keys)
    try:
        if found is None:
            if await world.api.create(SECRET, wanted) is not None:
                await world.events.normal(cluster, "Created", f"Secret {name}")
            return []
        name_taken = taken(wanted, found, cluster.metadata.uid)
        if isinstance(name_taken, Taken):
            owner = name_taken.owner or "another owner"
            return [
                Problem(
                    Reason.NAME_TAKEN,
                    f"Secret {name} exists and belongs to {owner}. {Reason.NAME_TAKEN.remedy}",
                )
            ]
        if known is None:
            await world.api.apply(_compared(wanted, found))
            await world.events.warning(
                cluster, "DriftCorrected", f"Secret {name}: its key would not do, and is a new one"
            )
            return []
        requested = cluster.metadata.annotations.get(names.ROTATE_INTERNAL_KEY, "")
        keys, why = advanced(known, requested, world.clock.wall_ms(), draw)
        if why:
            await world.api.apply(_compared(internal_secret(cluster, keys), found))
            await world.events.normal(cluster, "KeyRotation", f"Secret {name}: {why}")
        elif found["metadata"].get("annotations", {}).get(names.KEY_ID) != keys.id:
            await world.api.apply(_compared(wanted, found))
    except ApiRefused as error:
        return [Problem(Reason.REFUSED, str(error))]
    return []


def _compared(secret: Manifest, read: Manifest) -> Manifest:
    """To be applied only if the secret is still as it was read: a former leader whose pass has
    stood still must not undo a phase of its successor's, or bring a key back that was replaced.
    The API server answers 409 otherwise."""
    kept = {field: read["metadata"][field] for field in ("uid", "resourceVersion")}
    return {**secret, "metadata": {**secret["metadata"], **kept}}
