"""Warm copies of the objects that the operator watches.

Owns: the newest known version of each object, the order of versions, what counts as news, and two
indexes. Imports: json, names, resources, work_queue. Pure: every feed puts an object
here, in any order and as often as it likes. Invariants: a version never replaces a newer one, and a
deleted object does not come back from an older list, so that a decision sees at least what this
process wrote before it; an object is kept as the bytes of its JSON without `managedFields`, so that
ten thousand cost little and no code can change one in place; every change that is news is reported
exactly once, whichever way it was learned of.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.kinds import CUSTOM

OWNER_LABELS = (names.JOB, names.COORDINATORS, names.CLUSTER)
"""Labels that name the custom resource a child belongs to; a job's driver carries its cluster's
as well, and is the job's."""
OWNER_KINDS = ("DataJob", "TransactionCoordinator", "BrokerCluster")
STALE_LISTS_MAX = 3
"""A list older than what is known is read again; as many in a row mean that the API server's own
store has gone back in time."""
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

Name = tuple[str, str]
"""Kubernetes namespace and name."""
Slot = tuple[str, ...]
"""What an object is also found by: the Pulsar namespace that it claims, or the resource that it
belongs to."""

Standing = tuple[str, str]
"""Status and reason of a custom resource's condition Ready; empty while it has none."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One version of one object, as a feed showed it."""

    kind: str
    name: Name
    uid: str
    version: int
    data: bytes
    mark: int
    slots: tuple[Slot, ...]
    standing: Standing = ("", "")

    @property
    def manifest(self) -> Manifest:
        """A fresh copy."""
        found: Manifest = json.loads(self.data)
        return found


def shown(manifest: Manifest) -> Shown:
    """The cache's form of an object as the API server shows it."""
    kind, metadata = manifest["kind"], manifest["metadata"]
    kept = {
        field_name: value for field_name, value in metadata.items() if field_name != "managedFields"
    }
    name = (metadata.get("namespace", ""), metadata["name"])
    version = version_of(metadata)
    return Shown(
        kind=kind,
        name=name,
        uid=metadata.get("uid", ""),
        version=version,
        data=_ENCODE({**manifest, "metadata": kept}).encode(),
        mark=_mark(metadata) if kind in CUSTOM else version,
        slots=_slots(kind, manifest, name),
        standing=_standing(manifest) if kind in CUSTOM else ("", ""),
    )


def _standing(manifest: Manifest) -> Standing:
    for condition in manifest.get("status", {}).get("conditions", []):
        if condition.get("type") == "Ready":
            # The same few words for ten thousand objects.
            return sys.intern(condition.get("status", "")), sys.intern(condition.get("reason", ""))
    return "", ""


