"""What a changed manifest would do to a cluster.

Owns: the preview that `magnetar plan` shows. Imports: desired, planning, rolling, names. Pure; no
Kubernetes client. Invariants: both manifests are rendered by the operator's own builders from the
same inputs, so that only what the change causes is shown; the order of restarts and removals is the
one in which the operator works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity, desired, identity_of
from magnetar_operator.builders.object import Defaults, Manifest
from magnetar_operator.conditions import counted
from magnetar_operator.engine.planning import DELETABLE_KINDS, Change, differences
from magnetar_operator.pods.rolling import difference_of
from magnetar_operator.stores.restore import Phase, pause_s

OPERATORS = Defaults(
    "(the brokers' image, as the operator was given it)",
    "",
    "(the operator's etcd image)",
    "(Spark's image)",
)
"""Stands for what only the running operator knows; equal on both sides, so that it is never a
change."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A child object: `action` is create, update or delete."""

    action: str
    kind: str
    name: str
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaving:
    """A broker that is removed, and the bundles that it transfers first."""

    broker: str
    bundles: int


@dataclass(frozen=True, slots=True)
class Preview:
    """`restarts` in order with the reason; `leaving` in order; `joining` in order; `notes` are
    sentences."""

    objects: tuple[ObjectChange, ...]
    restarts: tuple[tuple[str, str], ...]
    leaving: tuple[Leaving, ...]
    joining: tuple[str, ...]
    notes: tuple[str, ...]


def field_changes(old: Any, new: Any, path: str = "spec") -> list[Change]:
    """Fields that differ between two complete specs, those that went included."""
    changed = list(differences(new, old, path))
    gone = [
        change
        for change in differences(old, new, path)
        if change.old is None and change.new not in (None, {}, [], "")
    ]
    known = {change.path for change in changed}
    return [
        *changed,
        *(Change(change.path, change.new, None) for change in gone if change.path not in known),
    ]


def preview(old: BrokerCluster | None, new: BrokerCluster) -> Preview:
    """What the operator would do. `old` is None for a cluster that does not exist; both carry
    the status that was read."""
    wanted = desired(_in_the_end(new), OPERATORS, new.spec.replicas, {})
    before = desired(_in_the_end(old), OPERATORS, old.spec.replicas, {}) if old is not None else []
    have = {identity_of(child): child for child in before}
    objects = tuple(_objects(wanted, have))
    return Preview(
        objects=objects,
        restarts=_restarts(old, new, wanted, have) if old is not None else (),
        leaving=_leaving(old, new) if old is not None else (),
        joining=_joining(old, new),
        notes=tuple(_notes(old, new)),
    )


def _in_the_end(cluster: BrokerCluster) -> BrokerCluster:
    """With the endpoints of etcd that clients are given when its members are as wanted."""
    etcd = cluster.status.etcd.model_copy(update={"endpoints": ()})
    return cluster.model_copy(update={"status": cluster.status.model_copy(update={"etcd": etcd})})


def _objects(wanted: list[Manifest], have: dict[Identity, Manifest]) -> Iterator[ObjectChange]:
    for manifest in wanted:
        kind, name = identity = identity_of(manifest)
        if identity not in have:
            yield ObjectChange("create", kind, name)
            continue
        # The replicas of the brokers' set are shown as brokers that join or leave.
        brokers = manifest["metadata"]["labels"].get(names.COMPONENT) == names.BROKER
        changes = field_changes(have[identity], manifest, "")
        shown = tuple(
            change
            for change in changes
            if not (brokers and kind == "StatefulSet" and change.path == "spec.replicas")
        )
        if shown:
            yield ObjectChange("update", kind, name, shown)
    for kind, name in sorted(have.keys() - {identity_of(manifest) for manifest in wanted}):
        if kind in DELETABLE_KINDS:
            yield ObjectChange("delete", kind, name)


def _restarts(
    old: BrokerCluster, new: BrokerCluster, wanted: list[Manifest], have: dict[Identity, Manifest]
) -> tuple[tuple[str, str], ...]:
    """Brokers whose template changes, in the order of the roll: sick ones and then the highest
    ordinal first."""
    identity = ("StatefulSet", names.broker_set(new.name))
    template = next(item for item in wanted if identity_of(item) == identity)["spec"]["template"]
    before = have[identity]["spec"]["template"]
    if not list(differences(template, before)) and not list(differences(before, template)):
        return ()
    reason = difference_of({"metadata": before["metadata"], "spec": before["spec"]}, template)
    staying = [
        broker for broker in old.status.brokers if names.ordinal_of(broker.name) < new.spec.replicas
    ]
    ordered = sorted(
        staying,
        key=lambda broker: (broker.phase in ("Ready", "Draining"), -names.ordinal_of(broker.name)),
    )
    return tuple((broker.name, reason) for broker in ordered)


def _leaving(old: BrokerCluster, new: BrokerCluster) -> tuple[Leaving, ...]:
    bundles = {broker.name: broker.bundles for broker in old.status.brokers}
    ordinals = range(old.spec.replicas - 1, new.spec.replicas - 1, -1)
    order = [names.broker_pod(new.name, ordinal) for ordinal in ordinals]
    return tuple(Leaving(broker, bundles.get(broker, 0)) for broker in order)


def _joining(old: BrokerCluster | None, new: BrokerCluster) -> tuple[str, ...]:
    first = old.spec.replicas if old is not None else 0
    return tuple(names.broker_pod(new.name, ordinal) for ordinal in range(first, new.spec.replicas))


def _notes(old: BrokerCluster | None, new: BrokerCluster) -> Iterator[str]:
    if new.spec.autoscaling.enabled and old is not None and old.spec.replicas != new.spec.replicas:
        yield (
            "spec.autoscaling is enabled and writes spec.replicas too: leave replicas out of the "
            "manifest"
        )
    if old is not None and old.spec.replicas and not new.spec.replicas:
        yield (
            "no broker is left: topics are not served until replicas is raised again; their "
            "messages stay"
        )
    if old is not None:
        before, after = old.spec.followed_settings, new.spec.followed_settings
        changed = [
            f"{name}={after[name]}" if name in after else f"{name} as by default"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        if changed:
            yield f"brokers follow without a restart: {', '.join(changed)}"
    members = [
        cluster.spec.etcd.managed.replicas
        for cluster in (old, new)
        if cluster is not None and cluster.spec.etcd.managed is not None
    ]
    if len(set(members)) > 1:
        voters = counted(members[-1], "healthy voting member", "healthy voting members")
        yield f"brokers and coordinators are restarted when etcd has {voters}, not before"
    yield from _restore_notes(new)
    for pending in old.status.pending_restarts if old is not None else ():
        yield f"{pending.name} is going to be restarted already ({pending.reason})"


def _restore_notes(new: BrokerCluster) -> Iterator[str]:
    """What a restore of the metadata store costs that is asked for and has not ended."""
    asked = new.spec.etcd.managed.restore if new.spec.etcd.managed is not None else None
    reported = new.status.restore
    if asked is None or (
        asked.request == reported.request and reported.phase not in (Phase.NONE, Phase.WAITING)
    ):
        return
    pause = pause_s(broker.bundles for broker in new.status.brokers)
    yield (
        f"the metadata store is restored for request {asked.request}"
        + (", whatever it holds" if asked.force else " if it is lost")
        + f": brokers serve until it is filled, then no topic is served for about {pause} s; "
        "transactions wait from the loss on"
    )
