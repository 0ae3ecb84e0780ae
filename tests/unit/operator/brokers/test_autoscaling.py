"""The autoscaler's decision: bounds, monotony, no flapping under constant load, nothing from
stale reports, no write without a change."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar.resources.scaling import Autoscaling, AutoscalingStatus
from magnetar_operator.brokers.autoscaler import owner_of_replicas
from magnetar_operator.brokers.autoscaling import (
    DECISIONS,
    DOWN_SOON,
    OFF,
    STEADY,
    STEPPED_BACK,
    UP,
    UP_SOON,
    WAITING,
    Decision,
    Report,
    Sight,
    decide,
    inputs_of,
    reports_that_count,
    window_ends_ms,
    wish_of,
)
from magnetar_operator.brokers.autoscaling_metrics import Look
from magnetar_operator.conditions import Reason
from magnetar_operator.metrics import OperatorMetrics

START_MS = 1_700_000_000_000
LOOK_MS = 10_000


def spec(**fields: Any) -> Autoscaling:
    return Autoscaling.model_validate(
        {"enabled": True, "minReplicas": 1, "maxReplicas": 10, **fields}
    )


def sight(*cpu: float, bundles: int = 8, replicas: int | None = None, **fields: Any) -> Sight:
    reports = tuple(
        Report(f"b-{at}", 1.0, bundles, share, 0.1, 100.0, 1e5) for at, share in enumerate(cpu)
    )
    serving = tuple(report.broker for report in reports)
    return Sight(len(cpu) if replicas is None else replicas, serving, reports, 15.0, **fields)


def looks(
    wanted: Autoscaling,
    seen: Sight,
    count: int,
    previous: AutoscalingStatus | None = None,
    at_ms: int = START_MS,
) -> Decision:
    """The decision after `count` looks at the same picture, 10 s apart."""
    decision = Decision(previous or AutoscalingStatus(), Reason.AUTOSCALING_ACTIVE)
    for look in range(count):
        decision = decide(wanted, decision.status, seen, at_ms + look * LOOK_MS)
        if decision.replicas is not None:
            return decision
    return decision


def test_a_hot_broker_counts_beside_the_mean() -> None:
    """Both have a mean of 50 %; (50 + 90) / 2 = 70 % of the target 60 % on two brokers are
    three."""
    assert wish_of(spec(), sight(0.9, 0.1).reports).replicas == 3
    assert wish_of(spec(), sight(0.5, 0.5).reports).replicas == 2


def test_the_sentence_has_the_arithmetic() -> None:
    wish = wish_of(spec(), sight(0.9, 0.7, 0.5).reports)
    assert wish.replicas == 4
    assert wish.sentence == (
        "cpu: mean 70 %, hottest b-0 90 %, weighed 80 % of the target 60 %; 3 x 80 % on 4 brokers "
        "is 60 % each"
    )


def test_a_bundle_that_nobody_can_share_calls_for_nobody() -> None:
    """One broker is hot with its only bundle: another broker could not take anything from it."""
    hot, cool = sight(1.0, 0.1).reports
    assert wish_of(spec(), (hot, cool)).replicas == 3
    assert wish_of(spec(), (replace(hot, bundles=1), cool)).replicas == 2


def test_the_target_that_asks_for_most_decides() -> None:
    wish = wish_of(
        spec(targets={"cpuPercent": 60, "messagesPerSecond": 25}), sight(0.1, 0.1).reports
    )
    assert wish.replicas == 8
    assert wish.sentence.startswith("messages/s: mean 100")


def test_up_after_its_window_and_by_its_step() -> None:
    """The first look only notes the wish; 30 s later two brokers are added, not the four that
    the load asks for."""
    wanted = spec()
    first = looks(wanted, sight(1.0, 1.0, 1.0), 1)
    assert (first.status.decision, first.status.wanted_replicas, first.replicas, first.news) == (
        UP_SOON,
        5,
        None,
        True,
    )
    waiting = looks(wanted, sight(1.0, 1.0, 1.0), 3)
    assert waiting.replicas is None
    acted = looks(wanted, sight(1.0, 1.0, 1.0), 4)
    assert (acted.status.decision, acted.replicas, acted.status.last_scale) == (UP, 5, "3 -> 5")
    assert looks(spec(scaleUp={"maxStep": 1}), sight(1.0, 1.0, 1.0), 4).replicas == 4


def test_down_after_its_window_one_at_a_time() -> None:
    wanted = spec()
    assert looks(wanted, sight(0.05, 0.05, 0.05), 30).status.decision == DOWN_SOON
    assert looks(wanted, sight(0.05, 0.05, 0.05), 31).replicas == 2


def test_one_look_that_says_otherwise_begins_the_window_again() -> None:
    wanted = spec()
    soon = looks(wanted, sight(1.0, 1.0), 3)
    calm = decide(wanted, soon.status, sight(0.6, 0.6), START_MS + 3 * LOOK_MS)
    assert calm.status.decision == STEADY
    again = decide(wanted, calm.status, sight(1.0, 1.0), START_MS + 4 * LOOK_MS)
    assert (again.status.decision, again.replicas) == (UP_SOON, None)


def test_the_most_careful_wish_of_the_window_counts() -> None:
    wanted = spec(scaleUp={"maxStep": 9})
    status = looks(wanted, sight(1.0, 1.0, 1.0), 3).status
    status = decide(wanted, status, sight(0.8, 0.8, 0.8), START_MS + 25_000).status
    assert status.wanted_replicas == 4
    assert decide(wanted, status, sight(1.0, 1.0, 1.0), START_MS + 30_000).replicas == 4


def test_nothing_is_decided_from_silence() -> None:
    """A report that is missing, too old or from the future stops every decision, in words that
    stay the same."""
    seen = sight(1.0, 1.0)
    for broken in (
        replace(seen, reports=seen.reports[:1]),
        replace(seen, reports=(seen.reports[0], replace(seen.reports[1], age_s=16.0))),
        replace(seen, reports=(seen.reports[0], replace(seen.reports[1], age_s=-16.0))),
    ):
        decision = looks(spec(), broken, 40)
        assert (decision.reason, decision.replicas) == (Reason.LOAD_UNKNOWN, None)
        assert decision.status.message == "b-1 sent no load report within 15 s"


def test_nothing_is_decided_while_the_cluster_changes_or_another_one_decides() -> None:
    busy = looks(spec(), sight(1.0, 1.0, busy="brokers come or go: Draining"), 40)
    assert (busy.status.decision, busy.replicas, busy.reason) == (
        WAITING,
        None,
        Reason.AUTOSCALING_WAITS,
    )
    owned = looks(spec(), sight(1.0, 1.0, owner="kube-controller-manager (scale)"), 40)
    assert (owned.status.decision, owned.replicas, owned.reason) == (
        STEPPED_BACK,
        None,
        Reason.REPLICAS_OWNED,
    )
    off = looks(spec(), sight(replicas=0), 40)
    assert (off.status.decision, off.replicas) == (OFF, None)


def test_bounds_hold_at_once_and_without_reports() -> None:
    assert decide(spec(minReplicas=3), AutoscalingStatus(), sight(0.1), START_MS).replicas == 3
    assert (
        decide(
            spec(maxReplicas=2), AutoscalingStatus(), sight(0.1, 0.1, 0.1, busy="x"), START_MS
        ).replicas
        == 2
    )


def test_a_dry_run_says_it_once_and_writes_nothing() -> None:
    """Also where another manager owns the field: nothing is fought over."""
    wanted = spec(dryRun=True)
    seen = sight(1.0, 1.0, 1.0, owner="argocd-controller (server-side apply)")
    decision = looks(wanted, seen, 4)
    assert (decision.status.decision, decision.replicas, decision.reason) == (
        UP,
        None,
        Reason.AUTOSCALING_DRY_RUN,
    )
    assert decision.status.message.startswith("would go from 3 to 5 brokers: cpu: mean 100 %")
    later = decide(wanted, decision.status, sight(0.99, 1.0, 0.98), START_MS + 10 * LOOK_MS)
    assert later.status == decision.status
    assert not later.news


def test_an_operator_that_restarts_goes_on_where_the_last_one_was() -> None:
    """The window's beginning is in the status: nothing else is remembered."""
    wanted = spec()
    status = AutoscalingStatus.model_validate(
        looks(wanted, sight(1.0, 1.0), 2).status.model_dump(by_alias=True)
    )
    assert decide(wanted, status, sight(1.0, 1.0), START_MS + 30_000).replicas == 4


