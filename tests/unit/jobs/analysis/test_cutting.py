"""Cut points: inside, in order, and even on the load that is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.names import BundleName
from magnetar.ownership.splits import CHILDREN_MAX, children_of_split
from magnetar_jobs.analysis.cutting import cut

RANGE = st.tuples(st.integers(0, 2**32 - 3), st.integers(2, 2**32)).map(
    lambda found: (found[0], min(found[0] + found[1], 2**32 - 1))
)


def name(low: int, high: int) -> BundleName:
    return BundleName.parse(f"public/default/0x{low:08x}_0x{high:08x}")


@given(RANGE, st.data(), st.floats(0, 1e6), st.floats(1, 1e6))
def test_cuts_are_splits_that_owners_accept(
    ends: tuple[int, int], data: st.DataObject, rest: float, part_max: float
) -> None:
    bundle = name(*ends)
    topics = data.draw(
        st.lists(
            st.tuples(
                st.integers(max(0, ends[0] - 5), min(2**32 - 1, ends[1] + 5)), st.floats(0, 1e6)
            ),
            max_size=20,
        )
    )
    found = cut(bundle, topics, rest, part_max)
    assert len(found.parts) == len(found.boundaries) + 1 <= CHILDREN_MAX
    if not found.boundaries:
        return
    children = children_of_split(bundle, found.boundaries)
    inside = [(at, load) for at, load in topics if bundle.contains_hash(at)]
    for child, part in zip(children, found.parts, strict=True):
        known = sum(load for at, load in inside if child.contains_hash(at))
        assert known <= part * (1 + 1e-6) + 1e-6
    heaviest = max((load for at, load in _merged(bundle, inside)), default=0.0)
    if len(found.parts) < CHILDREN_MAX:
        assert (
            found.largest
            <= max(part_max, heaviest + rest / min(256, ends[1] - ends[0])) * 1.001 + 1e-6
        )


def _merged(bundle: BundleName, topics: list[tuple[int, float]]) -> list[tuple[int, float]]:
    sums: dict[int, float] = {}
    for at, load in topics:
        place = min(at, bundle.high - 1)
        sums[place] = sums.get(place, 0.0) + load
    return list(sums.items())


def test_a_hot_topic_gets_a_part_of_its_own() -> None:
    bundle = name(0, 0x80000000)
    found = cut(bundle, [(0x1000, 1.0), (0x4000, 50.0), (0x4001, 1.0)], 0.0, 10.0)
    children = children_of_split(bundle, found.boundaries)
    [alone] = [child for child in children if child.contains_hash(0x4000)]
    assert not alone.contains_hash(0x1000)
    assert not alone.contains_hash(0x4001)


def test_a_cool_bundle_is_not_cut() -> None:
    assert cut(name(0, 100), [(5, 1.0), (50, 2.0)], 1.0, 10.0).boundaries == ()


def test_load_without_names_is_cut_evenly() -> None:
    found = cut(name(0, 0x100000), [], 100.0, 26.0)
    assert [round(part) for part in found.parts] == [25, 25, 25, 25]
