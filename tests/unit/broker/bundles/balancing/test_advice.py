"""Advice of load analytics: used while it is sound and valid, and never otherwise."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.balance.advice import DOCUMENT, BundleAdvice, LoadAdvice, MergeAdvice, SplitAdvice
from magnetar.balance.cluster import Broker, Bundle, Cluster, Memory
from magnetar.balance.decision import MERGE, SHED, SPLIT, Request, decide, recorded, replay
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates
from magnetar.balance.settings import BALANCE
from magnetar.broker.administration.load_words import load_in_words
from magnetar.broker.bundles.balancing.advice import ABSENT, EXPIRED, OFF, AdviceReader
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import BrokerMetrics

NOW_MS = 10**12
LEFT, RIGHT = "public/default/0x00000000_0x40000000", "public/default/0x40000000_0x80000000"
REST = "public/default/0x80000000_0xffffffff"


class Stage:
    """A reader over documents, a switch and a clock that the test plays."""

    def __init__(self) -> None:
        self.now_ms, self.documents = NOW_MS, dict[str, Any]()
        self.metrics, self.settings = BrokerMetrics(), SimpleNamespace(advice=True)
        clock = SimpleNamespace(wall_ms=lambda: self.now_ms)
        self.reader = AdviceReader(
            cast(BrokerContext, SimpleNamespace(clock=clock, metrics=self.metrics)),
            cast(Any, SimpleNamespace(documents=self.documents)),
            cast(Any, SimpleNamespace(current=self.settings)),
        )

    def put(self, document: object, revision: int) -> None:
        record = SimpleNamespace(documents={DOCUMENT: document})
        self.documents[DOCUMENT] = SimpleNamespace(record=record, mod_revision=revision)

    def ignored(self, reason: str) -> float:
        return float(self.metrics.balance.advice_ignored.labels(reason)._value.get())


def document(**changes: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LoadAdvice(NOW_MS, NOW_MS + 60_000, job="j").encode())
    return found | changes


def test_advice_is_used_until_it_expires_and_counted_once() -> None:
    stage = Stage()
    assert stage.reader.current() is None
    assert stage.reader.refusal == ABSENT
    stage.put(document(), 5)
    found = stage.reader.current()
    assert found is not None
    assert stage.reader.current() is found, "read once"
    gauge = stage.metrics.gauges["magnetar_load_advice_valid_until_timestamp_seconds"][1]
    assert gauge() == (NOW_MS + 60_000) / 1000
    stage.now_ms += 60_000
    for _ in range(3):
        assert stage.reader.current() is None
    assert (stage.reader.refusal, stage.ignored("expired"), gauge()) == (EXPIRED, 1, 0)
    stage.put(document(made_ms=stage.now_ms, valid_until_ms=stage.now_ms + 5), 6)
    assert stage.reader.current() is not None


@pytest.mark.parametrize(
    "hostile",
    [
        None,
        7,
        "x" * 10_000,
        [],
        {},
        document(valid_until_ms=10**18),
        document(bundles=[{"name": "../../etc", "usual": {}, "peak": {}}]),
        document(splits=[{"bundle": LEFT, "boundaries": [0xFFFFFFFF]}]),
        document(bundles=[[[[]]]] * 10),
        document(made_ms=NOW_MS - 10**9, valid_until_ms=NOW_MS - 1),
    ],
)
def test_a_hostile_document_is_ignored_with_a_count(hostile: object) -> None:
    stage = Stage()
    stage.put(document(), 5)
    assert stage.reader.current() is not None
    stage.put(hostile, 6)
    for _ in range(3):
        assert stage.reader.current() is None
    assert stage.ignored("unsound") == 1
    assert stage.reader.refusal.startswith(("load advice", "LoadAdvice"))


def test_a_switch_turns_it_off_and_on() -> None:
    stage = Stage()
    stage.put(document(), 5)
    stage.settings.advice = False
    assert (stage.reader.current(), stage.reader.refusal) == (None, OFF)
    stage.settings.advice = True
    assert stage.reader.current() is not None
    del stage.documents[DOCUMENT]
    assert (stage.reader.current(), stage.reader.refusal) == (None, ABSENT)


# --- decisions ------------------------------------------------------------------------------------


def bundle(name: str, rate: float, broker: str = "b0", topics: int = 5) -> Bundle:
    return Bundle(name, broker, History.steady(Rates(rate)), topics)


def cluster(*bundles: Bundle) -> Cluster:
    brokers = tuple(Broker(f"b{at}", LoadReport(f"b{at}", NOW_MS)) for at in range(2))
    return Cluster(NOW_MS, brokers, bundles)


def advice(**parts: Any) -> LoadAdvice:
    return LoadAdvice(NOW_MS, NOW_MS + 60_000, **parts)


NAMED = BALANCE.named() | {
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0,
    "plannerMergeBundlesMin": 1,
}


def test_a_hot_bundle_is_cut_where_advice_says() -> None:
    """And says so; only because its measured load is too high, and only where it fits."""
    known = cluster(bundle(LEFT, 9000.0), bundle(REST, 10.0, "b1"))
    cuts = advice(splits=(SplitAdvice(LEFT, (0x100, 0x200)), SplitAdvice(REST, (0x90000000,))))
    request = Request(SPLIT, known, settings=NAMED, advice=cuts)
    outcome = decide(request)
    [split] = outcome.splits
    assert (split.bundle, split.boundaries) == (LEFT, (0x100, 0x200))
    assert split.reason.endswith("cut as load analytics advises")
    assert replay(recorded(request, outcome)) == outcome
    crowded = Request(
        SPLIT, known, settings=NAMED | {"loadBalancerNamespaceMaximumBundles": 3}, advice=cuts
    )
    assert decide(crowded).splits[0].boundaries == ()
    assert decide(Request(SPLIT, known, settings=NAMED)).splits[0].boundaries == ()


def test_a_daily_peak_prevents_a_merge_and_cold_neighbours_merge_early() -> None:
    known = cluster(bundle(LEFT, 1.0), bundle(RIGHT, 1.0), bundle(REST, 1000.0, "b1"))

    def checks(found: LoadAdvice | None) -> int | None:
        """After how many checks the two are merged."""
        memory = Memory()
        for at in range(1, 100):
            outcome = decide(Request(MERGE, known, memory, settings=NAMED, advice=found))
            memory = outcome.memory
            if outcome.merges:
                assert ("load analytics" in outcome.merges[0].reason) == (found is not None)
                return at
        return None

    assert checks(None) == 61
    assert checks(advice(merges=(MergeAdvice((LEFT, RIGHT)),))) == 16
    peak = BundleAdvice(LEFT, Rates(1.0), Rates(20_000.0))
    assert checks(advice(bundles=(peak,), merges=(MergeAdvice((LEFT, RIGHT)),))) is None


def test_the_planner_counts_unmeasured_bundles_as_advice_knows_them() -> None:
    """Two bundles that no report names: the heavy one is the one that goes to the other broker."""
    silent = (Bundle(LEFT, ""), Bundle(RIGHT, ""), bundle(REST, 1000.0))
    known = advice(
        bundles=(
            BundleAdvice(LEFT, Rates(3000.0), Rates(3000.0)),
            BundleAdvice(RIGHT, Rates(1900.0), Rates(1900.0)),
        )
    )
    outcome = decide(Request(SHED, cluster(*silent), settings=NAMED, advice=known))
    assert {move.bundle: move.destination for move in outcome.moves} == {LEFT: "b1", RIGHT: "b0"}
    assert outcome.notes == (
        "2 bundles that no report names count with the usual load that load analytics knows",
    )
    measured = cluster(*(bundle(name, 10.0, "") for name in (LEFT, RIGHT)), silent[2])
    assert decide(Request(SHED, measured, settings=NAMED, advice=known)).notes == ()


def test_explain_says_what_advice_says() -> None:
    load = {
        "measured": True, "load": 5.0, "broker": "", "shares": {}, "allowed": ["b0"],
        "placement": "", "reason": "", "enabled": False, "strategy": "Planner",
        "advice": {
            "made_ms": NOW_MS, "valid_until_ms": NOW_MS + 3_600_000, "usual": 4.0, "peak": 90.0,
            "parts": 3, "merge_with": [RIGHT],
        },
    }  # fmt: skip
    sentences = " ".join(load_in_words(load, NOW_MS))
    for part in ("4.0 messages/s, and 90.0 at its peak", "cut into 3 parts", f"early with {RIGHT}"):
        assert part in sentences
    refused = load | {"advice": None, "no_advice": EXPIRED}
    assert load_in_words(refused, NOW_MS)[-1] == f"Load analytics gives no advice: {EXPIRED}."
    assert BundleLoad(LEFT, History()).name == LEFT
