"""From what should exist and what exists to what must be done.

Owns: the comparison of objects and the plan. Imports: builders.object, conditions, desired, names,
quantities. Pure. Invariants: planning against what was just applied yields nothing, whatever the
API server filled in; only what the operator wants is compared, so fields of other managers stay
theirs; nothing that may hold data is ever deleted by a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.resources.quantities import amount
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity, identity_of
from magnetar_operator.builders.object import Manifest, digest
from magnetar_operator.conditions import Problem

DELETABLE_KINDS = frozenset(
    {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}
)
CHANGES_SHOWN_MAX = 5
_QUANTITY_FIELDS = ("requests", "limits")


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs: where, what it is and what it should be (None = absent)."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.old!r} -> {self.new!r}"


@dataclass(frozen=True, slots=True)
class Create:
    """The object does not exist."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Update:
    """The object exists and differs. `drift` is true when another writer changed it, false when
    what we want has changed."""

    manifest: Manifest
    changes: tuple[Change, ...]
    drift: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """The object is ours and no longer wanted."""

    observed: Manifest


@dataclass(frozen=True, slots=True)
class Taken:
    """The object exists and belongs to another owner ("" = one that is not recorded): it is left
    alone."""

    identity: Identity
    owner: str


Step = Create | Update | Remove | Taken


def plan(want: Iterable[Manifest], have: Mapping[Identity, Manifest], owner_uid: str) -> list[Step]:
    """What to do, in the order of `want`, removals last."""
    steps: list[Step] = []
    wanted: set[Identity] = set()
    for manifest in want:
        identity = identity_of(manifest)
        wanted.add(identity)
        step = _step(sealed(manifest), have.get(identity), owner_uid)
        if step is not None:
            steps.append(step)
    for identity, observed in have.items():
        ours = identity[0] in DELETABLE_KINDS and _controller(observed).get("uid") == owner_uid
        # One that is going already may take its time: a load balancer's service waits for its
        # cloud.
        if ours and identity not in wanted and "deletionTimestamp" not in observed["metadata"]:
            steps.append(Remove(observed))
    return steps


def deferred(
    want: Iterable[Manifest],
    have: Mapping[Identity, Manifest],
    stateful_set: str,
    problems: Sequence[Problem],
    security: str = "",
) -> list[Manifest]:
    """`want` while `problems` would keep a pod of the new template from starting: the StatefulSet
    of that name keeps the template that it has, and its settings, so that a pod which ends by
    itself comes back as it was. Only its number of pods is followed; the rest of it waits.

    `security`: the ConfigMap with who clients are. It waits as well if it names other files than
    before (one that names a key which is not there lets no process start); what it says of roles
    and rights otherwise changes at once, as it must.
    """
    wanted = list(want)
    changing = next(
        (found for found in wanted if identity_of(found) == ("StatefulSet", stateful_set)), None
    )
    standing = (
        have.get(("StatefulSet", stateful_set)) if problems and changing is not None else None
    )
    if standing is None or changing is None:
        return wanted
    found = []
    for manifest in wanted:
        identity = identity_of(manifest)
        if manifest is changing:
            if standing["spec"].get("replicas") != manifest["spec"]["replicas"]:
                found.append(
                    {
                        **manifest,
                        "spec": {**manifest["spec"], "template": standing["spec"]["template"]},
                    }
                )
        elif identity in have and _waits(manifest, have[identity], stateful_set, security):
            found.append({**manifest, "data": have[identity].get("data", {})})
        else:
            found.append(manifest)
    return found


def _waits(manifest: Manifest, observed: Manifest, settings: str, security: str) -> bool:
    """Whether a ConfigMap stays as it is with the template."""
    kind, name = identity_of(manifest)
    return kind == "ConfigMap" and (
        name == settings or (name == security and _files(manifest) != _files(observed))
    )


def _files(config: Manifest) -> list[str]:
    """The files that documents of a ConfigMap name, each with what it is."""
    lines = "\n".join(config.get("data", {}).values()).splitlines()
    return [line.strip() for line in lines if ": /" in line]


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself among its annotations."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.DESIRED_HASH: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _step(manifest: Manifest, observed: Manifest | None, owner_uid: str) -> Step | None:
    if observed is None:
        return Create(manifest)
    name_taken = taken(manifest, observed, owner_uid)
    if name_taken is not None:
        return name_taken
    changes = tuple(differences(manifest, observed))
    if not changes:
        return None
    seal = f"metadata.annotations.{names.DESIRED_HASH}"
    real = tuple(change for change in changes if change.path != seal)
    return Update(manifest, real, drift=len(real) == len(changes))


def taken(manifest: Manifest, observed: Manifest, owner_uid: str) -> Taken | None:
    """Whose the object is, if it is not ours."""
    controller = _controller(observed)
    if controller and controller.get("uid") != owner_uid:
        return Taken(identity_of(manifest), f"{controller.get('kind')} {controller.get('name')}")
    if (
        not controller
        and observed["metadata"].get("labels", {}).get(names.MANAGED_BY) != names.FIELD_MANAGER
    ):
        return Taken(identity_of(manifest), "")
    return None


def _controller(observed: Manifest) -> Manifest:
    references: list[Manifest] = observed["metadata"].get("ownerReferences", [])
    return next((reference for reference in references if reference.get("controller")), {})


def describe(changes: Iterable[Change]) -> str:
    """The changes for an Event: field, old and new."""
    shown = [str(change) for change in changes]
    more = f" and {len(shown) - CHANGES_SHOWN_MAX} more" if len(shown) > CHANGES_SHOWN_MAX else ""
    return "; ".join(shown[:CHANGES_SHOWN_MAX]) + more


def differences(wanted: Any, observed: Any, path: str = "") -> Iterator[Change]:
    """Fields of `wanted` that `observed` lacks or has otherwise."""
    if isinstance(wanted, dict) and isinstance(observed, dict):
        for key, value in wanted.items():
            place = f"{path}.{key}" if path else key
            yield from differences(value, observed.get(key), place)
    elif isinstance(wanted, list) and isinstance(observed, list):
        yield from _list_differences(wanted, observed, path)
    elif not _same(wanted, observed, path):
        yield Change(path, observed, wanted)


def _list_differences(wanted: list[Any], observed: list[Any], path: str) -> Iterator[Change]:
    """Lists of named things are compared by name (others may have added some), all others as a
    whole and in order."""
    key = next(
        (
            key
            for key in ("name", "uid")
            if all(isinstance(item, dict) and key in item for item in [*wanted, *observed])
        ),
        "",
    )
    if key and wanted:
        known = {item[key]: item for item in observed}
        for item in wanted:
            yield from differences(item, known.get(item[key]), f"{path}[{item[key]}]")
    elif len(wanted) != len(observed):
        yield Change(path, observed, wanted)
    else:
        for index, (item, other) in enumerate(zip(wanted, observed, strict=True)):
            yield from differences(item, other, f"{path}[{index}]")


def _same(wanted: Any, observed: Any, path: str) -> bool:
    if wanted == observed:
        return True
    if wanted in ({}, [], "", None) and observed in ({}, [], "", None):
        return True  # the API server leaves out what is empty
    parts = path.split(".")
    if len(parts) >= 2 and parts[-2] in _QUANTITY_FIELDS:
        return amount(wanted) is not None and amount(wanted) == amount(observed)
    return False
