"""Which log files are given up, case by case: those of bundles that were split, merged, deleted or
assigned or whose manifest cannot be read, and those of coordinators."""

from __future__ import annotations

import pytest

from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CoordinatorRecord,
    CoordinatorState,
    LogFileRecord,
    LogPosition,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.ownership import rules
from magnetar.storage import gc as collection
from magnetar.storage.gc import BundleFacts, dead_log_files, destinations
from magnetar.storage.manifest import LevelZero, Manifest
from tests.unit.storage.gc_bundles import BUNDLES, CHILDREN, DEAD, owned

FILE = ("a.1", 0)
SEALED = {FILE: LogFileRecord(1000, {BUNDLES[0]: (5,)})}


def passed(name: str) -> BundleFacts:
    return BundleFacts(owned(), Manifest(name, 3, covered=(9, 0)))


def test_a_split_bundle_has_passed_when_all_its_children_have() -> None:
    """And not while one of them lists the file, or is not known."""
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 2), heirs=CHILDREN
    )
    first, second = (passed(name) for name in CHILDREN)
    facts = {BUNDLES[0]: parent, CHILDREN[0]: first, CHILDREN[1]: second}
    assert dead_log_files(SEALED, facts) == [FILE]
    listing = Manifest(CHILDREN[1], 3, level0=(LevelZero("a.1", 0, 1000, (5,)),), covered=(9, 0))
    assert dead_log_files(SEALED, {**facts, CHILDREN[1]: BundleFacts(owned(), listing)}) == []
    assert dead_log_files(SEALED, {BUNDLES[0]: parent, CHILDREN[0]: first}) == []


def test_a_deleted_bundle_has_passed_and_an_unknown_one_has_not() -> None:
    gone = BundleFacts(None, Manifest(BUNDLES[0], 0), deleted=True)
    assert dead_log_files(SEALED, {BUNDLES[0]: gone}) == [FILE]
    assert dead_log_files(SEALED, {}) == []
    assert dead_log_files(SEALED, {BUNDLES[0]: BundleFacts(None, Manifest(BUNDLES[0], 0))}) == []


def test_a_bundle_whose_manifest_cannot_be_read_keeps_what_it_may_list_and_what_it_replays_and_nothing_else() -> (
    None
):
    """It may list whatever it wrote in; and its chain counts as that of any other bundle does,
    also where it wrote no entries."""
    replayed, other = ("b.1", 0), ("c.1", 0)
    files = {
        **SEALED,
        replayed: LogFileRecord(1000, {BUNDLES[1]: (9,)}),
        other: LogFileRecord(1000, {BUNDLES[1]: (9,)}),
    }
    second = BundleFacts(BundleRecord(BundleState.FREE, 9), Manifest(BUNDLES[1], 3, covered=(9, 1)))
    assert dead_log_files(files, {BUNDLES[0]: BundleFacts(owned(), None), BUNDLES[1]: second}) == [
        other
    ]
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 0), heirs=CHILDREN
    )
    split = {
        BUNDLES[0]: parent,
        CHILDREN[0]: passed(CHILDREN[0]),
        CHILDREN[1]: BundleFacts(owned(), None),
    }
    assert dead_log_files(SEALED, split) == []


