"""Making children what they should be.

Owns: reading what is there, carrying out a plan of objects, and its Events. Imports: world,
planning, desired, resources, conditions. Invariants: what the API server refuses becomes a problem,
and the other objects are still applied (unless the namespace is going: then none is); another
owner's object is never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from magnetar.resources.base import CustomResource
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity, identity_of
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.planning import Create, Remove, Step, Taken, describe, plan
from magnetar_operator.engine.world import World
from magnetar_operator.kube.errors import ApiRefused, NamespaceTerminating
from magnetar_operator.kube.kinds import BY_KIND, CHILDREN, POD, Resource


async def read_children(
    world: World,
    owner: CustomResource,
    labels: dict[str, str],
    pod_labels: dict[str, str],
    live: bool,
) -> tuple[dict[Identity, Manifest], list[Manifest]]:
    """The objects made for `owner` and its pods, by their labels: from the caches, or `live`
    from the API server. Raises KubernetesError."""

    async def listed(resource: Resource, wanted: dict[str, str]) -> list[Manifest]:
        if live:
            return await world.api.list(resource, owner.namespace, names.selector_text(wanted))
        return world.labelled(resource.kind, owner.namespace, wanted)

    made = {**labels, names.MANAGED_BY: names.FIELD_MANAGER}
    *lists, pods = await asyncio.gather(
        *(listed(resource, made) for resource in CHILDREN), listed(POD, pod_labels)
    )
    return {identity_of(child): child for found in lists for child in found}, pods


async def apply_children(
    world: World,
    owner: CustomResource,
    wanted: Sequence[Manifest],
    observed: Mapping[Identity, Manifest],
) -> list[Problem]:
    """Apply what differs and remove what is not wanted any more. Raises KubernetesError."""
    have = dict(observed)
    for manifest in wanted:
        kind, name = identity_of(manifest)
        if (kind, name) not in have:
            # Another owner's object of that name carries none of our labels, so that the list did
            # not show it.
            found = await world.api.get(BY_KIND[kind], owner.namespace, name)
            if found is not None:
                have[kind, name] = found
    problems = []
    for step in plan(wanted, have, owner.metadata.uid):
        try:
            problem = await _perform(world, owner, step)
        except NamespaceTerminating:
            raise  # nothing else can be made either
        except ApiRefused as error:
            problem = Problem(Reason.REFUSED, str(error), _part(step))
            await world.events.once(
                owner, "Warning", Reason.REFUSED.value, str(error), part=_part(step)
            )
        if problem is not None:
            problems.append(problem)
    return problems


async def create_missing(
    world: World,
    owner: CustomResource,
    wanted: Sequence[Manifest],
    observed: Mapping[Identity, Manifest],
) -> bool:
    """Make what is missing, ahead of the other children; whether something was. A refusal is
    repeated, and reported, when all children are applied. Raises KubernetesError."""
    missing = [manifest for manifest in wanted if identity_of(manifest) not in observed]
    if missing:
        await apply_children(world, owner, missing, {})
    return bool(missing)


def _part(step: Step) -> str:
    """Which of the owner's objects an Event about `step` is about."""
    kind, name = (
        step.identity
        if isinstance(step, Taken)
        else identity_of(step.observed if isinstance(step, Remove) else step.manifest)
    )
    return f"{kind} {name}"


async def _perform(world: World, owner: CustomResource, step: Step) -> Problem | None:
    """One step of the plan. Raises KubernetesError."""
    part = _part(step)
    if isinstance(step, Taken):
        message = f"{part} exists and belongs to {step.owner or 'another owner'}"
        await world.events.once(
            owner,
            "Warning",
            Reason.NAME_TAKEN.value,
            f"{message}. {Reason.NAME_TAKEN.remedy}",
            part=part,
        )
        return Problem(Reason.NAME_TAKEN, message, part)
    if isinstance(step, Remove):
        if await world.api.delete(step.observed):
            await world.events.normal(owner, "Removed", f"{part} is not wanted any more")
        return None
    await world.api.apply(step.manifest)
    if isinstance(step, Create):
        await world.events.normal(owner, "Created", part)
    elif step.drift:
        await world.events.warning(
            owner,
            "DriftCorrected",
            f"{part} was changed by another writer: {describe(step.changes)}",
        )
    else:
        await world.events.normal(owner, "Updated", f"{part}: {describe(step.changes)}")
    return None
