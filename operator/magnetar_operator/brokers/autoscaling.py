"""How many brokers the load asks for.

Owns: the arithmetic, its words, and when a wish becomes a decision. Imports: resources.scaling,
conditions, forecasting. Pure. Invariants: the result is within minReplicas and maxReplicas; more load never asks
for fewer brokers, nor does a forecast; brokers are removed only if the rest would stay below every target by the
tolerance, so constant load settles; nothing is decided from a report that is missing or older than
its time-out, nor while the cluster changes; the same decision gives the same status, so that a
steady state writes none.

Arithmetic. For each target: weighed = (mean of all brokers + hottest broker) / 2, because a mean
hides a broker that suffers and a maximum calls for brokers when bundles only need to move. Brokers
with a single bundle are never the hottest: no transfer relieves them of that one. n brokers at
`weighed` carry the same as k brokers at n x weighed / k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.amounts import size_text
from magnetar.resources.scaling import Autoscaling, AutoscalingStatus
from magnetar_operator.brokers.forecasting import Outlook, most
from magnetar_operator.conditions import Reason, timestamp, wall_ms_of

ROUNDING = 1e-9
NO_OUTLOOK = Outlook()
STEADY, UP_SOON, UP, DOWN_SOON, DOWN = (
    "Steady",
    "ScaleUpSoon",
    "ScaleUp",
    "ScaleDownSoon",
    "ScaleDown",
)
WAITING, STEPPED_BACK, OFF = "Waiting", "SteppedBack", "Off"
DIRECTIONS = {UP_SOON: "up", UP: "up", DOWN_SOON: "down", DOWN: "down"}
DECISIONS = (STEADY, UP_SOON, UP, DOWN_SOON, DOWN, WAITING, STEPPED_BACK, OFF)
QUIET = ("", STEADY, WAITING, OFF)
"""Going from one of these to another is no news for people."""


@dataclass(frozen=True, slots=True)
class Report:
    """One broker's load: shares are 0..1, rates per second in and out together, `age_s` by the
    operator's clock."""

    broker: str
    age_s: float
    bundles: int
    cpu: float
    memory: float
    messages: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Sight:
    """What the decision is made on.

    `replicas`: spec.replicas. `serving`: brokers that must have reported. `timeout_s`: age above
    which a report counts for nothing. `busy` and `owner` ("" = none): what the cluster is occupied
    with, and who else writes spec.replicas. `outlook`: what load analytics foretells.
    """

    replicas: int
    serving: tuple[str, ...]
    reports: tuple[Report, ...]
    timeout_s: float
    busy: str = ""
    owner: str = ""
    outlook: Outlook = NO_OUTLOOK


@dataclass(frozen=True, slots=True)
class Input:
    """One kind of load: its mean, the hottest broker that could be relieved (`who`, "" = none),
    what counts, and the target, all above 0."""

    name: str
    mean: float
    hottest: float
    who: str
    weighed: float
    target: float


@dataclass(frozen=True, slots=True)
class Wish:
    """Brokers that the load asks for, without bounds, and why."""

    replicas: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`replicas` is what to write now (None = nothing); `status` and `reason` what to show;
    `news` whether people should learn of it."""

    status: AutoscalingStatus
    reason: Reason
    replicas: int | None = None
    news: bool = False


def decide(spec: Autoscaling, previous: AutoscalingStatus, sight: Sight, wall_ms: int) -> Decision:
    """The decision now; `previous` is the last one, which may be another operator's."""
    mode = "DryRun" if spec.dry_run else "Active"
    bounded = min(max(sight.replicas, spec.min_replicas), spec.max_replicas)
    if sight.replicas == 0:
        return _hold(
            previous,
            mode,
            sight,
            OFF,
            "spec.replicas is 0: raise it to 1 or more to begin",
            Reason.STOPPED,
            wall_ms,
        )
    if sight.owner and not spec.dry_run:
        message = f"{sight.owner} writes spec.replicas"
        return _hold(previous, mode, sight, STEPPED_BACK, message, Reason.REPLICAS_OWNED, wall_ms)
    if bounded != sight.replicas:
        message = (
            f"{sight.replicas} brokers are outside of {spec.min_replicas} to {spec.max_replicas}"
        )
        return _act(previous, mode, sight, bounded, bounded, message, wall_ms)
    if sight.busy:
        return _hold(previous, mode, sight, WAITING, sight.busy, Reason.AUTOSCALING_WAITS, wall_ms)
    silent = _silent(sight)
    if silent:
        return _hold(previous, mode, sight, WAITING, silent, Reason.LOAD_UNKNOWN, wall_ms)
    wish = ahead(spec, sight, wish_of(spec, reports_that_count(sight)))
    target = min(max(wish.replicas, spec.min_replicas), spec.max_replicas)
    if target == sight.replicas:
        at_bound = f"; {target} is the bound" if wish.replicas != target else ""
        message = f"{wish.sentence}{at_bound}"
        return _hold(previous, mode, sight, STEADY, message, Reason.AUTOSCALING_ACTIVE, wall_ms)
    return _approach(spec, previous, mode, sight, target, wish.sentence, wall_ms)


