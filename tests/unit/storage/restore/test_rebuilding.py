"""What is rebuilt from one log and a backup: which bundles remain of splits and merges, what comes
from the backup, what is reported as a problem, and which manifest is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.metadata import keys
from magnetar.metadata.backup import Backup
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    ClusterRecord,
    LogPosition,
    LogRange,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.names import FULL_RANGE_END
from magnetar.policies import KEPT_POLICIES
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import SealedFile
from magnetar.storage.restore.log_copies import LogFacts, TermCopy
from magnetar.storage.restore.rebuilding import (
    ManifestFact,
    RebuiltStore,
    StorageFacts,
    choose_manifest,
    rebuild,
)
from tests.unit.storage.restore.model_cluster import STORAGE_ID, WHOLE

A, B, C = (
    f"t/n/0x{low:08x}_0x{high:08x}"
    for low, high in ((0, 0x80000000), (0x80000000, FULL_RANGE_END), (0, 0x40000000))
)


def owned(epoch: int, *, epochs: tuple[int, ...] = (), incarnation: str = "b.1") -> BundleRecord:
    """A record whose term began at the start of the incarnation's only file."""
    start = LogPosition(0, FILE_HEADER_BYTES)
    closed = tuple(LogRange(incarnation, start, start) for _ in epochs)
    chain = (*closed, LogRange(incarnation, start, None))
    return BundleRecord(BundleState.OWNED, epoch, incarnation, chain=chain, epochs=(*epochs, epoch))


def facts_of(**records: BundleRecord) -> StorageFacts:
    """A log of one incarnation that holds copies of these bundles."""
    logs = LogFacts({"b.1": [SealedFile(0, 8192)]})
    bundles = {"whole": WHOLE, "a": A, "b": B, "c": C}
    logs.terms = [
        TermCopy(bundles[name], record, "b.1", (record.epoch, 0, at))
        for at, (name, record) in enumerate(records.items())
    ]
    return StorageFacts(STORAGE_ID, logs, {}, {})


def living(result: RebuiltStore) -> set[str]:
    found = {
        key.removeprefix(keys.BUNDLES): BundleRecord.decode(item)
        for key, item in result.items.items()
        if "bundles/" in key
    }
    return {name for name, record in found.items() if record.state is not BundleState.DELETED}


def test_a_parent_is_over_once_its_children_cover_it() -> None:
    result = rebuild(
        facts_of(whole=owned(5), a=owned(9, epochs=(5,)), b=owned(9, epochs=(5,))), None, 1, 1
    )
    assert living(result) == {A, B}
    assert "was split into" in result.bundles[WHOLE]
    assert NamespaceRecord.decode(result.items["namespaces/t/n"]).boundaries == (
        0,
        0x80000000,
        FULL_RANGE_END,
    )


def test_a_child_without_its_sibling_has_acknowledged_nothing() -> None:
    result = rebuild(facts_of(whole=owned(5), a=owned(9, epochs=(5,))), None, 1, 1)
    assert living(result) == {WHOLE}
    assert "split that was not finished" in result.bundles[A]


def test_parents_are_over_once_they_were_merged() -> None:
    result = rebuild(facts_of(a=owned(5), b=owned(7), whole=owned(9, epochs=(5, 7))), None, 1, 1)
    assert living(result) == {WHOLE}
    assert "was merged into" in result.bundles[A]
    assert NamespaceRecord.decode(result.items["namespaces/t/n"]).boundaries == (0, FULL_RANGE_END)


def test_a_merged_bundle_has_acknowledged_nothing_if_a_parent_went_on() -> None:
    """The merge was not finished: one parent has begun a later term, the other not yet."""
    whole, later = owned(9, epochs=(5, 7)), owned(11, epochs=(5,))
    result = rebuild(facts_of(a=later, b=owned(7), whole=whole), None, 1, 1)
    assert living(result) == {A, B}
    assert "merge that was not finished" in result.bundles[WHOLE]


def test_a_bundle_that_was_merged_and_split_again_is_what_it_became_last() -> None:
    """Also where the copies of a child that was merged with another since are gone."""
    child = "t/n/0x40000000_0xffffffff"
    facts = facts_of(whole=owned(5), c=owned(7, epochs=(5,)), a=owned(7, epochs=(5,)))
    facts.logs.terms.append(TermCopy(child, owned(9), "b.1", (9, 0, 9)))
    assert living(rebuild(facts, None, 1, 1)) == {C, child}


def test_a_bundle_of_an_earlier_incarnation_of_its_namespace_makes_room() -> None:
    result = rebuild(facts_of(whole=owned(5), a=owned(9)), None, 1, 1)
    assert living(result) == {A}
    assert "earlier incarnation" in result.bundles[WHOLE]


def backup_of(*, revision: int, **items: bytes) -> Backup:
    named = {key.replace("__", "/"): value for key, value in items.items()}
    return Backup(STORAGE_ID, 0, revision, 0, {keys.CLUSTER: b"{}", **named})


def test_a_namespace_that_was_deleted_before_the_backup_stays_deleted() -> None:
    result = rebuild(facts_of(whole=owned(5)), backup_of(revision=6), 1, 1)
    assert living(result) == set()
    assert "deleted before the backup" in result.bundles[WHOLE]