def version_of(metadata: Manifest) -> int:
    """The resourceVersion as the number that it is (comparable within one kind since Kubernetes
    1.35, and before in practice); 0 if it is none."""
    text = str(metadata.get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def _mark(metadata: Manifest) -> int:
    """Changes with whatever a reconciliation looks at but the status, which only we write."""
    return hash(
        (
            metadata.get("uid"),
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            tuple(sorted(metadata.get("annotations", {}).items())),
            tuple(metadata.get("finalizers", ())),
        )
    )


def _slots(kind: str, manifest: Manifest, name: Name) -> tuple[Slot, ...]:
    if kind == "TopicNamespace":
        spec = manifest.get("spec", {})
        reference = spec.get("clusterRef", {})
        cluster = (reference.get("namespace") or name[0], reference.get("name", ""))
        return (claim_slot(cluster, spec.get("tenant", ""), spec.get("namespace", "")),)
    if kind in CUSTOM:
        return ()
    labels = manifest["metadata"].get("labels", {})
    return tuple(
        label_slot(name[0], label, labels[label]) for label in OWNER_LABELS if label in labels
    )


def claim_slot(cluster: Name, tenant: str, namespace: str) -> Slot:
    """Where all resources are found that speak for one Pulsar namespace of one cluster."""
    return ("claim", *cluster, tenant, namespace)


def label_slot(namespace: str, label: str, value: str) -> Slot:
    """Where all objects are found that carry one of `OWNER_LABELS`."""
    return ("label", namespace, label, value)


@dataclass(slots=True)
class Listing:
    """A list that is being read, page by page."""

    kind: str
    namespace: str
    version: int = 0
    seen: set[Name] = field(default_factory=set)
    missed: int = 0
    """Objects that no watch had shown, or shown otherwise, though they are older than the list."""


@dataclass(slots=True)
class _Kind:
    objects: dict[Name, Shown] = field(default_factory=dict)
    gone: dict[Name, int] = field(default_factory=dict)
    slots: dict[Slot, tuple[Name, ...]] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
    stale_lists: int = 0
    doubtful: dict[Name, Shown] = field(default_factory=dict)
    """Objects of before versions began again, which no feed has shown since."""


class ObjectCache:
    """All watched objects. `changed` gets each one that is news, and whether it is gone."""

    def __init__(self, changed: Callable[[Shown, bool], None]) -> None:
        self._changed = changed
        self._kinds: dict[str, _Kind] = {}

    # --- reading ----------------------------------------------------------------------------------

    def get(self, kind: str, namespace: str, name: str) -> Shown | None:
        return self._of(kind).objects.get((namespace, name))

    def all(self, kind: str) -> list[Shown]:
        return list(self._of(kind).objects.values())

    def count(self, kind: str) -> int:
        return len(self._of(kind).objects)

    def standings(self) -> Counter[tuple[str, str, str]]:
        """How many custom resources there are by kind, and by status and reason of Ready. May be
        called from another thread."""
        return Counter((item.kind, *item.standing) for kind in CUSTOM for item in self.all(kind))

    def find(self, kind: str, slot: Slot) -> list[Shown]:
        """Objects of one kind in a slot."""
        known = self._of(kind)
        return [known.objects[name] for name in known.slots.get(slot, ())]

    # --- hearing of objects -----------------------------------------------------------------------

    def put(self, new: Shown) -> bool:
        """Take a version in; whether it was newer than what is known."""
        known = self._of(new.kind)
        old = known.objects.get(new.name)
        if new.version <= known.gone.get(new.name, -1) or (
            old is not None and new.version <= old.version
        ):
            return False
        known.gone.pop(new.name, None)
        known.doubtful.pop(new.name, None)
        self._store(known, old, new)
        if old is None or old.mark != new.mark:
            self._changed(new, False)
        return True

    def remove(self, last: Shown) -> bool:
        """Take a deletion in, at the version that `last` carries; whether the object was known
        until now."""
        known = self._of(last.kind)
        old = known.objects.get(last.name)
        if old is not None and old.version > last.version:
            return False
        known.gone[last.name] = max(last.version, known.gone.get(last.name, 0))
        if old is None:
            return False
        self._drop(known, old)
        self._changed(old, True)
        return True

    # --- lists: what a watch may have missed ------------------------------------------------------

    def listing(self, kind: str, namespace: str) -> Listing:
        """Begin to compare with a list of a kind; namespace "" = all."""
        return Listing(kind, namespace)

    def page(self, listing: Listing, version: int, objects: Iterable[Manifest]) -> bool:
        """Take a page in; False if the list is older than one that was read before: then it is
        worth nothing, and read again.

        Nearly all of a list is known: of that only versions are compared, and nothing is encoded
        again.
        """
        known = self._of(listing.kind)
        if version < known.listed.get(listing.namespace, 0):
            known.stale_lists += 1
            if known.stale_lists < STALE_LISTS_MAX:
                return False
            self._forget(known, listing.namespace)
        listing.version = version
        for item in objects:
            metadata = item["metadata"]
            name = (metadata.get("namespace", ""), metadata["name"])
            old = known.objects.get(name)
            listing.seen.add(old.name if old is not None else name)
            if old is None or old.version < version_of(metadata):
                listing.missed += self.put(shown(item))
        return True

    def finish(self, listing: Listing) -> None:
        """All pages are in: whatever was not among them and is not younger is gone."""
        known = self._of(listing.kind)
        known.stale_lists = 0
        known.listed[listing.namespace] = listing.version
        for name, old in list(known.objects.items()):
            if (
                name not in listing.seen
                and old.version <= listing.version
                and listing.namespace in ("", name[0])
            ):
                known.gone[name] = listing.version
                listing.missed += 1
                self._drop(known, old)
                self._changed(old, True)
        for name in [name for name in known.doubtful if listing.namespace in ("", name[0])]:
            listing.missed += 1
            self._changed(known.doubtful.pop(name), True)
        # A deletion is remembered until a list has been read that is younger.
        known.gone = {
            name: version for name, version in known.gone.items() if version >= listing.version
        }

    def clear(self, kind: str) -> None:
        """The kind is not known to the API server: none of its objects exists."""
        for item in self.all(kind):
            self.remove(item)

    def _of(self, kind: str) -> _Kind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Kind()
        return found

    def _store(self, known: _Kind, old: Shown | None, new: Shown) -> None:
        known.objects[new.name] = new
        if old is not None and old.slots == new.slots:
            return
        if old is not None:
            self._unindex(known, old)
        for slot in new.slots:
            known.slots[slot] = (*known.slots.get(slot, ()), new.name)

    def _drop(self, known: _Kind, old: Shown) -> None:
        del known.objects[old.name]
        self._unindex(known, old)

    def _unindex(self, known: _Kind, old: Shown) -> None:
        for slot in old.slots:
            rest = tuple(name for name in known.slots[slot] if name != old.name)
            if rest:
                known.slots[slot] = rest
            else:
                del known.slots[slot]

    def _forget(self, known: _Kind, namespace: str) -> None:
        """Versions have begun again: what is known says nothing about what is now. What the list
        that follows does not have is gone."""
        for name in [name for name in known.objects if namespace in ("", name[0])]:
            known.doubtful[name] = known.objects[name]
            self._drop(known, known.objects[name])
        known.gone.clear()
        known.listed.pop(namespace, None)


def owner_of(last: Shown) -> Key | None:
    """Whom the news of this object concerns: itself, or the custom resource that it belongs to."""
    if last.kind in CUSTOM:
        return Key(last.kind, *last.name)
    for label, kind in zip(OWNER_LABELS, OWNER_KINDS, strict=True):
        for slot in last.slots:
            if slot[:3] == ("label", last.name[0], label):
                return Key(kind, last.name[0], slot[3])
    return None


def is_sentinel(manifest: Any) -> bool:
    """Whether this is the operator's own sign of life."""
    return names.SENTINEL in manifest["metadata"].get("labels", {})