shares = st.lists(st.floats(0, 1.5), min_size=1, max_size=8)
specs = st.builds(
    lambda low, extra, target, tolerance: spec(
        minReplicas=low, maxReplicas=low + extra, targets={"cpuPercent": target}, tolerancePercent=tolerance
    ),
    st.integers(1, 5), st.integers(0, 8), st.integers(5, 100), st.integers(0, 50),
)  # fmt: skip


@given(specs, shares)
@settings(deadline=None)
def test_what_is_written_is_within_the_bounds(wanted: Autoscaling, cpu: list[float]) -> None:
    decision = looks(wanted, sight(*cpu), 40)
    written = decision.replicas if decision.replicas is not None else len(cpu)
    assert wanted.min_replicas <= written <= wanted.max_replicas
    assert decision.replicas != len(cpu)


@given(
    specs,
    st.lists(
        st.tuples(st.floats(0, 1.5), st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=8
    ),
)
@settings(deadline=None)
def test_more_load_never_asks_for_fewer_brokers(
    wanted: Autoscaling, brokers: list[tuple[float, float, int]]
) -> None:
    """Whichever brokers carry it, those with a single bundle too."""
    before = [
        Report(f"b-{at}", 1.0, bundles, cpu, 0, 0, 0)
        for at, (cpu, _, bundles) in enumerate(brokers)
    ]
    after = [
        replace(report, cpu=report.cpu + more)
        for report, (_, more, _) in zip(before, brokers, strict=True)
    ]
    assert wish_of(wanted, after).replicas >= wish_of(wanted, before).replicas


@given(specs, st.floats(0, 8), st.floats(0, 1), st.integers(1, 8))
@settings(deadline=None)
def test_constant_load_settles(
    wanted: Autoscaling, total: float, skew: float, replicas: int
) -> None:
    """Any load, spread over the brokers with the hottest so much above the mean: at most one
    turn, then nothing more is written."""
    status, now_ms, ways = AutoscalingStatus(), START_MS, []
    for _ in range(400):
        mean = total / replicas
        hottest = mean * (1 + skew) if replicas > 1 else mean
        cpu = [
            hottest,
            *([(total - hottest) / (replicas - 1)] * (replicas - 1) if replicas > 1 else []),
        ]
        decision = decide(wanted, status, sight(*cpu), now_ms)
        status, now_ms = decision.status, now_ms + LOOK_MS
        if decision.replicas is not None:
            ways.append(decision.replicas > replicas)
            replicas = decision.replicas
    turns = sum(1 for before, after in pairwise(ways) if before != after)
    assert turns <= 1
    assert status.decision == STEADY
    assert decide(wanted, status, sight(*cpu), now_ms).status == status


@given(specs, shares, st.integers(1, 60))
@settings(deadline=None)
def test_the_same_picture_changes_the_status_a_bounded_number_of_times(
    wanted: Autoscaling, cpu: list[float], count: int
) -> None:
    """Noted, decided, done: what follows from one picture writes the status at most twice before
    something is done."""
    status, changes = AutoscalingStatus(), 0
    for look in range(count):
        decision = decide(wanted, status, sight(*cpu), START_MS + look * LOOK_MS)
        changes += decision.status != status
        status = decision.status
        if decision.replicas is not None:
            break
    assert changes <= 2


def test_impossible_settings_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValidationError, match="minReplicas must not be above maxReplicas"):
        spec(minReplicas=4, maxReplicas=3)
    with pytest.raises(ValidationError, match="set at least one of cpuPercent"):
        spec(targets={"cpuPercent": 0})


