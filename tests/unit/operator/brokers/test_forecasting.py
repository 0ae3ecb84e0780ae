"""Brokers ahead of the load: by a sound forecast, within bounds, never fewer than the load asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.advice import BYTES, CPU, DOCUMENT, MESSAGES, LoadAdvice, LoadForecast
from magnetar.resources.scaling import Autoscaling, AutoscalingStatus, ForecastUse
from magnetar_operator.brokers.autoscaling import (
    DOWN_SOON,
    STEADY,
    UP,
    UP_SOON,
    Decision,
    Report,
    Sight,
    decide,
    reports_that_count,
    wish_of,
)
from magnetar_operator.brokers.forecasting import RATIO_MAX, Outlook, outlook_of

NOW_MS = 1_700_000_000_000
STEP_MS = 600_000


def spec(**fields: Any) -> Autoscaling:
    return Autoscaling.model_validate(
        {"enabled": True, "minReplicas": 1, "maxReplicas": 20, **fields}
    )


def sight(*cpu: float, outlook: Outlook | None = None) -> Sight:
    reports = tuple(
        Report(f"b-{at}", 1.0, 8, share, 0.1, 100.0, 1e5) for at, share in enumerate(cpu)
    )
    serving = tuple(report.broker for report in reports)
    return Sight(len(cpu), serving, reports, 15.0, outlook=outlook or Outlook())


def stored(measure: str, *values: float, **changes: Any) -> dict[str, Any]:
    """A document whose highest quantile has these values, from now on."""
    rows = (tuple(value / 2 for value in values), values)
    found = LoadForecast(measure, NOW_MS, STEP_MS, (0.5, 0.95), rows)
    advice = LoadAdvice(NOW_MS, NOW_MS + 86_400_000, job="team/hourly", forecasts=(found,))
    return {DOCUMENT: json.loads(advice.encode()) | changes}


def seen(documents: Any, **use: Any) -> Outlook:
    return outlook_of(documents, ForecastUse.model_validate(use), (1.0, 1.0), NOW_MS)


def test_the_highest_load_within_the_lead_counts() -> None:
    documents = stored(MESSAGES, 10.0, 30.0, 20.0, 99.0)
    assert seen(documents, leadSeconds=60).totals == (("messages/s", 10.0),)
    assert seen(documents, leadSeconds=1500).totals == (("messages/s", 30.0),)
    assert seen(documents, leadSeconds=1800).totals == (("messages/s", 99.0),)
    found = seen(documents)
    assert found.sentence == (
        "Used: by job team/hourly, made 2023-11-14T22:13:20Z, valid until 2023-11-15T22:13:20Z"
    )


def test_cpu_is_in_brokers_that_it_fills() -> None:
    found = outlook_of(stored(CPU, 3.0), ForecastUse(), (2.0, 2.0, 2.0), NOW_MS)
    assert found.totals == (("cpu", 1.5),)
    assert not outlook_of(stored(CPU, 3.0), ForecastUse(), (), NOW_MS).used


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        ({}, "not a record"),
        ({DOCUMENT: "x"}, "not a record"),
        (stored(CPU, 1.0, valid_until_ms=NOW_MS), "expired"),
        (stored(CPU, 1.0, forecasts=[{"measure": "cpu"}]), ""),
        (stored(CPU, 1.0, made_ms=NOW_MS + 10**9), "future"),
        (stored(CPU, 1.0, forecasts=[]), "foretells nothing"),
        (stored(BYTES, 0.0), "foretells nothing"),
    ],
)
def test_what_is_not_sound_is_ignored_and_said(documents: Any, why: str) -> None:
    found = seen(documents)
    assert not found.used
    assert found.sentence.startswith("Ignored: ")
    assert why in found.sentence


def test_without_a_document_or_switched_off_nothing_is_said() -> None:
    assert seen(None) == seen(stored(CPU, 5.0), enabled=False) == Outlook()


def test_brokers_come_before_the_load_does() -> None:
    """The load of now is well below the target on two brokers; in a quarter of an hour it fills
    1.9 of them: four."""
    outlook = seen(stored(CPU, 1.0, 1.9))
    decision = Decision(
        AutoscalingStatus(), decide(spec(), AutoscalingStatus(), sight(0.5, 0.5), 0).reason
    )
    for look in range(4):
        decision = decide(
            spec(), decision.status, sight(0.5, 0.5, outlook=outlook), NOW_MS + 10_000 * look
        )
        if look == 0:
            assert decision.status.decision == UP_SOON
            assert decision.status.message.startswith(
                "forecast of load analytics for the next 900 s: cpu 190 % in all, 60 % is the "
                "target of each; the load of now asks for 2"
            )
    assert (decision.status.decision, decision.replicas) == (UP, 4)


def test_a_dip_that_will_not_last_removes_no_broker() -> None:
    low = sight(0.2, 0.2, 0.2, 0.2)
    assert decide(spec(), AutoscalingStatus(), low, NOW_MS).status.decision == DOWN_SOON
    outlook = seen(stored(CPU, 0.8, 2.3))
    held = decide(spec(), AutoscalingStatus(), replace(low, outlook=outlook), NOW_MS)
    # twice what the present load needs, which is two brokers
    assert (held.status.decision, held.status.wanted_replicas) == (STEADY, 4)


def test_an_input_without_a_target_does_not_count() -> None:
    outlook = seen(stored(MESSAGES, 1e9))
    assert decide(spec(), AutoscalingStatus(), sight(0.5, 0.5, outlook=outlook), NOW_MS) == decide(
        spec(), AutoscalingStatus(), sight(0.5, 0.5), NOW_MS
    )


@given(
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=8),
    st.dictionaries(st.sampled_from(["cpu", "messages/s"]), st.floats(0.001, 1e12)),
)
def test_a_forecast_never_asks_for_fewer_and_is_bounded(
    cpu: list[float], totals: dict[str, float]
) -> None:
    wanted = spec(maxReplicas=200)
    now = sight(*cpu)
    plain = wish_of(wanted, reports_that_count(now)).replicas
    outlook = Outlook("Used", 900, tuple(sorted(totals.items())))
    decision = decide(wanted, AutoscalingStatus(), replace(now, outlook=outlook), NOW_MS)
    needed = max(1, -(-sum(cpu) // 0.6))
    assert plain <= decision.status.wanted_replicas or decision.status.wanted_replicas == 200
    assert decision.status.wanted_replicas <= max(plain, RATIO_MAX * (needed + 1))
