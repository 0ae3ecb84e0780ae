"""What an owner may judge of a manifest."""

from __future__ import annotations

from magnetar.broker.upkeep.compaction_view import is_of_later_term
from magnetar.storage.manifest import LevelZero, Manifest, SegmentReference, TopicSegments
from magnetar.topics.ledger_ids import ledger_of

BUNDLE = "t/n/0x00000000_0x80000000"


def segment(epoch: int) -> SegmentReference:
    ledger = ledger_of(epoch, 0)
    return SegmentReference(f"segments/{BUNDLE}/1.seg", 10, 1, 9, (ledger, 0), (ledger, 0))


def test_what_a_later_term_wrote_is_seen_though_the_manifest_covers_no_more_than_an_older_one() -> (
    None
):
    """As a merged one does: in what it covers, in its files, or once these were rewritten."""
    covering = Manifest(BUNDLE, 3, covered=(9, 0))
    listing = Manifest(BUNDLE, 3, (LevelZero("a.1", 0, 9, (7, 9)),), covered=(5, 0))
    rewritten = Manifest(
        BUNDLE, 3, topics={"x": TopicSegments((segment(7), segment(9)))}, covered=(5, 0)
    )
    for manifest in (covering, listing, rewritten):
        assert is_of_later_term(manifest, 8)
        assert not is_of_later_term(manifest, 9)
    assert not is_of_later_term(Manifest(BUNDLE, 0), 1)
