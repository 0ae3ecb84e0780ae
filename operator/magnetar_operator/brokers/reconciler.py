"""Reconciling a `BrokerCluster`.

Owns: the order of steps; cordons and the story of moves. Imports: world, desired, children,
pods.care, moves, autoscaler, client_security, brokers.status. Invariants: decisions are pure
functions of one look at the world, effects follow them; children are applied even while the
metadata store is unavailable; a broker leaves only as `plan_scale` allows; the status is written
last and only when it differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from magnetar.errors import StoreError
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.load_balancing import BalanceStatus
from magnetar_operator import names
from magnetar_operator.brokers.autoscaler import Autoscaled, autoscale, busy_with
from magnetar_operator.brokers.balance_figures import figures, is_uneven
from magnetar_operator.brokers.client_security import SeenSecurity, authority_known, secure_clients
from magnetar_operator.brokers.desired import Identity, desired
from magnetar_operator.brokers.exposure import protection
from magnetar_operator.brokers.followed_settings import settings_in_force, write_settings
from magnetar_operator.brokers.moves import CHAPTERS, LAST_CHAPTERS, Moves, plan_moves
from magnetar_operator.brokers.scale_story import Reported
from magnetar_operator.brokers.scaling import CORDON_REASON, REPLACE_REASON
from magnetar_operator.brokers.state import ClusterState, read_cluster_state
from magnetar_operator.brokers.status import Observed, derive, findings_of, troubles_of
from magnetar_operator.brokers.storage_credentials import secrets_again_s, see_credentials
from magnetar_operator.brokers.storage_expansion import hold_claim, missing_classes
from magnetar_operator.brokers.zones import write_zones
from magnetar_operator.builders.listeners import brokers_of, listener_services
from magnetar_operator.builders.object import Manifest, etcd_endpoints
from magnetar_operator.conditions import Finding, Problem, Reason, Type
from magnetar_operator.engine.children import apply_children, create_missing, read_children
from magnetar_operator.engine.planning import deferred
from magnetar_operator.engine.troubles import listed
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import World, is_paused
from magnetar_operator.etcd import life as etcd_lifecycle
from magnetar_operator.etcd.access import ensure_users, secure
from magnetar_operator.namespaces import release as namespace_release
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.care import delete_lost, lost_nodes, restart, roll_of
from magnetar_operator.pods.rolling import RollPlan, held
from magnetar_operator.stores import restoring as metadata_restoring
from magnetar_operator.stores.copies import copies_problem
from magnetar_operator.stores.outages import NO_ANSWER

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 30.0
"""Bundles move without any Kubernetes event."""
ROTATING_S = 5.0
"""Phases of a rotation end with time."""
RESTORING_S = 2.0
"""Leases and the store change without any Kubernetes event."""
MOVING_S = 1.0
UNEVEN_S = 10.0
"""Load is about to change hands."""
STORE_RETRY_S = 3.0


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    cluster = await world.read(key, BrokerCluster)
    if cluster is None:
        world.retain_stores()
        world.autoscaling.forget(f"{key.namespace}/{key.name}")
        world.credentials.ends.pop((key.namespace, key.name), None)
        namespace_release.look_at_all(world, key.namespace, key.name, gone=True)
        return None
    if cluster.metadata.deletion_timestamp:
        return None  # children go with their owner; volumes stay
    namespace_release.look_at_strangers(world, cluster)
    if is_paused(cluster):
        await _pause(world, cluster)
        return None
    secured = await secure(world, cluster)
    stored, cluster = cluster, secured.cluster
    observed = await _observe_for_decisions(world, cluster)
    stored = await metadata_restoring.begin(world, stored, observed.restore)
    fleet_held = observed.restore.is_held
    moves = plan_moves(cluster, observed, world.clock.wall_ms())
    problems = list(secured.problems)
    if not fleet_held:
        await _inform(world, cluster, moves.story.before)
        problems += await _inform_brokers(world, cluster, observed, moves)
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    seen = await see_credentials(world, cluster, cluster, brokers)
    security = await secure_clients(world, cluster)
    problems += [*seen.problems, *security.all_problems]
    replicas = _present(cluster, observed) if fleet_held else moves.scale.replicas
    observed = await _with_listener_services(world, cluster, observed, replicas)
    claims, refused = await _apply_children(
        world, cluster, observed, security, seen.digest, replicas
    )
    problems += refused
    await etcd_lifecycle.act(world, cluster, observed.etcd)
    await metadata_restoring.fill(world, cluster, observed.restore)
    roll = await _renew_pods(world, cluster, observed, moves, security)
    if observed.state is not None:
        problems += await ensure_users(world, secured)
        await namespace_release.see_store(world, cluster)
    if not fleet_held:
        await _inform(world, cluster, moves.story.after)
    copies = [observed.copies_problem] if observed.copies_problem is not None else []
    await world.events.standing(cluster, (*claims, *moves.problems, *copies))
    problems += [*claims, *moves.problems]
    busy = busy_with(observed, moves, roll, problems)
    autoscaled = await autoscale(world, cluster, observed, busy)
    settings, now_ms = settings_in_force(cluster, observed.state), world.clock.wall_ms()
    balance = figures(cluster.status.balance, observed.state, settings, now_ms)
    await _write_status(
        world, stored, cluster, observed, moves, roll, problems, autoscaled, security, balance
    )
    if observed.restore.is_active:
        return RESTORING_S
    rotating_s = ROTATING_S if cluster.status.etcd_authority.rotation else LOOK_AGAIN_S
    secrets_s = secrets_again_s(seen.problems, security.all_problems)
    uneven_s = UNEVEN_S if is_uneven(balance) else LOOK_AGAIN_S
    again_s = _again_after_s(observed, moves, problems)
    return min(again_s, autoscaled.again_s, secrets_s, rotating_s, uneven_s)


async def _pause(world: World, cluster: BrokerCluster) -> None:
    world.autoscaling.forget(f"{cluster.namespace}/{cluster.name}")
    await world.events.paused(cluster)
    kept = [
        condition
        for condition in cluster.status.conditions
        if condition.type != Type.PROGRESSING.value
    ]
    findings = [Finding(Type.PROGRESSING, False, Reason.PAUSED)]
    paused = world.conditions(cluster, cluster.status.conditions, findings)
    await world.write_status(
        cluster, cluster.status.model_copy(update={"conditions": (*kept, *paused)})
    )


# --- reading the world ----------------------------------------------------------------------------


async def _observe_for_decisions(world: World, cluster: BrokerCluster) -> Observed:
    """The caches find irreversible work; a read of the API server itself decides it. Raises
    KubernetesError."""
    observed = await observe(world, cluster)
    if _is_irreversible(cluster, observed, world.clock.wall_ms()):
        observed = await observe(world, cluster, live=True)
    return replace(observed, restore=await metadata_restoring.look(world, cluster, observed))


async def observe(world: World, cluster: BrokerCluster, live: bool = False) -> Observed:
    """Everything that belongs to the cluster: from the caches, or `live` from the API server.
    Raises KubernetesError."""
    children, pods = await _read_children(world, cluster, live)
    mine = [pod for pod in pods if names.is_broker_pod(cluster.name, broker_pods.name_of(pod))]
    state, problem, outage = await _read_state(world, cluster, children)
    etcd = await etcd_lifecycle.look(world, cluster, children, live)
    copies = (
        copies_problem(cluster, state.copies, world.clock.wall_ms()) if state is not None else None
    )
    lost = await lost_nodes(world, mine)
    return Observed(children, tuple(mine), state, problem, lost, etcd, copies, store_outage=outage)


async def _with_listener_services(
    world: World, cluster: BrokerCluster, observed: Observed, replicas: int
) -> Observed:
    """Make services that are missing before anything else: they say which addresses a broker
    finds when it starts. A kubelet brings it those that are known later within a minute or two
    only, and until then its listeners' clients are refused. Raises KubernetesError."""
    services = listener_services(brokers_of(cluster), replicas)
    if not await create_missing(world, cluster, services, observed.children):
        return observed
    children, _ = await _read_children(world, cluster, live=False)
    return replace(observed, children=children)


