"""Keeping a cluster's etcd accessible to the clients it should serve, and to no other.

Owns: the order: secrets, then users. Imports: world, secrets, credentials. Invariants: secrets
exist before the pods that mount them; no Event, status or log holds what is in a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.errors import StoreError
from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import EtcdAuthorityStatus
from magnetar_operator import names
from magnetar_operator.brokers.desired import identity_of
from magnetar_operator.builders.etcd_tls import authorities_of, content, pair_of
from magnetar_operator.builders.object import Manifest, uses_etcd_tls
from magnetar_operator.conditions import Problem, Reason, timestamp
from magnetar_operator.engine.planning import Taken
from magnetar_operator.engine.world import World
from magnetar_operator.etcd.certificates import authority_problem, end_ms, fingerprint
from magnetar_operator.etcd.credentials import CredentialsMissing
from magnetar_operator.etcd.rotation import Authorities, is_due, understood
from magnetar_operator.etcd.secrets import Lost, Write, plan_secrets, secret_names
from magnetar_operator.kube.errors import ApiRefused, NamespaceTerminating
from magnetar_operator.kube.kinds import POD, SECRET, STATEFUL_SET
from magnetar_operator.pods.pods import is_ready, is_terminating

LATE_MS = 21 * 86_400_000
"""A certificate of ours is renewed four months before its end."""


@dataclass(frozen=True, slots=True)
class Secured:
    """The cluster as its parts are to be made, and what stands in the way. Its status is not the
    stored one."""

    cluster: BrokerCluster
    problems: tuple[Problem, ...]


async def secure(world: World, cluster: BrokerCluster) -> Secured:
    """Make or renew the secrets. Raises KubernetesError."""
    authority = None
    if cluster.spec.etcd.managed is None:
        problems = await _read_external(world, cluster)
    else:
        authority, problems = await _ensure_secrets(world, cluster)
    changes = {"etcd_security": "TLS" if uses_etcd_tls(cluster) else "Plain"} | (
        {"etcd_authority": authority} if authority is not None else {}
    )
    status = cluster.status.model_copy(update=changes)
    return Secured(cluster.model_copy(update={"status": status}), tuple(problems))


async def _read_external(world: World, cluster: BrokerCluster) -> list[Problem]:
    """Use a secret that another writer has changed."""
    try:
        await world.credentials.refresh(cluster)
    except CredentialsMissing as error:
        message = f"spec.etcd.external.tls.secretRef: {error}"
        await world.events.once(cluster, "Warning", Reason.ETCD_CREDENTIALS.value, message)
        return [Problem(Reason.ETCD_CREDENTIALS, message)]
    world.events.forget(cluster.metadata.uid, Reason.ETCD_CREDENTIALS.value)
    return await _ending(world, cluster, world.credentials.ends_of(cluster))


async def _ensure_secrets(
    world: World, cluster: BrokerCluster
) -> tuple[EtcdAuthorityStatus | None, list[Problem]]:
    """Bring the secrets in order; what is to be said of the authority (None = nothing new), and
    what stands in the way."""
    wanted = secret_names(cluster)
    found = dict(
        zip(
            wanted,
            await asyncio.gather(
                *(world.api.get(SECRET, cluster.namespace, name) for name in wanted)
            ),
            strict=True,
        )
    )
    now_ms = world.clock.wall_ms()
    known = _authorities_in(cluster, found, now_ms)
    trusted = None
    rotate = cluster.metadata.annotations.get(names.ROTATE_ETCD, "")
    if known is not None and is_due(known, rotate, now_ms):
        trusted = await _trusted_by_members(world, cluster)
    problems: list[Problem] = []
    for step in plan_secrets(cluster, found, now_ms, trusted):
        if isinstance(step, Write):
            try:
                found[step.manifest["metadata"]["name"]] = await _write(world, cluster, step)
            except NamespaceTerminating:
                raise
            except ApiRefused as error:
                problems.append(Problem(Reason.REFUSED, str(error)))
        elif isinstance(step, Lost):
            problems.append(Problem(Reason.ETCD_AUTHORITY_LOST, step.message))
        else:
            problems.append(_taken(step))
    for problem in problems:
        await world.events.once(cluster, "Warning", problem.reason.value, problem.message)
    own = found[names.etcd_secret(cluster.name, names.OPERATOR_USER)]
    if own is not None and not problems:
        world.credentials.take(own)
    ends = {
        name: end_ms(content(secret, CERTIFICATE_FILE))
        for name, secret in found.items()
        if secret is not None
    }
    own_part = len(names.etcd_secret(cluster.name, ""))
    problems += await _ending(
        world,
        cluster,
        {name[own_part:]: ends_ms for name, ends_ms in ends.items() if ends_ms is not None},
    )
    return _authority_status(cluster, found, now_ms), problems


def _authorities_in(
    cluster: BrokerCluster, found: Mapping[str, Manifest | None], now_ms: int
) -> Authorities | None:
    """What the authority's secret holds; None if it cannot be used."""
    secret = found[names.etcd_authority(cluster.name)]
    if secret is None or authority_problem(pair_of(secret), now_ms):
        return None
    return understood(authorities_of(secret), now_ms)


