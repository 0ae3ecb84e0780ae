"""Keeping a cluster's etcd accessible to whom it should be, and to nobody else.

Owns: the order: secrets, how etcd is spoken to, users. Imports: world, etcd_secrets, etcd_security,
etcd_credentials. Invariants: secrets are there before the pods that mount them; users come once
nobody speaks plain any more; no Event, status or log holds what is in a secret.
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
from magnetar_operator.etcd.security import Security, listening, plan_security
from magnetar_operator.kube.errors import ApiRefused, NamespaceTerminating
from magnetar_operator.kube.kinds import POD, SECRET, STATEFUL_SET
from magnetar_operator.pods.pods import is_ready, is_terminating

LATE_MS = 21 * 86_400_000
"""A certificate of ours is renewed four months before its end."""


@dataclass(frozen=True, slots=True)
class Secured:
    """The cluster as its parts are to be made, and what stands in the way. Its status is not the
    stored one: `security` is new."""

    cluster: BrokerCluster
    security: Security
    problems: tuple[Problem, ...]


async def secure(world: World, cluster: BrokerCluster) -> Secured:
    """Make or renew the secrets, and say how etcd is spoken to from now on. Raises
    KubernetesError."""
    if cluster.spec.etcd.managed is None:
        security = Security.TLS if uses_etcd_tls(cluster) else Security.PLAIN
        return Secured(
            _told(cluster, security), security, tuple(await _read_external(world, cluster))
        )
    security = await _security(world, cluster)
    told = _told(cluster, security)
    authority, problems = await _ensure_secrets(world, told, security)
    return Secured(_told(told, security, authority), security, tuple(problems))


def _told(
    cluster: BrokerCluster, security: Security, authority: EtcdAuthorityStatus | None = None
) -> BrokerCluster:
    changes = {"etcd_security": security.value} | (
        {"etcd_authority": authority} if authority is not None else {}
    )
    return cluster.model_copy(update={"status": cluster.status.model_copy(update=changes)})


async def _security(world: World, cluster: BrokerCluster) -> Security:
    sets = (names.etcd_set(cluster.name), names.broker_set(cluster.name))
    etcd, brokers = [await _stateful_set(world, cluster, name) for name in sets]
    pods: list[Manifest] = []
    if listening(etcd) is Security.MIXED:
        # The plain listener goes once no pod needs it: the API server itself says so.
        pods = await world.api.list(
            POD, cluster.namespace, names.selector_text({names.CLUSTER: cluster.name})
        )
    return plan_security(etcd, brokers, pods)


async def _stateful_set(world: World, cluster: BrokerCluster, name: str) -> Manifest | None:
    """One that is not known is asked for: an etcd that was made without TLS must not pass for a
    new one."""
    known = world.cache.get("StatefulSet", cluster.namespace, name)
    return (
        known.manifest
        if known is not None
        else await world.api.get(STATEFUL_SET, cluster.namespace, name)
    )


async def _read_external(world: World, cluster: BrokerCluster) -> list[Problem]:
    """Take a secret that somebody has changed."""
    try:
        await world.credentials.refresh(cluster)
    except CredentialsMissing as error:
        message = f"spec.etcd.external.tls.secretRef: {error}"
        await world.events.once(cluster, "Warning", Reason.ETCD_CREDENTIALS.word, message)
        return [Problem(Reason.ETCD_CREDENTIALS, message)]
    world.events.forget(cluster.metadata.uid, Reason.ETCD_CREDENTIALS.word)
    return await _ending(world, cluster, world.credentials.ends_of(cluster))


async def _ensure_secrets(
    world: World, cluster: BrokerCluster, security: Security
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
    if (
        known is not None
        and security is Security.TLS
        and is_due(known, cluster.metadata.annotations.get(names.ROTATE_ETCD, ""), now_ms)
    ):
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
        await world.events.once(cluster, "Warning", problem.reason.word, problem.message)
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
    that somebody should have renewed."""
    world.credentials.ends[cluster.namespace, cluster.name] = dict(ends)
    late = sorted(
        part for part, ends_ms in ends.items() if ends_ms - world.clock.wall_ms() < LATE_MS
    )
    if not late:
        world.events.forget(cluster.metadata.uid, Reason.ETCD_CERTIFICATE_ENDS.word)
        return []
    message = "; ".join(f"the certificate of {part} ends {timestamp(ends[part])}" for part in late)
    await world.events.once(cluster, "Warning", Reason.ETCD_CERTIFICATE_ENDS.word, message)
    return [Problem(Reason.ETCD_CERTIFICATE_ENDS, message)]


def _taken(step: Taken) -> Problem:
    kind, name = step.identity
    return Problem(
        Reason.NAME_TAKEN, f"{kind} {name} exists and belongs to {step.owner or 'somebody else'}"
    )


async def _write(world: World, cluster: BrokerCluster, step: Write) -> Manifest | None:
    """The secret as it is then; None = somebody else made it at the same moment. Raises
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
            cluster, Reason.ETCD_AUTHORITY_ROTATING.word, f"{kind} {name}: {step.why}"
        )
    elif step.renews:
        await world.events.normal(cluster, "CertificateRenewed", f"{kind} {name}: {step.why}")
    else:
        await world.events.warning(cluster, "DriftCorrected", f"{kind} {name}: {step.why}")
    return applied


async def ensure_users(world: World, secured: Secured) -> list[Problem]:
    """Users, roles and authentication of a managed etcd that can be reached. Raises NotLeading."""
    cluster = secured.cluster
    if cluster.spec.etcd.managed is None or secured.security is not Security.TLS:
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
