"""Brokers and clients that break one promise of watermarks.

Owns: one small patch per rule, and `run(bug, seed)`, the scenario of watermarks on brokers patched
so (`none`: unpatched, the control). Imports: the scenario, the patched parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from magnetar.broker.topics import topic_host
from magnetar.broker.transactions import committing
from magnetar.broker.watermarks.followed import Followed
from magnetar.broker.watermarks.topic_watermarks import ServedWatermarks
from magnetar.client.sending import PartitionProducer
from magnetar.transactions.ids import TxnId
from magnetar.watermarks import replay
from magnetar.watermarks.records import Place, Snapshot
from magnetar.watermarks.timeline import Anchored, Timeline
from tests.simulation.scenarios import watermarks
from tests.simulation.scenarios.planted import planting

Patch = pytest.MonkeyPatch
FAULTS = watermarks.FAULTS.but(
    crash_every_s=2.0, reset_every_s=1.0, power_loss_every_s=6.0, down_s=(0.1, 1.0)
)
"""Crashes and broken connections often, and soon over."""


def the_cursor_counts_before_it_is_durable(patch: Patch) -> None:
    """The watermark follows acknowledgements that a crash undoes."""

    def hasty(found: Followed) -> None:
        found._advance_all(found._mark_delete)

    patch.setattr(Followed, "look", hasty)


def no_hold(patch: Patch) -> None:
    """What is sent in an open transaction does not bound the watermark."""

    def nothing(_self: ServedWatermarks, _txn: TxnId, _producer: str) -> None:
        return

    patch.setattr(ServedWatermarks, "sends_in", nothing)


def the_hold_ends_before_the_marker(patch: Patch) -> None:
    """A transaction's end lies at the entry before its marker."""
    write = committing._write

    def early(topic: topic_host.TopicHost, change: committing.Commit | committing.Abort) -> None:
        if isinstance(change, committing.Commit) and topic.watermarks is not None and change.count:
            core = topic.core
            core._next_entry -= change.count
            topic.watermarks.ended(change.txn, committed=True)
            core._next_entry += change.count
        write(topic, change)

    patch.setattr(committing, "_write", early)


def no_snapshot_before_trimming(patch: Patch) -> None:
    """Control records go with the entries that they are behind."""
    horizon = Timeline.horizon

    def empty(timeline: Timeline, place: Place) -> Anchored | None:
        found = horizon(timeline, place)
        return None if found is None else Anchored(found.anchor, Snapshot())

    patch.setattr(Timeline, "horizon", empty)


def checkpoint_without_watermarks(patch: Patch) -> None:
    """What is in force is not in the checkpoint."""
    patch.setattr(topic_host, "controls_of", lambda _timeline: ())


def assertions_are_not_replayed(patch: Patch) -> None:
    """A new owner knows what the checkpoint says, not what the log says."""

    def nothing(_self: replay.TopicWatermarks, _control: bytes) -> None:
        return

    patch.setattr(replay.TopicWatermarks, "apply", nothing)


def an_assertion_overtakes_what_was_sent(patch: Patch) -> None:
    """A producer asserts without waiting for receipts: what it sends again comes behind."""

    async def at_once(_self: PartitionProducer) -> None:
        return

    patch.setattr(PartitionProducer, "settle", at_once)


def idle_is_decided_on_read(patch: Patch) -> None:
    """Where a watermark is read, who has been silent for the timeout does not count; the log does
    not say so. A subscription that is behind gets his messages later than the watermark."""
    advance = Followed.advance

    def forgetful(found: Followed, durable_to: Place | None = None) -> bool:
        marks = found.subscription.topic.watermarks
        assert isinstance(marks, ServedWatermarks)
        policy = marks._idle
        since_ms = marks._now_ms - policy.timeout_ms if policy.timeout_ms else -1
        silent = [name for name, at_ms in policy._seen_ms.items() if at_ms <= since_ms]
        found.generator._standing._leave(silent)
        return advance(found, durable_to)

    def unwritten(marks: ServedWatermarks, due: Iterable[str]) -> None:
        for producer in due:  # it stays silent until it asserts again
            marks._idle._seen_ms[producer] = -(1 << 60)
        marks._advance()

    patch.setattr(Followed, "advance", forgetful)
    patch.setattr(ServedWatermarks, "_mark_idle", unwritten)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        the_cursor_counts_before_it_is_durable,
        no_hold,
        the_hold_ends_before_the_marker,
        no_snapshot_before_trimming,
        checkpoint_without_watermarks,
        assertions_are_not_replayed,
        an_assertion_overtakes_what_was_sent,
        idle_is_decided_on_read,
    )
}


BY_CRASHES = (
    "the_cursor_counts_before_it_is_durable",
    "the_hold_ends_before_the_marker",
    "an_assertion_overtakes_what_was_sent",
)
"""Bugs that show where much is broken off; the others show as soon with the usual faults."""


BY_RESTS = "idle_is_decided_on_read"
"""Its control is `watermarks:resting`: the same seeds with the decision in the log."""


def run(bug: str, seed: int) -> dict[str, int]:
    """The scenario of watermarks on a cluster with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        if bug == BY_RESTS:
            return watermarks.resting(seed)
        faults = FAULTS if bug in BY_CRASHES else watermarks.FAULTS
        return dict(watermarks.run_counted(seed, faults)[1].counts)