def _authority_status(
    cluster: BrokerCluster, found: Mapping[str, Manifest | None], now_ms: int
) -> EtcdAuthorityStatus | None:
    authorities = _authorities_in(cluster, found, now_ms)
    members = found[names.etcd_secret(cluster.name, names.ETCD_MEMBERS)]
    ends = end_ms(authorities.current.certificate) if authorities is not None else None
    if authorities is None or members is None or ends is None:
        return None
    return EtcdAuthorityStatus(
        id=fingerprint(authorities.current.certificate),
        end=timestamp(ends),
        rotation=authorities.phase.value,
        # What the members' own secret holds: a pod must never seem to trust what its file did not
        # name yet.
        trust=authorities.name_of(content(members, AUTHORITY_FILE)),
    )


async def _trusted_by_members(world: World, cluster: BrokerCluster) -> str | None:
    """The authorities that every member runs with, as the API server itself says; None if they
    differ, or not all are there and ready. Raises KubernetesError."""
    etcd = await world.api.get(STATEFUL_SET, cluster.namespace, names.etcd_set(cluster.name))
    selector = names.selector_text(names.selector(cluster.name, names.ETCD))
    pods = await world.api.list(POD, cluster.namespace, selector)
    if (
        etcd is None
        or len(pods) != etcd["spec"]["replicas"]
        or not all(is_ready(pod) and not is_terminating(pod) for pod in pods)
    ):
        return None
    held = {pod["metadata"].get("annotations", {}).get(names.ETCD_TRUST, "") for pod in pods}
    return held.pop() if len(held) == 1 else None


async def _ending(world: World, cluster: BrokerCluster, ends: Mapping[str, int]) -> list[Problem]:
    """Note when certificates end (milliseconds since the epoch, by what they are for); those
    that its owner should have renewed."""
    world.credentials.ends[cluster.namespace, cluster.name] = dict(ends)
    late = sorted(
        part for part, ends_ms in ends.items() if ends_ms - world.clock.wall_ms() < LATE_MS
    )
    if not late:
        world.events.forget(cluster.metadata.uid, Reason.ETCD_CERTIFICATE_ENDS.value)
        return []
    message = "; ".join(f"the certificate of {part} ends {timestamp(ends[part])}" for part in late)
    await world.events.once(cluster, "Warning", Reason.ETCD_CERTIFICATE_ENDS.value, message)
    return [Problem(Reason.ETCD_CERTIFICATE_ENDS, message)]


def _taken(step: Taken) -> Problem:
    kind, name = step.identity
    return Problem(
        Reason.NAME_TAKEN, f"{kind} {name} exists and belongs to {step.owner or 'another owner'}"
    )


async def _write(world: World, cluster: BrokerCluster, step: Write) -> Manifest | None:
    """The secret as it is then; None = another writer made it at the same moment. Raises
    KubernetesError."""
    kind, name = identity_of(step.manifest)
    if not step.why:
        # Made only if it is not there: an authority must never take another one's place unseen.
        made = await world.api.create(SECRET, step.manifest)
        if made is not None:
            await world.events.normal(cluster, "Created", f"{kind} {name}")
        return made
    applied = await world.api.apply(step.manifest)
    if step.rotates:
        await world.events.normal(
            cluster, Reason.ETCD_AUTHORITY_ROTATING.value, f"{kind} {name}: {step.why}"
        )
    elif step.renews:
        await world.events.normal(cluster, "CertificateRenewed", f"{kind} {name}: {step.why}")
    else:
        await world.events.warning(cluster, "DriftCorrected", f"{kind} {name}: {step.why}")
    return applied


async def ensure_users(world: World, secured: Secured) -> list[Problem]:
    """Users, roles and authentication of a managed etcd that can be reached. Raises NotLeading."""
    cluster = secured.cluster
    if cluster.spec.etcd.managed is None:
        return []
    try:
        changes = await (await world.store_of(cluster)).ensure_users()
    except (StoreError, TimeoutError) as error:
        return [Problem(Reason.ETCD_ACCESS, f"users of etcd: {str(error) or 'no answer in time'}")]
    if changes:
        await world.events.normal(
            cluster,
            "EtcdAccessSet",
            f"{changes} changes to etcd's users and roles; it asks who comes",
        )
    return []
