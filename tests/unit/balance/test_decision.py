"""Records of decisions: replayable, bounded, never mistaken for something else."""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from magnetar.balance import decision as decisions
from magnetar.balance.cluster import Bundle, Cluster, Memory, Moved
from magnetar.balance.decision import (
    ENCODED_BYTES_MAX,
    Decision,
    Request,
    decide,
    recorded,
    replay,
)
from magnetar.balance.filters import IsolationPolicy, Policies
from magnetar.balance.load import History, Rates
from magnetar.balance.settings import PLACEMENTS, SHEDDERS
from magnetar.errors import InvalidRequest, StoreError
from tests.support.balance import NOW_MS, broker, bundles, name_of, rates


@st.composite
def requests(draw: st.DrawFn) -> Request:
    count = draw(st.integers(1, 5))
    members = tuple(
        broker(f"b{at}", draw(st.floats(0, 120)), draw(st.floats(0, 1e5)), draw(st.floats(0, 1e3)))
        for at in range(count)
    )
    owned = tuple(
        bundle
        for at in range(count)
        for bundle in bundles(
            f"b{at}", [rates(load, load) for load in draw(st.lists(st.floats(0, 1e3)))], 99 * at
        )
    )
    orphan = Bundle(name_of(5000))
    memory = Memory(
        usage={"b0": draw(st.floats(0, 1))},
        hits={"b0": (5, 1)},
        moved={item.name: Moved(NOW_MS - 1, 5.0, ("b0", "b1")) for item in owned[:2]},
    )
    shared = IsolationPolicy("p", ("none/.*",), ("elsewhere",))
    policies = draw(st.sampled_from([Policies(), Policies((shared,), {"public/default": "g"})]))
    shedder, placement = draw(st.sampled_from(SHEDDERS)), draw(st.sampled_from(PLACEMENTS))
    if "AvgShedder" in (shedder, placement):
        shedder = placement = "AvgShedder"
    settings = {
        "loadBalancerLoadSheddingStrategy": shedder,
        "loadBalancerLoadPlacementStrategy": placement,
        "loadBalancerSheddingExcludedNamespaces": draw(st.sampled_from([(), ("quiet/one",)])),
        "minUnloadMessage": 1,
    }
    kind = draw(st.sampled_from(["shed", "place", "split", "merge"]))
    cluster = Cluster(NOW_MS, members, (*owned, orphan))
    return Request(kind, cluster, memory, policies, settings, draw(st.integers(0)), orphan.name)


@given(requests())
@profile(max_examples=100)
def test_a_decision_replays_from_its_json(request: Request) -> None:
    outcome = decide(request)
    record = recorded(request, outcome)
    assert record.replayable
    assert len(record.encode()) <= ENCODED_BYTES_MAX
    again = Decision.decode(record.encode())
    assert again == record
    assert replay(again) == again.outcome == outcome


def request_of(count: int) -> Request:
    owned = tuple(
        Bundle(name_of(at), "b1", History.steady(rates(1.1 * at, at / 7))) for at in range(count)
    )
    settings = {"loadBalancerLoadSheddingStrategy": "Planner", "plannerMovesMax": 10_000}
    cluster = Cluster(NOW_MS, (broker("b1"), broker("b2")), owned)
    return Request("shed", cluster, settings=settings)


def test_a_decision_that_is_too_large_keeps_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(300)
    outcome = decide(request)
    assert recorded(request, outcome).replayable
    for name, limit in (("INPUTS_BYTES_MAX", 1000), ("ENCODED_BYTES_MAX", 20_000)):
        with monkeypatch.context() as patched:
            patched.setattr(decisions, name, limit)
            record = recorded(request, outcome)
        assert not record.replayable
        assert record.outcome.reason == outcome.reason
        with pytest.raises(StoreError, match="too large"):
            replay(record)


@pytest.mark.slow
def test_a_large_cluster_fits() -> None:
    """10 000 bundles, all different, as they are reported."""
    chance = random.Random(1)
    request = request_of(10_000)
    owned = []
    for bundle in request.cluster.bundles:
        history = History()
        for _ in range(3):
            load = chance.lognormvariate(5, 2)
            history = history.observe(Rates(load, chance.uniform(0, load), 99 * load, 7 * load))
        owned.append(replace(bundle, history=history.rounded()))
    request = replace(request, cluster=replace(request.cluster, bundles=tuple(owned)))
    record = recorded(request, decide(request))
    assert len(record.encode()) <= ENCODED_BYTES_MAX
    assert record.replayable
    assert record.outcome.moves


@pytest.mark.parametrize(
    "inputs",
    ["x", base64.b64encode(b"none").decode(), base64.b64encode(zlib.compress(b"{}")).decode()],
)
def test_damaged_inputs(inputs: str) -> None:
    request = request_of(3)
    record = recorded(request, decide(request))
    with pytest.raises(StoreError):
        replay(replace(record, inputs=inputs))


def test_requests_that_are_none() -> None:
    with pytest.raises(InvalidRequest, match="kind"):
        decide(replace(request_of(1), kind="guess"))
    with pytest.raises(InvalidRequest, match="bundle"):
        decide(replace(request_of(1), kind="place", bundle="a/b/c"))
    with pytest.raises(InvalidRequest, match="loadBalancerX"):
        decide(replace(request_of(1), settings={"loadBalancerX": 1}))
