"""Which checkpoints, manifests and segments are given up, and the grace before they are deleted."""

from __future__ import annotations

from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    IntentRecord,
    LogPosition,
)
from magnetar.names import BundleName
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.gc import Grace
from magnetar.storage.manifest import Compacted, Manifest, SegmentReference, TopicSegments
from tests.unit.storage.gc_bundles import BUNDLES, CHILDREN, DEAD, owned

TOPIC = "persistent://t/n/x"


def test_checkpoints_before_the_one_pointed_to_go_and_a_later_one_only_after_its_term() -> None:
    bundle_name = BundleName.parse(BUNDLES[0])
    old, pointed, next_one, later = (
        names.checkpoint(bundle_name, *place) for place in ((4, 7), (5, 2), (5, 3), (6, 1))
    )
    record = BundleRecord(
        BundleState.OWNED, 5, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    assert collection.superseded_checkpoints([old, pointed, next_one, later], record) == [old]
    ended = BundleRecord(
        BundleState.OWNED, 6, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    assert collection.superseded_checkpoints([old, pointed, next_one, later], ended) == [
        old,
        next_one,
    ]
    assert collection.superseded_checkpoints([old], None) == []


def test_checkpoints_of_a_split_bundle_go_when_no_child_begins_with_them() -> None:
    parent, child = BundleName.parse(BUNDLES[0]), BundleName.parse(CHILDREN[0])
    old, pointed = names.checkpoint(parent, 4, 7), names.checkpoint(parent, 5, 2)
    deleted = BundleRecord(BundleState.DELETED, 5)
    assert collection.superseded_checkpoints([old, pointed], deleted, {pointed}) == [old]
    assert collection.superseded_checkpoints([old, pointed], deleted) == [old, pointed]
    inherited = BundleRecord(
        BundleState.OWNED, 8, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    on_its_way, of_another_life = names.checkpoint(child, 8, 1), names.checkpoint(child, 3, 1)
    assert pointed > on_its_way, "names of two bundles say nothing about which is newer"
    assert collection.superseded_checkpoints([on_its_way, of_another_life], inherited) == [
        of_another_life
    ]


def test_manifests_up_to_the_current_generation_go_but_for_later_ones() -> None:
    bundle_name = BundleName.parse(BUNDLES[0])
    old, lost, pointed, coming = (
        names.manifest(bundle_name, *place) for place in ((1, 1), (3, 1), (3, 2), (4, 1))
    )
    assert collection.superseded_manifests([old, lost, pointed, coming], pointed, 3) == [old, lost]


def test_manifests_of_a_deleted_bundle_stay_while_one_of_them_may_become_current() -> None:
    """It has a pointer, or an intent, or a split of its namespace may make it a child; and while
    it has no record nobody knows."""
    bundle_name, other = BundleName.parse(BUNDLES[0]), BundleName.parse("t/m/0x00000000_0xffffffff")
    listed = {
        str(name): [names.manifest(name, 2, 1), names.manifest(name, 1, 1)]
        for name in (bundle_name, other)
    }
    records = {BUNDLES[0]: DEAD, str(other): owned()}
    all_of_it = sorted(listed[BUNDLES[0]])
    intent = IntentRecord("compaction", BUNDLES[0], TOPIC, "j", "r", 0)
    splitting = BundleRecord(BundleState.SPLITTING, 9)
    assert collection.manifests_of_the_dead(listed, [], records, ()) == all_of_it
    assert collection.manifests_of_the_dead(listed, [intent], records, ()) == []
    assert collection.manifests_of_the_dead(listed, [], records, (BUNDLES[0],)) == []
    assert (
        collection.manifests_of_the_dead(listed, [], {**records, BUNDLES[1]: splitting}, ()) == []
    )
    assert (
        collection.manifests_of_the_dead(listed, [], {**records, str(other): splitting}, ())
        == all_of_it
    )
    assert collection.manifests_of_the_dead(listed, [], {str(other): owned()}, ()) == []


def test_a_segment_goes_when_no_manifest_names_it_and_no_intent_can() -> None:
    base = f"segments/{BUNDLES[0]}"
    first, compacted, coming, orphan = (
        f"{base}/{stem}.seg"
        for stem in ("rewrite-1-0", "compact-2-0", "compact-3-0", "rewrite-4-0")
    )

    def reference(name: str) -> SegmentReference:
        return SegmentReference(name, 1, 1, 1, (3, 0), (3, 0))

    topic = TopicSegments((reference(first),), Compacted(1, (3, 0), (reference(compacted),)))
    manifest = Manifest(BUNDLES[0], 1, topics={TOPIC: topic})
    found = collection.orphaned_segments(
        [first, compacted, coming, orphan], ["compact-3"], [manifest]
    )
    assert found == [orphan]


def test_grace_counts_from_when_a_thing_was_given_up_and_forgets_what_is_needed_again() -> None:
    grace = Grace(100)
    assert grace.over(["x"], 1000) == []
    assert grace.over(["x", "y"], 1099) == []
    assert grace.over(["x", "y"], 1100) == ["x"]
    assert grace.over(["y"], 1150) == []
    assert grace.over(["x", "y"], 1199) == ["y"]
    assert Grace(0).over(["x"], 5) == ["x"]