def reports_that_count(sight: Sight) -> list[Report]:
    """Those of brokers that serve, as far as they are young enough."""
    return [
        report
        for report in sight.reports
        if report.broker in sight.serving and abs(report.age_s) <= sight.timeout_s
    ]


def window_ends_ms(spec: Autoscaling, status: AutoscalingStatus) -> int:
    """When the wish in `status` becomes a decision if it lasts (milliseconds since
    the epoch); 0 if none waits."""
    if status.decision not in (UP_SOON, DOWN_SOON) or not status.since:
        return 0
    pace = spec.scale_up if status.decision == UP_SOON else spec.scale_down
    return wall_ms_of(status.since) + pace.stabilization_window_seconds * 1000


def wish_of(spec: Autoscaling, reports: Sequence[Report]) -> Wish:
    """Brokers that `reports` (at least one) ask for: the target that asks for most decides, and
    gives the sentence."""
    tolerance = spec.tolerance_percent / 100
    wishes = [_wish(one, len(reports), tolerance) for one in inputs_of(spec, reports)]
    return max(wishes, key=lambda wish: wish.replicas)


def ahead(spec: Autoscaling, sight: Sight, wish: Wish) -> Wish:
    """The wish, or that of the forecast if it asks for more: up to `forecasting.RATIO_MAX` times
    what the present load needs."""
    inputs = inputs_of(spec, reports_that_count(sight))
    tolerance = spec.tolerance_percent / 100
    limit = most([(len(sight.serving) * one.mean, one.target) for one in inputs])
    targets = {one.name: one.target for one in inputs}
    for name, total in sight.outlook.totals:
        if name not in targets:
            continue
        each = total / sight.replicas
        foretold = _wish(
            Input(name, each, each, "", each, targets[name]), sight.replicas, tolerance
        )
        wanted = min(foretold.replicas, limit)
        if wanted > wish.replicas:
            wish = Wish(
                wanted,
                f"forecast of load analytics for the next {sight.outlook.lead_s} s: {name} "
                f"{_text(name, total)} in all, {_text(name, targets[name])} is the target of each; "
                f"the load of now asks for {wish.replicas}",
            )
    return wish


def inputs_of(spec: Autoscaling, reports: Sequence[Report]) -> list[Input]:
    """What `reports` say of each load that has a target; nothing without reports."""
    return [
        _input(name, values, target, reports)
        for name, target, values in (
            ("cpu", spec.targets.cpu_percent / 100, [report.cpu for report in reports]),
            ("memory", spec.targets.memory_percent / 100, [report.memory for report in reports]),
            (
                "messages/s",
                float(spec.targets.messages_per_second),
                [report.messages for report in reports],
            ),
            ("bytes/s", float(spec.targets.bytes_per_second), [report.bytes for report in reports]),
        )
        if target > 0 and reports
    ]


def _input(name: str, values: Sequence[float], target: float, reports: Sequence[Report]) -> Input:
    mean = sum(values) / len(values)
    relievable = [
        (value, report.broker)
        for value, report in zip(values, reports, strict=True)
        if report.bundles > 1
    ]
    hottest, who = max(relievable, default=(mean, ""))
    return Input(name, mean, hottest, who, (mean + max(mean, hottest)) / 2, target)


def _wish(one: Input, count: int, tolerance: float) -> Wish:
    name, weighed, ratio = one.name, one.weighed, one.weighed / one.target
    fewest = max(1, math.ceil(count * ratio / (1 - tolerance) - ROUNDING))
    wanted = (
        max(count, math.ceil(count * ratio - ROUNDING))
        if ratio > 1 + tolerance
        else min(count, fewest)
    )
    shown = (
        f"hottest {one.who} {_text(name, one.hottest)}"
        if one.who
        else "no broker with bundles to share"
    )
    sentence = (
        f"{name}: mean {_text(name, one.mean)}, {shown}, weighed {_text(name, weighed)} of the "
        f"target {_text(name, one.target)}; "
        f"{count} x {_text(name, weighed)} on {wanted} brokers is "
        f"{_text(name, count * weighed / wanted)} each"
    )
    return Wish(wanted, sentence)