async def _read_children(
    world: World, cluster: BrokerCluster, live: bool
) -> tuple[dict[Identity, Manifest], list[Manifest]]:
    return await read_children(
        world,
        cluster,
        {names.CLUSTER: cluster.name},
        names.selector(cluster.name, names.BROKER),
        live,
    )


def _is_irreversible(cluster: BrokerCluster, observed: Observed, wall_ms: int) -> bool:
    """Whether what would be done next cannot be undone."""
    moves = plan_moves(cluster, observed, wall_ms)
    if observed.etcd is not None and observed.etcd.plan.reason is not None:
        return True
    return (
        moves.shown.reason is not None
        or bool(_plan_roll(cluster, observed, moves).restart)
        or bool(observed.lost_nodes)
    )


async def _read_state(
    world: World, cluster: BrokerCluster, children: dict[Identity, Manifest]
) -> tuple[ClusterState | None, str, bool]:
    """The store's picture, or why there is none, and whether that is because the store was not
    seen to answer."""
    etcd = children.get(("StatefulSet", names.etcd_set(cluster.name)))
    if cluster.spec.etcd.managed is not None and (
        etcd is None or not etcd.get("status", {}).get("readyReplicas")
    ):
        return None, f"etcd pod {names.etcd_set(cluster.name)}-0 is not ready", True
    try:
        return await read_cluster_state((await world.store_of(cluster)).reader), "", False
    except (StoreError, TimeoutError) as error:
        log.warning("store.unreadable", cluster=cluster.reference, error=str(error))
        problem = f"etcd {', '.join(etcd_endpoints(cluster))}: {str(error) or 'no answer in time'}"
        return None, problem, isinstance(error, NO_ANSWER)


