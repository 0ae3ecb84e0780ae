"""The story of a change of the number of brokers, as `kubectl describe` shows it.

Owns: `status.scaling`, which remembers when a change and its drain began, and the Events of each
chapter, in order. Imports: resources, scaling, replacing, conditions. Pure. Invariants: each
chapter is reported once, also when the operator restarts in between (the status says what was
reported); a long drain is reported again only when its rest has halved; the status changes with the
chapter, never with the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.amounts import age_text
from magnetar.resources.scaling import ScalingStatus
from magnetar_operator import names
from magnetar_operator.brokers.replacing import ReplacePlan
from magnetar_operator.brokers.scaling import Fleet, ScalePlan
from magnetar_operator.conditions import Reason, timestamp, wall_ms_of

NOTHING = ScalingStatus()
NO_DRAIN = {"broker": "", "drain_started_at": "", "bundles": 0}
UP, DOWN, REPLACE = "ScaleUp", "ScaleDown", "Replace"
BUNDLES_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Reported:
    """One Event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """`before` is reported before the effects of the pass, `after` after them."""

    status: ScalingStatus
    before: tuple[Reported, ...] = ()
    after: tuple[Reported, ...] = ()


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the story is made from, beside the last status. `last_left`: bundles that the leaving
    broker had at the last look."""

    wanted: int
    fleet: Fleet
    scale: ScalePlan
    replacement: ReplacePlan
    settled: bool
    candidates: int
    last_left: int


def tell(previous: ScalingStatus, chapter: Chapter, wall_ms: int) -> Story:
    """The next part of the story."""
    status, before = _begin(previous, chapter, wall_ms)
    after: list[Reported] = []
    status = _farewell(status, chapter, after)
    if status.action in (DOWN, REPLACE):
        status = _drain(status, chapter, wall_ms, after)
    if (
        status.action
        and chapter.settled
        and chapter.scale.reason is None
        and chapter.replacement.reason is None
    ):
        after.append(_end(status, chapter, wall_ms))
        status = NOTHING
    return Story(status, tuple(before), tuple(after))


def _begin(
    previous: ScalingStatus, chapter: Chapter, wall_ms: int
) -> tuple[ScalingStatus, list[Reported]]:
    """A change that is new, or that turned into another one."""
    wanted, current = chapter.wanted, chapter.fleet.replicas
    if current is None:
        return previous, []
    scaling = chapter.scale.reason is not None and wanted != current
    if scaling and (previous.action not in (UP, DOWN) or previous.to_replicas != wanted):
        return _begin_scaling(previous, chapter, current, wall_ms)
    cancelled = previous.action == DOWN and previous.to_replicas < wanted == current
    if cancelled and not scaling:
        return previous.model_copy(update={"to_replicas": wanted, **NO_DRAIN}), [
            _called_off(previous, chapter)
        ]
    replacement = chapter.replacement
    if replacement.broker and not previous.action and replacement.reason is Reason.REPLACING:
        text = f"{replacement.broker}: it is drained, then its pod is deleted and comes back"
        return _status(REPLACE, current, current, wall_ms), [Reported("Replacing", text)]
    return previous, []


def _begin_scaling(
    previous: ScalingStatus, chapter: Chapter, current: int, wall_ms: int
) -> tuple[ScalingStatus, list[Reported]]:
    wanted, reported = chapter.wanted, []
    if previous.action == DOWN and wanted > previous.to_replicas:
        reported.append(_called_off(previous, chapter))
    change = f"from {current} to {wanted} brokers"
    if wanted > current:
        reported.append(Reported("ScalingUp", change))
        return _status(UP, current, wanted, wall_ms), reported
    order = [
        names.broker_pod(chapter.fleet.cluster, ordinal)
        for ordinal in range(current - 1, wanted - 1, -1)
    ]
    shown = ", then ".join(order[:3]) + (f" and {len(order) - 3} more" if len(order) > 3 else "")
    reported.append(Reported("ScalingDown", f"{change}, one at a time: {shown}"))
    status = _status(DOWN, current, wanted, wall_ms)
    if previous.action == DOWN and previous.broker == chapter.scale.broker:
        # the drain under way goes on
        status = status.model_copy(update={name: getattr(previous, name) for name in NO_DRAIN})
    return status, reported


def _status(action: str, current: int, wanted: int, wall_ms: int) -> ScalingStatus:
    return ScalingStatus(
        action=action, from_replicas=current, to_replicas=wanted, started_at=timestamp(wall_ms)
    )


def _called_off(previous: ScalingStatus, chapter: Chapter) -> Reported:
    broker, left = previous.broker, (chapter.fleet.bundles or {}).get(previous.broker, 0)
    stays = f"; {broker} stays, with its {left} bundles" if broker else ""
    return Reported(
        "ScaleDownCalledOff",
        f"{chapter.wanted} brokers are wanted again instead of {previous.to_replicas}{stays}",
    )


def _farewell(status: ScalingStatus, chapter: Chapter, after: list[Reported]) -> ScalingStatus:
    """The broker that was leaving is gone."""
    gone = status.broker and status.action == DOWN and status.broker not in chapter.fleet.pods
    if not gone or names.ordinal_of(status.broker) < (chapter.fleet.replicas or 0):
        return status
    after.append(
        Reported(
            "Removed",
            f"{status.broker} is gone; {len(chapter.fleet.pods)} brokers now, {chapter.wanted} are "
            "wanted",
        )
    )
    return status.model_copy(update=NO_DRAIN)


def _drain(
    status: ScalingStatus, chapter: Chapter, wall_ms: int, after: list[Reported]
) -> ScalingStatus:
    """Begin, progress and end of the drain that is under way."""
    plan = chapter.replacement if status.action == REPLACE else chapter.scale
    broker, left = plan.broker, plan.left
    if not broker or plan.reason in (Reason.STORE_UNAVAILABLE, Reason.REPLACE_WAITS, None):
        return status
    goes = (
        chapter.replacement.delete == broker
        if status.action == REPLACE
        else chapter.scale.replicas < (chapter.fleet.replicas or 0)
    )
    terminating = status.action == REPLACE and not goes and not left and not plan.cordon
    if broker != status.broker and not terminating:
        update = {"broker": broker, "drain_started_at": timestamp(wall_ms), "bundles": left}
        status = status.model_copy(update=update)
        if left and not goes:
            after.append(
                Reported(
                    "Draining",
                    f"{broker} transfers {left} bundles to {_candidates_text(chapter.candidates)}",
                )
            )
    elif left and left.bit_length() < chapter.last_left.bit_length():
        after.append(
            Reported(
                "Draining", f"{broker} has {left} of {status.bundles} bundles left to transfer"
            )
        )
    if goes:
        if left == 0:
            seconds = max(0, wall_ms - wall_ms_of(status.drain_started_at)) / 1000
            count = (
                f"transferred {status.bundles} bundles in {age_text(seconds)}"
                if status.bundles
                else "had no bundle to transfer"
            )
            after.append(Reported("Drained", f"{broker} {count}"))
        after.append(Reported("Removing" if status.action == DOWN else "Restarting", plan.message))
    return status


def _candidates_text(count: int) -> str:
    return (
        f"{count} other brokers"
        if count > 1
        else "the other broker"
        if count
        else "no broker: no other one takes bundles yet"
    )


def _end(status: ScalingStatus, chapter: Chapter, wall_ms: int) -> Reported:
    seconds = max(0, wall_ms - wall_ms_of(status.started_at)) / 1000
    if status.action == REPLACE:
        return Reported(
            "Replaced",
            f"{status.broker or 'the broker'} is back and ready after {age_text(seconds)}",
        )
    change = (
        f"from {status.from_replicas} to {chapter.wanted}"
        if status.from_replicas != chapter.wanted
        else "that was called off"
    )
    return Reported(
        "Settled", f"{chapter.wanted} brokers; the change {change} took {age_text(seconds)}"
    )


def overdue(status: ScalingStatus, left: int, limit_s: int, wall_ms: int) -> bool:
    """Whether the drain under way has lasted longer than `limit_s`."""
    return (
        bool(left and status.drain_started_at)
        and wall_ms - wall_ms_of(status.drain_started_at) > limit_s * 1000
    )


def stuck_message(broker: str, held: Sequence[str], candidates: Sequence[str], limit_s: int) -> str:
    """What delays a drain. Without the time that passes, so that the status stays the same
    while it lasts."""
    shown = ", ".join(held[:BUNDLES_NAMED_MAX]) + (
        f" and {len(held) - BUNDLES_NAMED_MAX} more" if len(held) > BUNDLES_NAMED_MAX else ""
    )
    taken = (
        f"{', '.join(candidates[:BUNDLES_NAMED_MAX])} could take them"
        if candidates
        else "no other broker takes bundles"
    )
    return (
        f"{broker} still has bundles after more than {limit_s} s: {shown}; {taken}; {broker} stays "
        "until they are gone"
    )
