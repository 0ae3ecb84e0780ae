"""What a compaction's commit compares."""

from __future__ import annotations

from magnetar.names import BundleName, TopicName
from magnetar.storage.manifest import Compacted, Manifest, TopicSegments
from magnetar_jobs.commit import edit_of
from magnetar_jobs.inputs import BEFORE_ALL
from magnetar_jobs.planning import CompactionPlan

BUNDLE = BundleName.parse("a/b/0x00000000_0x40000000")
TOPIC = TopicName.parse("persistent://a/b/c")
COMPACTED = Compacted(1, (3, 9), ())


def test_a_bundle_that_was_split_under_the_job_is_planned_again() -> None:
    """Its manifest is gone and would begin anew, though nothing that the plan reads was listed in it; a later one of the same bundle will do."""
    plan = CompactionPlan(BUNDLE, TOPIC, (), COMPACTED.horizon, True, 0, BEFORE_ALL, None, manifest_generation=4)
    edit = edit_of(plan, COMPACTED, "compact-1")
    assert edit(Manifest(str(BUNDLE), 0)) is None
    for generation in (4, 5):
        edited = edit(Manifest(str(BUNDLE), generation))
        assert edited is not None
        assert edited.topic(str(TOPIC)) == TopicSegments(compacted=COMPACTED)