def _plan_roll(cluster: BrokerCluster, observed: Observed, moves: Moves) -> RollPlan:
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    return roll_of(
        observed.pods,
        brokers,
        moves.scale.replicas,
        scaling=moves.holds_rolls,
        awaits=_store_awaited(observed),
    )


def _present(cluster: BrokerCluster, observed: Observed) -> int:
    """How many brokers the set has; what a store that is being restored says of them means
    nothing."""
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    return int(brokers["spec"]["replicas"]) if brokers is not None else cluster.spec.replicas


def _store_awaited(observed: Observed) -> str:
    """What a broker's drain and its successor's start would have to wait for."""
    if observed.store_outage:
        return f"the metadata store: {observed.store_problem}"
    return observed.etcd.restarting if observed.etcd is not None else ""


# --- effects --------------------------------------------------------------------------------------


async def _inform(world: World, cluster: BrokerCluster, chapters: Iterable[Reported]) -> None:
    for chapter in chapters:
        await world.events.once(
            cluster, "Warning" if chapter.warning else "Normal", chapter.reason, chapter.message
        )
        if chapter.reason in LAST_CHAPTERS:
            for reason in CHAPTERS:
                world.events.forget(cluster.metadata.uid, reason)


async def _inform_brokers(
    world: World, cluster: BrokerCluster, observed: Observed, moves: Moves
) -> list[Problem]:
    """What brokers read in the store: cordons, settings, zones. Raises NotLeading,
    KubernetesError."""
    problems = await _apply_cordons(world, cluster, moves)
    if observed.state is not None:
        problems += await write_settings(world, cluster, observed.state)
        problems += await write_zones(world, cluster, observed.state, observed.pods)
    return problems


