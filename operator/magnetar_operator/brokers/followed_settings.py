"""Settings which brokers follow while they run.

Owns: what the metadata store's record of changed settings gets of those that a `BrokerCluster`
names, and the record of what the operator wrote. Imports: world, brokers.state, balance.settings.
Invariants: what the resource names holds; a value that an administrator has set under another name
stays; a name that left the resource is removed only if the value is still the one that the operator
wrote; both records change in one transaction; a steady state writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from magnetar.balance.settings import (
    BALANCE,
    FIELDS,
    STRATEGIES,
    Settings,
    followed,
    is_average,
    text_of,
)
from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import BROKER_CONFIGURATION, OPERATOR_CONFIGURATION
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator.brokers.state import NO_DOCUMENTS, ClusterState, StoredDocuments
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.world import World
from magnetar_operator.stores.connections import ClusterStore

log = structlog.get_logger(__name__)

ATTEMPTS = 3
"""Administrators write the same record."""


@dataclass(frozen=True, slots=True)
class Records:
    """Values by Pulsar's names: what brokers follow, and what of it the operator has written."""

    followed: Mapping[str, Any]
    written: Mapping[str, Any]


def planned(wanted: Mapping[str, str], now: Records) -> Records:
    """Both records once the resource names `wanted`, which is coherent."""
    kept = {
        name: value
        for name, value in now.followed.items()
        if name not in wanted and not (name in now.written and text_of(value) == now.written[name])
    }
    both = {**BALANCE.named(), **kept, **wanted}
    if len({is_average(both[name]) for name in STRATEGIES}) > 1:
        # AvgShedder by hand needs both strategies, and the resource names another one
        kept = {name: value for name, value in kept.items() if name not in STRATEGIES}
    written = {
        name: value
        for name, value in wanted.items()
        if name in now.written or name not in now.followed or text_of(now.followed[name]) != value
    }
    return Records({**kept, **wanted}, written)


def settings_in_force(cluster: BrokerCluster, state: ClusterState | None) -> Settings:
    """As brokers have them, or will have them within a moment."""
    stored = state.documents.get(BROKER_CONFIGURATION, NO_DOCUMENTS) if state is not None else None
    given = stored.documents if stored is not None else {}
    balance = {name: value for name, value in given.items() if name in FIELDS}
    return followed(BALANCE, {**balance, **cluster.spec.balance_settings})[0]


async def write_settings(
    world: World, cluster: BrokerCluster, state: ClusterState
) -> list[Problem]:
    """Have the store say what the resource names. Raises NotLeading."""
    stored = [
        state.documents.get(group, NO_DOCUMENTS)
        for group in (BROKER_CONFIGURATION, OPERATOR_CONFIGURATION)
    ]
    try:
        for _ in range(ATTEMPTS):
            now = Records(*(found.documents for found in stored))
            wanted = planned(cluster.spec.followed_settings, now)
            if wanted == now:
                return []
            store = await world.store_of(cluster)
            if await _written(store, wanted, *stored):
                await _report(world, cluster, now, wanted)
                return []
            stored = [
                StoredDocuments.of(await store.read(keys.documents(group)))
                for group in (BROKER_CONFIGURATION, OPERATOR_CONFIGURATION)
            ]
        words = "others write them at the same time"
    except (StoreError, TimeoutError) as error:
        words = str(error) or "no answer in time"
    return [
        Problem(
            Reason.STORE_UNAVAILABLE,
            f"settings that brokers follow could not be written, brokers keep the former ones: {words}",
        )
    ]


async def _written(
    store: ClusterStore, wanted: Records, followed_now: StoredDocuments, written: StoredDocuments
) -> bool:
    changes = (
        followed_now.change(BROKER_CONFIGURATION, wanted.followed),
        written.change(OPERATOR_CONFIGURATION, wanted.written),
    )
    return await store.write(
        [compare for compare, _ in changes],
        [operation for _, operation in changes if operation is not None],
    )


async def _report(world: World, cluster: BrokerCluster, before: Records, after: Records) -> None:
    """An Event for what brokers follow from now on."""
    changed = [
        f"{name}={after.followed[name]}" if name in after.followed else f"{name} as by default"
        for name in sorted(before.followed.keys() | after.followed.keys())
        if before.followed.get(name) != after.followed.get(name)
    ]
    if changed:
        await world.events.normal(
            cluster,
            "SettingsFollowed",
            f"brokers follow without a restart: {', '.join(changed)}",
        )