def owned(
    manager: str,
    operation: str = "Update",
    subresource: str = "",
    field: str = "f:replicas",
    written: bool = True,
) -> str:
    entry = {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {field: {}}}}
    entry |= {"subresource": subresource} if subresource else {}
    return owner_of_replicas({"metadata": {"managedFields": [entry]}}, written)


def test_who_else_writes_the_number_of_brokers() -> None:
    """Server-side appliers, the HPA and programs that took the field back; not ourselves, not a
    person's kubectl, not who made the object."""
    assert (
        owned("argocd-controller", "Apply", written=False)
        == "argocd-controller (server-side apply)"
    )
    assert owned("kubectl", "Apply") == "kubectl (server-side apply)"
    assert (
        owned("kube-controller-manager", subresource="scale", written=False)
        == "kube-controller-manager (scale)"
    )
    assert owned("helm") == "helm"
    assert owned("helm", written=False) == ""
    assert owned("kubectl", subresource="scale") == ""
    assert owned("kubectl-client-side-apply") == ""
    assert owned("magnetar-operator", subresource="scale") == ""
    assert owned("argocd-controller", "Apply", field="f:image") == ""


class StillClock:
    """Only what the metrics ask for."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms


def scraped(metrics: OperatorMetrics) -> dict[str, float]:
    """Series of the autoscaler by name and values of labels."""
    return {
        " ".join(
            [sample.name.removeprefix("magnetar_operator_autoscaling_"), *sample.labels.values()]
        ): sample.value
        for family in metrics.autoscaling.collect()
        for sample in family.samples
    }


def test_metrics_tell_inputs_decision_and_what_it_waits_for() -> None:
    """Of the last look: (90 + 50) / 2 weighed with the target 60; the window runs out by the
    clock; what is forgotten has no series."""
    metrics, clock = OperatorMetrics(), StillClock()
    wanted, seen = spec(scaleUp={"stabilizationWindowSeconds": 30}), sight(0.9, 0.1)
    decision = decide(
        wanted, AutoscalingStatus(last_scale_time="2023-11-14T22:13:20Z"), seen, START_MS
    )
    look = Look(
        decision.status,
        inputs_of(wanted, reports_that_count(seen)),
        window_ends_ms(wanted, decision.status),
    )
    metrics.autoscaling.note("team/main", look, clock)
    found = scraped(metrics)
    assert {word: found[f"decision team/main {word}"] for word in DECISIONS} == {
        word: float(word == UP_SOON) for word in DECISIONS
    }
    assert (found["replicas team/main"], found["wanted_replicas team/main"]) == (2, 3)
    load = {
        measure: round(found[f"load team/main cpu {measure}"], 6)
        for measure in ("mean", "hottest", "weighed", "target")
    }
    assert load == {"mean": 0.5, "hottest": 0.9, "weighed": 0.7, "target": 0.6}
    assert found["window_seconds team/main"] == 30
    assert found["last_scale_timestamp_seconds team/main"] == 1_700_000_000
    clock.now_ms += 20_000
    assert scraped(metrics)["window_seconds team/main"] == 10
    clock.now_ms += 20_000
    assert scraped(metrics)["window_seconds team/main"] == 0
    metrics.autoscaling.note("team/other", Look(AutoscalingStatus(), (), 0), clock)
    metrics.autoscaling.forget("team/main")
    assert not [name for name in scraped(metrics) if "team/main" in name]
    assert "replicas team/other" in scraped(metrics)
    metrics.autoscaling.clear()
    assert scraped(metrics) == {}


def test_reports_that_are_old_or_of_nobody_are_no_input() -> None:
    """A broker that is going, and one that has been silent, say nothing; without any report
    there is nothing to show."""
    seen = sight(0.9, 0.1, 0.5)
    seen = replace(
        seen,
        serving=("b-0", "b-1"),
        reports=(replace(seen.reports[0], age_s=16.0), *seen.reports[1:]),
    )
    assert [report.broker for report in reports_that_count(seen)] == ["b-1"]
    assert [one.weighed for one in inputs_of(spec(), reports_that_count(seen))] == [0.1]
    assert inputs_of(spec(), ()) == []
    assert (
        window_ends_ms(spec(), AutoscalingStatus(decision=STEADY, since="2023-11-14T22:13:20Z"))
        == 0
    )