async def _apply_cordons(world: World, cluster: BrokerCluster, moves: Moves) -> list[Problem]:
    """Lift what is to be lifted, then cordon. Raises NotLeading."""
    scale, replacement = moves.scale, moves.replacement
    try:
        for broker in (*scale.uncordon, *replacement.uncordon):
            await (await world.store_of(cluster)).uncordon(broker)
            await world.events.normal(
                cluster, "Uncordoned", f"{broker} may take bundles again, or is gone"
            )
        for broker in scale.close:
            await (await world.store_of(cluster)).close_to_bundles(broker, CORDON_REASON)
            await world.events.normal(
                cluster, "Closed", f"{broker} takes no more bundles, because it is removed next"
            )
        for broker, reason, why in (
            (scale.cordon, CORDON_REASON, "it is removed"),
            (replacement.cordon, REPLACE_REASON, "its pod is replaced"),
        ):
            if broker:
                await (await world.store_of(cluster)).cordon(broker, reason)
                await world.events.normal(
                    cluster, "Cordoned", f"{broker} transfers its bundles before {why}"
                )
    except (StoreError, TimeoutError) as error:
        return [
            Problem(
                Reason.STORE_UNAVAILABLE,
                f"cordons could not be written: {str(error) or 'no answer in time'}",
            )
        ]
    return []


async def _apply_children(
    world: World,
    cluster: BrokerCluster,
    observed: Observed,
    security: SeenSecurity,
    credentials: str,
    replicas: int,
) -> tuple[list[Problem], list[Problem]]:
    """Apply what differs; what is wrong with volume claims, and what was refused. Raises
    KubernetesError."""
    children, config = observed.children, names.security(cluster.name)
    authority = authority_known(security, observed.child("ConfigMap", config))
    wanted = desired(
        cluster,
        world.defaults,
        replicas,
        children,
        credentials,
        observed.etcd_shape,
        authority=authority,
    )
    wanted = deferred(wanted, children, names.broker_set(cluster.name), security.blocking, config)
    wanted, held_claim = await hold_claim(world, cluster, wanted, children)
    classes = await missing_classes(world, cluster, children, observed.etcd_pods)
    return [*held_claim, *classes], await apply_children(world, cluster, wanted, children)


async def _renew_pods(
    world: World, cluster: BrokerCluster, observed: Observed, moves: Moves, security: SeenSecurity
) -> RollPlan:
    """Restart and replace pods as planned, and delete those of lost nodes; the plan of restarts.
    Raises KubernetesError."""
    roll = RollPlan()
    if not observed.restore.is_held:
        roll = held(_plan_roll(cluster, observed, moves), security.blocking)
    await restart(world, cluster, observed.pods, roll)
    if not security.blocking and not observed.restore.is_held:
        for pod in observed.pods:
            if broker_pods.name_of(pod) == moves.replacement.delete:
                await world.api.delete(pod)
    await delete_lost(world, cluster, observed.pods, observed.lost_nodes)
    return roll


async def _write_status(
    world: World,
    stored: BrokerCluster,
    cluster: BrokerCluster,
    observed: Observed,
    moves: Moves,
    roll: RollPlan,
    problems: list[Problem],
    autoscaled: Autoscaled,
    security: SeenSecurity,
    balance: BalanceStatus,
) -> None:
    """`stored` is the cluster with the status that is to be replaced."""
    findings = findings_of(cluster, observed, moves.shown, roll, problems)
    more = (*autoscaled.findings, *security.findings, protection(cluster))
    conditions = world.conditions(cluster, cluster.status.conditions, [*findings, *more])
    status = derive(cluster, observed, roll, conditions)
    troubles = listed(
        cluster.status.troubles, troubles_of(cluster, observed, problems), world.clock.wall_ms()
    )
    update = {
        "scaling": moves.story.status,
        "autoscaling": autoscaled.status,
        "balance": balance,
        "troubles": troubles,
    }
    await world.write_outcome(
        stored, status.model_copy(update=update), cluster.status.conditions, findings[-1]
    )


def _again_after_s(observed: Observed, moves: Moves, problems: Sequence[Problem]) -> float:
    unwritten = any(problem.reason is Reason.STORE_UNAVAILABLE for problem in problems)
    if observed.state is None or unwritten:
        return min(
            STORE_RETRY_S, observed.etcd.again_s if observed.etcd is not None else STORE_RETRY_S
        )
    if moves.shown.reason is not None or observed.lost_nodes:
        return MOVING_S
    return min(LOOK_AGAIN_S, observed.etcd.again_s if observed.etcd is not None else LOOK_AGAIN_S)
