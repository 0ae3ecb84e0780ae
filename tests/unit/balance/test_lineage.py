"""Loads of bundles that a split or merge has just made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.cluster import Moved, joined
from magnetar.balance.lineage import inherited
from magnetar.balance.load import BundleLoad, History, LoadReport, TopicLoad
from magnetar.balance.planner import loads
from magnetar.names import BundleName, NamespaceName
from magnetar.ownership.splits import children_of_split
from tests.support.balance import broker, rates, situation

NAMESPACE = NamespaceName("public", "default")
PARENT = BundleName(NAMESPACE, 0x40000000, 0x80000000)
HOT = TopicLoad("persistent://public/default/hot", 0x50000000, rates(600))


def load(bundle: BundleName, messages: float, *hot: TopicLoad, topics: int = 8) -> BundleLoad:
    return BundleLoad(str(bundle), History.steady(rates(messages)), topics, 10, 10, hot)


def size(found: BundleLoad | None) -> float:
    assert found is not None
    return found.history.level.mean.rates.size


@given(
    st.sets(st.integers(0x40000001, 0x7FFFFFFF), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0x40000000, 0x7FFFFFFF), st.floats(0, 300)), max_size=8),
    st.floats(0, 3000),
)
def test_parts_have_the_load_of_the_whole(
    cuts: set[int], hot: list[tuple[int, float]], rest: float
) -> None:
    """Whatever the boundaries; and a merge of all parts has it again."""
    topics = [TopicLoad(f"t{at}", at, rates(messages)) for at, messages in hot]
    whole = load(PARENT, rest + sum(messages for _, messages in hot), *topics)
    parts = [inherited(child, [whole]) for child in children_of_split(PARENT, tuple(sorted(cuts)))]
    assert sum(map(size, parts)) == pytest.approx(size(whole), rel=1e-6, abs=1e-6)
    again = inherited(PARENT, [part for part in parts if part is not None])
    assert size(again) == pytest.approx(size(whole), rel=1e-6, abs=1e-6)


def test_a_hot_topic_counts_where_it_is() -> None:
    whole = load(PARENT, 1000, HOT)
    left, own, right = children_of_split(PARENT, (HOT.position, HOT.position + 1))
    assert size(inherited(own, [whole])) == pytest.approx(600, rel=1e-3)
    assert size(inherited(left, [whole])) == pytest.approx(100, rel=1e-3)
    assert size(inherited(right, [whole])) == pytest.approx(300, rel=1e-3)
    found = inherited(own, [whole])
    assert found is not None
    assert (found.topics, found.hot) == (1, (HOT,))


def test_only_what_overlaps_counts() -> None:
    beside = load(BundleName(NAMESPACE, 0, 0x40000000), 1000)
    elsewhere = load(BundleName(NamespaceName("public", "other"), 0, 0xFFFFFFFF), 1000)
    assert inherited(PARENT, [beside, elsewhere]) is None


def test_parts_are_known_until_their_owner_reports_again() -> None:
    """They have what the report says of the parent; a later report that names neither counts."""
    children = [str(child) for child in children_of_split(PARENT, (0x50000000,))]
    owners = dict.fromkeys(children, "b1")
    before = LoadReport("b1", 1000, top=(load(PARENT, 1000, HOT),))
    left, right = joined(owners, [before])
    assert left.level.messages + right.level.messages == pytest.approx(1000)
    assert right.level.messages > 600
    after = LoadReport("b1", 2000, top=())
    assert [found.history for found in joined(owners, [before, after])] == [None, None]
    assert [found.history for found in joined(owners, [after, before])] == [None, None]


def test_what_moved_lately_has_the_load_that_it_had() -> None:
    """Between its last report at the source and its first at the destination."""
    now = situation([broker("b1"), broker("b2")], joined({str(PARENT): "b2"}, []))
    memory = now.memory
    memory.moved[str(PARENT)] = Moved(now.cluster.now_ms - 5000, 300.0, ("b1", "b2"))
    assert loads(now) == [300.0]
    memory.moved[str(PARENT)] = Moved(now.cluster.now_ms - 500_000, 300.0, ("b1", "b2"))
    assert loads(now) == [now.settings.bundle_cost]