def test_a_namespace_unknown_to_the_backup_loses_nothing_until_its_policies_are_set() -> None:
    result = rebuild(facts_of(whole=owned(7)), backup_of(revision=6), 1, 1)
    assert living(result) == {WHOLE}
    assert NamespaceRecord.decode(result.items["namespaces/t/n"]).policies == KEPT_POLICIES
    assert any("t/n" in warning and "set-retention" in warning for warning in result.warnings)


def test_policies_come_from_the_backup_and_boundaries_from_the_bundles() -> None:
    namespace = NamespaceRecord((0, FULL_RANGE_END), {"p": 1})
    backup = replace(
        backup_of(revision=6), items={"namespaces/t/n": namespace.encode(), keys.CLUSTER: b"{}"}
    )
    children = {"a": owned(9, epochs=(5,)), "b": owned(9, epochs=(5,))}
    result = rebuild(facts_of(whole=owned(5), **children), backup, 1, 1)
    assert NamespaceRecord.decode(result.items["namespaces/t/n"]) == NamespaceRecord(
        (0, 0x80000000, FULL_RANGE_END), {"p": 1}
    )


def test_a_missing_file_is_a_problem_that_names_it() -> None:
    facts = facts_of(
        whole=replace(
            owned(5),
            chain=(
                LogRange("gone.1", LogPosition(3, 4096), LogPosition(4, 9000)),
                owned(5).chain[0],
            ),
            epochs=(4, 5),
        )
    )
    result = rebuild(facts, None, 1, 1)
    assert len(result.problems) == 1
    assert "logs/gone.1/00000003.log, logs/gone.1/00000004.log" in result.problems[0]


@pytest.mark.parametrize(
    ("lost", "released", "named"), [(1, False, True), (1, True, False), (None, False, False)]
)
def test_a_log_that_goes_on_in_a_file_that_is_not_there_is_a_problem(
    lost: int | None, released: bool, named: bool
) -> None:
    """For an owner that has not released its bundle before: then it was written up to its end."""
    facts = facts_of(whole=owned(5))
    if lost is not None:
        facts.logs.lost["b.1"] = lost
    if released:
        facts.logs.releases[WHOLE, 5] = LogPosition(0, 8192)
    result = rebuild(facts, None, 1, 1)
    assert len(result.problems) == int(named)
    assert not named or "logs/b.1/00000001.log" in result.problems[0]


def test_what_only_the_store_knew_comes_from_the_backup_but_not_what_must_not_come_back() -> None:
    items = {
        "tenants/t": b"t",
        "clusters/c": b"c",
        "cordons/b": b"d",
        "intents/i": b"i",
        "backup": b"b",
        "restore-number": b"r",
        "logs/b.1/00000000": b"l",
        "logs/b.1/00000007": b"l",
        keys.CLUSTER: b"{}",
    }
    result = rebuild(facts_of(), replace(backup_of(revision=1), items=items), 4, 1)
    assert set(result.items) == {
        "tenants/t",
        "clusters/c",
        "cordons/b",
        "logs/b.1/00000000",
        keys.RESTORE,
        keys.CLUSTER,
    }
    assert ClusterRecord.decode(result.items[keys.CLUSTER]) == ClusterRecord(STORAGE_ID, 4, 1)


def test_partitioned_topics_are_found_by_their_partitions() -> None:
    facts = facts_of(whole=owned(5))
    topics = {
        "p-partition-0": True,
        "p-partition-2": True,
        "q-partition-0": False,
        "r": True,
        "r-partition-0": True,
    }
    facts.logs.topics = {
        f"persistent://t/n/{name}": ((5, 0, 0), there) for name, there in topics.items()
    }
    result = rebuild(facts, None, 1, 1)
    found = {
        key: PartitionedTopicRecord.decode(value).partitions
        for key, value in result.items.items()
        if key.startswith("topics/")
    }
    assert found == {"topics/t/n/persistent/p": 3}


def manifest(generation: int, nonce: str, covered: int = 1, segments: str = "") -> ManifestFact:
    return ManifestFact(
        f"{generation}-{nonce}", generation, (1, covered), frozenset(segments.split()), ()
    )


@pytest.mark.parametrize(
    ("usable", "chosen"),
    [
        ([manifest(1, "a")], "1-a"),
        ([manifest(1, "a"), manifest(2, "a")], "2-a"),
        # the last generation may have lost its commit: what it wrote may be deleted any moment
        ([manifest(1, "a"), manifest(2, "a", segments="s")], "1-a"),
        (
            [
                manifest(1, "a", segments="s"),
                manifest(2, "a", segments="s"),
                manifest(3, "a", segments="s"),
            ],
            "3-a",
        ),
        # of two that list nothing new the one that has taken in more
        ([manifest(1, "a"), manifest(2, "b", covered=2), manifest(2, "a", covered=3)], "2-a"),
        ([manifest(1, "a"), manifest(2, "b", covered=1), manifest(2, "a", segments="s")], "2-b"),
        # nothing else is whole: it was committed, since its inputs are gone
        ([manifest(4, "a", segments="s")], "4-a"),
    ],
)
def test_the_manifest_to_point_to(usable: list[ManifestFact], chosen: str) -> None:
    assert choose_manifest(usable).object == chosen
