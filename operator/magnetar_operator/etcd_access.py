"""Keeping a cluster's etcd accessible to whom it should be, and to nobody else.

Owns: the order: secrets, how etcd is spoken to, users. Imports: world, etcd_secrets, etcd_security, etcd_credentials.
Invariants: secrets are there before the pods that mount them; users come once nobody speaks plain any more; no Event, status or log holds what is in
a secret.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from magnetar.errors import StoreError
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, uses_etcd_tls
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.desired import identity_of
from magnetar_operator.etcd_credentials import CredentialsMissing
from magnetar_operator.etcd_secrets import Lost, Write, plan_secrets, secret_names
from magnetar_operator.etcd_security import Security, listening, plan_security
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.planning import Taken
from magnetar_operator.refusals import ApiRefused
from magnetar_operator.resources import POD, SECRET, STATEFUL_SET
from magnetar_operator.world import World


@dataclass(frozen=True, slots=True)
class Secured:
    """The cluster as its parts are to be made, and what stands in the way. Its status is not the stored one: `security` is new."""

    cluster: BrokerCluster
    security: Security
    problems: tuple[Problem, ...]


async def secure(world: World, cluster: BrokerCluster) -> Secured:
    """Make or renew the secrets, and say how etcd is spoken to from now on. Raises KubernetesError."""
    if cluster.spec.etcd.managed is None:
        security = Security.TLS if uses_etcd_tls(cluster) else Security.PLAIN
        return Secured(_told(cluster, security), security, tuple(await _read_external(world, cluster)))
    security = await _security(world, cluster)
    told = _told(cluster, security)
    return Secured(told, security, tuple(await _ensure_secrets(world, told)))


def _told(cluster: BrokerCluster, security: Security) -> BrokerCluster:
    return cluster.model_copy(update={"status": cluster.status.model_copy(update={"etcd_security": security.value})})


async def _security(world: World, cluster: BrokerCluster) -> Security:
    sets = (names.etcd_set(cluster.name), names.broker_set(cluster.name))
    etcd, brokers = [await _stateful_set(world, cluster, name) for name in sets]
    pods: list[Manifest] = []
    if listening(etcd) is Security.MIXED:
        # The plain listener goes once no pod needs it: the API server itself says so.
        pods = await world.api.list(POD, cluster.namespace, names.selector_text({names.CLUSTER: cluster.name}))
    return plan_security(etcd, brokers, pods)


async def _stateful_set(world: World, cluster: BrokerCluster, name: str) -> Manifest | None:
    """One that is not known is asked for: an etcd that was made without TLS must not pass for a new one."""
    known = world.cache.get("StatefulSet", cluster.namespace, name)
    return known.manifest if known is not None else await world.api.get(STATEFUL_SET, cluster.namespace, name)


async def _read_external(world: World, cluster: BrokerCluster) -> list[Problem]:
    """Take a secret that somebody has changed."""
    try:
        await world.credentials.refresh(cluster)
    except CredentialsMissing as error:
        message = f"spec.etcd.external.tls.secretRef: {error}"
        await world.events.once(cluster, "Warning", Reason.ETCD_CREDENTIALS.word, message)
        return [Problem(Reason.ETCD_CREDENTIALS, message)]
    world.events.forget(cluster.metadata.uid, Reason.ETCD_CREDENTIALS.word)
    return []


async def _ensure_secrets(world: World, cluster: BrokerCluster) -> list[Problem]:
    wanted = secret_names(cluster)
    found = dict(
        zip(wanted, await asyncio.gather(*(world.api.get(SECRET, cluster.namespace, name) for name in wanted)), strict=True)
    )
    problems: list[Problem] = []
    for step in plan_secrets(cluster, found, world.clock.wall_ms()):
        if isinstance(step, Write):
            try:
                found[step.manifest["metadata"]["name"]] = await _write(world, cluster, step)
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
    return problems


def _taken(step: Taken) -> Problem:
    kind, name = step.identity
    return Problem(Reason.NAME_TAKEN, f"{kind} {name} exists and belongs to {step.owner or 'somebody else'}")


async def _write(world: World, cluster: BrokerCluster, step: Write) -> Manifest | None:
    """The secret as it is then; None = somebody else made it at the same moment. Raises KubernetesError."""
    kind, name = identity_of(step.manifest)
    if not step.why:
        # Made only if it is not there: an authority must never take another one's place unseen.
        made = await world.api.create(SECRET, step.manifest)
        if made is not None:
            await world.events.normal(cluster, "Created", f"{kind} {name}")
        return made
    applied = await world.api.apply(step.manifest)
    if step.renews:
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
        await world.events.normal(cluster, "EtcdAccessSet", f"{changes} changes to etcd's users and roles; it asks who comes")
    return []