def _text(name: str, value: float) -> str:
    if name in ("cpu", "memory"):
        return f"{value * 100:.0f} %"
    return size_text(round(value)) if name == "bytes/s" else f"{value:.0f}"


def _silent(sight: Sight) -> str:
    """Whose report is missing, "" if all are there. Without ages, so that the sentence stays the
    same while it lasts."""
    if not sight.serving:
        return "no broker serves"
    fresh = {report.broker for report in reports_that_count(sight)}
    missing = [broker for broker in sight.serving if broker not in fresh]
    return (
        f"{', '.join(missing[:3])} sent no load report within {sight.timeout_s:.0f} s"
        if missing
        else ""
    )


def _approach(
    spec: Autoscaling,
    previous: AutoscalingStatus,
    mode: str,
    sight: Sight,
    target: int,
    sentence: str,
    wall_ms: int,
) -> Decision:
    """Wait until the window has passed in which every look said the same; the most careful of
    these wishes counts."""
    up = target > sight.replicas
    soon, pace = (UP_SOON, spec.scale_up) if up else (DOWN_SOON, spec.scale_down)
    same = _is_same_way(previous, mode, sight, soon)
    wanted = target
    since_ms = wall_ms
    if same:
        wanted = (
            min(previous.wanted_replicas, target) if up else max(previous.wanted_replicas, target)
        )
        since_ms = min(wall_ms, wall_ms_of(previous.since)) if previous.since else wall_ms
    if wall_ms - since_ms < pace.stabilization_window_seconds * 1000:
        message = (
            f"{sentence}; waiting {pace.stabilization_window_seconds} s to see whether it lasts"
        )
        return _hold(
            previous, mode, sight, soon, message, Reason.AUTOSCALING_ACTIVE, wall_ms, wanted
        )
    step = max(-pace.max_step, min(pace.max_step, wanted - sight.replicas))
    return _act(previous, mode, sight, sight.replicas + step, wanted, sentence, wall_ms)


def _is_same_way(previous: AutoscalingStatus, mode: str, sight: Sight, decision: str) -> bool:
    """Whether the last decision pointed the same way, from the same number of brokers."""
    way = DIRECTIONS.get(decision)
    return way is not None and (previous.mode, DIRECTIONS.get(previous.decision), previous.current_replicas) == (
        mode, way, sight.replicas,
    )  # fmt: skip


def _hold(
    previous: AutoscalingStatus,
    mode: str,
    sight: Sight,
    decision: str,
    message: str,
    reason: Reason,
    wall_ms: int,
    wanted: int | None = None,
) -> Decision:
    """Nothing is written; the status stays as it is while it says the same."""
    goal = sight.replicas if wanted is None else wanted
    same = (previous.mode, previous.decision, previous.current_replicas) == (
        mode,
        decision,
        sight.replicas,
    )
    waits = decision in (WAITING, STEPPED_BACK)
    if same and previous.wanted_replicas == goal and (not waits or previous.message == message):
        return Decision(previous, reason)
    # The window began when the first look said so, whatever the later ones ask for.
    since = previous.since if _is_same_way(previous, mode, sight, decision) else timestamp(wall_ms)
    status = previous.model_copy(
        update={
            "mode": mode,
            "decision": decision,
            "current_replicas": sight.replicas,
            "wanted_replicas": goal,
            "message": message,
            "since": since,
        }
    )
    news = previous.decision != decision and not (previous.decision in QUIET and decision in QUIET)
    return Decision(status, reason, news=news)


def _act(
    previous: AutoscalingStatus,
    mode: str,
    sight: Sight,
    replicas: int,
    wanted: int,
    sentence: str,
    wall_ms: int,
) -> Decision:
    """Write `replicas`, or in a dry run say that it would be written."""
    decision = UP if replicas > sight.replicas else DOWN
    if mode == "DryRun":
        message = f"would go from {sight.replicas} to {replicas} brokers: {sentence}"
        return _hold(
            previous, mode, sight, decision, message, Reason.AUTOSCALING_DRY_RUN, wall_ms, wanted
        )
    status = AutoscalingStatus(
        mode=mode,
        decision=decision,
        current_replicas=sight.replicas,
        wanted_replicas=wanted,
        message=f"from {sight.replicas} to {replicas} brokers: {sentence}",
        since=timestamp(wall_ms),
        last_scale_time=timestamp(wall_ms),
        last_scale=f"{sight.replicas} -> {replicas}",
    )
    return Decision(status, Reason.AUTOSCALING_ACTIVE, replicas, news=True)