@pytest.mark.parametrize(
    ("record", "current", "others", "over"),
    [
        pytest.param(DEAD, None, {}, True, id="retired with its namespace"),
        pytest.param(None, None, {}, True, id="and forgotten since"),
        pytest.param(
            DEAD,
            BUNDLES,
            {},
            True,
            id="its namespace is there again, and nobody has asked for the bundle",
        ),
        pytest.param(None, BUNDLES, {}, False, id="nobody has ever asked for it"),
        pytest.param(owned(), BUNDLES, {}, False, id="it lives"),
        pytest.param(
            owned(), None, {}, False, id="its namespace is gone, and it is not retired yet"
        ),
        pytest.param(
            DEAD,
            (*CHILDREN, BUNDLES[1]),
            {},
            True,
            id="its namespace is there again, divided as it was: the children of a split have records",
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0xffffffff",),
            {},
            True,
            id="its namespace is there again with other boundaries",
        ),
        pytest.param(
            None, ("t/n/0x00000000_0xffffffff",), {}, True, id="the same, and forgotten since"
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0xffffffff",),
            {"t/n/0x00000000_0xffffffff": owned()},
            False,
            id="it was merged",
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0x40000000", "t/n/0x40000000_0xffffffff"),
            {"t/n/0x40000000_0xffffffff": owned(), CHILDREN[0]: DEAD},
            False,
            id="it was split, and one of its children was merged with a neighbour",
        ),
        pytest.param(
            DEAD,
            None,
            {CHILDREN[0]: owned()},
            False,
            id="it was split, and a child is not retired yet",
        ),
        pytest.param(
            DEAD,
            BUNDLES,
            {CHILDREN[0]: owned()},
            False,
            id="the record of its namespace was lost, and written with old boundaries",
        ),
        pytest.param(
            DEAD,
            None,
            {CHILDREN[0]: DEAD, CHILDREN[1]: DEAD},
            True,
            id="it was split, and all are retired",
        ),
        pytest.param(
            DEAD,
            None,
            {BUNDLES[1]: owned(), CHILDREN[0].replace("t/n", "t/m"): owned()},
            True,
            id="others live",
        ),
    ],
)
def test_a_bundle_is_over_when_nobody_can_ask_for_what_it_wrote(
    record: BundleRecord | None,
    current: tuple[str, ...] | None,
    others: dict[str, BundleRecord],
    over: bool,
) -> None:
    """And a file that it wrote goes, unless a late commit has listed it."""
    bundle = BundleName.parse(BUNDLES[0])
    there = tuple(map(BundleName.parse, current)) if current is not None else None
    records = {**others, **({BUNDLES[0]: record} if record is not None else {})}
    assert collection.is_over(bundle, record, there, records) is over
    if over:
        listing = Manifest(BUNDLES[0], 1, level0=(LevelZero("a.1", 0, 1000, (5,)),))
        assert dead_log_files(
            SEALED, {BUNDLES[0]: BundleFacts(record, Manifest(BUNDLES[0], 0), deleted=True)}
        ) == [FILE]
        assert (
            dead_log_files(SEALED, {BUNDLES[0]: BundleFacts(record, listing, deleted=True)}) == []
        )


def test_a_child_without_a_record_has_not_passed() -> None:
    """The facts were read at different moments: whatever its manifest says, nobody knows its
    chain."""
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 0), heirs=CHILDREN
    )
    second = BundleFacts(None, Manifest(CHILDREN[1], 3, covered=(9, 0)))
    assert (
        dead_log_files(
            SEALED, {BUNDLES[0]: parent, CHILDREN[0]: passed(CHILDREN[0]), CHILDREN[1]: second}
        )
        == []
    )


def test_a_parent_whose_record_is_gone_has_passed_with_its_children() -> None:
    """A key that names it was written late."""
    parent = BundleFacts(None, Manifest(BUNDLES[0], 0), heirs=CHILDREN)
    facts = {BUNDLES[0]: parent, **{name: passed(name) for name in CHILDREN}}
    assert dead_log_files(SEALED, facts) == [FILE]


def test_heirs_are_the_living_bundles_that_share_its_hashes() -> None:
    """However it was split and merged since, and its parts with others."""
    beyond = "t/n/0x40000000_0xc0000000"
    records = {
        BUNDLES[0]: DEAD,
        CHILDREN[0]: owned(),
        CHILDREN[1]: DEAD,
        beyond: owned(),
        "t/n/0xc0000000_0xffffffff": owned(),
        CHILDREN[0].replace("t/n", "t/m"): owned(),
    }
    assert collection.heirs_of(BundleName.parse(BUNDLES[0]), records) == (CHILDREN[0], beyond)
    assert collection.heirs_of(BundleName.parse(CHILDREN[1]), records) == (beyond,)


def test_what_a_coordinator_replays_is_kept() -> None:
    """Its log names no bundle: without its chain every file of it would be dead. What lies
    before the chain is."""
    files = {("tx-coordinator-0.a", number): LogFileRecord(5000, {}) for number in range(3)}
    chain = (LogRange("tx-coordinator-0.a", LogPosition(1, 4096), None),)
    record = CoordinatorRecord("tx-coordinator-0.b", 2, CoordinatorState.RECOVERING, chain=chain)
    assert dead_log_files(files, {}, coordinators=[record]) == [("tx-coordinator-0.a", 0)]
    assert dead_log_files(files, {}) == sorted(files)


def test_files_of_the_broker_that_a_bundle_is_assigned_to_stay() -> None:
    """Though it is dead, its change to Owned may be on its way, with a start in any file of its
    log: that would have to be recovered."""
    facts = {
        BUNDLES[0]: passed(BUNDLES[0]),
        BUNDLES[1]: BundleFacts(rules.assign(None, "a.1", "test"), Manifest(BUNDLES[1], 0)),
    }
    assert destinations(facts.values()) == {"a.1"}
    assert dead_log_files(SEALED, facts, beginning=destinations(facts.values())) == []
    assert dead_log_files(SEALED, facts, beginning={"c.1"}) == [FILE]
