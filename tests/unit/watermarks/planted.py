"""Planted bugs of watermarks.

Owns: one small patch per rule of the package, or of what a host owes it, and the property that must
catch each by itself. Imports: the package, world. A bug is caught if a history fails under the
check of that property alone; the other checks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from magnetar.watermarks import records
from magnetar.watermarks.generator import Effect, Generator, Watermark
from magnetar.watermarks.minimum import Minimum
from magnetar.watermarks.records import Anchor, Assertion, Hold, Idle, Place, Record, Snapshot
from magnetar.watermarks.standing import Standing
from magnetar.watermarks.timeline import Anchored, Timeline
from tests.unit.watermarks.world import PRODUCERS, World

Patch = pytest.MonkeyPatch


def _record(patch: Patch, change: Callable[[Record], Record | None]) -> None:
    """Standings apply what `change` makes of a record, or nothing."""
    apply = Standing.apply

    def changed(standing: Standing, record: Record) -> None:
        made = change(record)
        if made is not None:
            apply(standing, made)

    patch.setattr(Standing, "apply", changed)


def _snapshots(patch: Patch, change: Callable[[Snapshot], Snapshot]) -> None:
    make = Standing.to_snapshot
    patch.setattr(Standing, "to_snapshot", lambda standing: change(make(standing)))


# --- soundness ------------------------------------------------------------------------------------


def no_hold(patch: Patch) -> None:
    _record(patch, lambda record: None if isinstance(record, Hold) else record)


def a_hold_without_a_value_is_none(patch: Patch) -> None:
    patch.setattr(Standing, "blocked", False)
    hold = Standing._hold

    def only_with_a_value(standing: Standing, txn: records.TxnId, producer: str) -> None:
        if standing.asserted_ms(producer) is not None:
            hold(standing, txn, producer)

    patch.setattr(Standing, "_hold", only_with_a_value)


def an_idle_producer_frees_its_transactions(patch: Patch) -> None:
    """Those without a value, though it may have sent in them after it had asserted."""
    patch.setattr(Standing, "_keep_blocks", lambda standing, name: standing._blocking.pop(name))


def a_hold_follows_its_producer(patch: Patch) -> None:
    """The bound is what the producer has asserted since, not W0."""

    def exact(standing: Standing) -> int | None:
        least = standing._producers.least()
        return standing._resting_ms if least is None else least[0]

    patch.setattr(Standing, "exact_ms", property(exact))


def a_hold_ends_at_the_markers_first_entry(patch: Patch) -> None:
    """At m within the marker the messages behind m are still to come. (The anchor stays in order.)"""
    after = Timeline.run

    def early(timeline: Timeline, sequence: int, place: Place, at_most: int) -> list[Record]:
        found = after(timeline, sequence, place, at_most)
        start = sequence - timeline.first + len(found)
        anchors, ahead = timeline._anchors, timeline._records
        while start < len(ahead) and isinstance(ahead[start], records.End):
            if anchors[start][:1] != place[:1] or anchors[start][1] > place[1] + 1:
                break
            found.append(ahead[start])
            start += 1
        return found

    patch.setattr(Timeline, "run", early)


def assertions_in_transactions_count_at_once(patch: Patch) -> None:
    def plain(record: Record) -> Record:
        return replace(record, txn=None) if isinstance(record, Assertion | Idle) else record

    _record(patch, plain)


def aborted_assertions_count(patch: Patch) -> None:
    def commit(record: Record) -> Record:
        return replace(record, committed=True) if isinstance(record, records.End) else record

    _record(patch, commit)


def snapshots_have_no_holds(patch: Patch) -> None:
    _snapshots(patch, lambda snapshot: replace(snapshot, holds=()))


def trimming_without_a_snapshot(patch: Patch) -> None:
    make = Timeline.horizon

    def nothing(timeline: Timeline, place: Place) -> Anchored | None:
        found = make(timeline, place)
        return None if found is None else Anchored(found.anchor, Snapshot())

    patch.setattr(Timeline, "horizon", nothing)


def reads_past_the_mark_delete(patch: Patch) -> None:
    run = Timeline.run
    far = (1 << 62, 0)
    patch.setattr(Timeline, "run", lambda self, start, _place, most: run(self, start, far, most))


def acknowledgements_count_before_they_are_written(patch: Patch) -> None:
    """A recovery delivers again what they covered."""
    acknowledge = World.acknowledge

    def hasty(world: World, start: int, end: int) -> None:
        acknowledge(world, start, end)
        world.took(world.generator.advance(world.cursor.mark_delete_position))

    patch.setattr(World, "acknowledge", hasty)


def individual_acknowledgements_count(patch: Patch) -> None:
    """The watermark of the last acknowledged entry, not of the mark-delete."""
    write = World._write_acknowledgements

    def beyond(world: World, one: int, other: int) -> None:
        write(world, one, other)
        end = world.cursor.acknowledged_end
        if end > world.cursor.mark_delete:
            world.took(world.generator.advance(world.ledgers.position(end - 1)))

    patch.setattr(World, "_write_acknowledgements", beyond)


def a_seek_back_keeps_the_watermark(patch: Patch) -> None:
    def forward(generator: Generator, mark_delete: Place) -> Effect | None:
        generator._mark_delete = mark_delete
        generator._standing, generator._next = generator._timeline.standing_at(mark_delete)
        return generator._settled()

    patch.setattr(Generator, "seek", forward)


def idle_is_decided_on_read(patch: Patch) -> None:
    """The subscription leaves out who was silent for long, and the log does not say so."""
    apply = Standing.apply
    silent: dict[int, dict[str, int]] = {}

    def forgetful(standing: Standing, record: Record) -> None:
        apply(standing, record)
        ages = silent.setdefault(id(standing), {})
        for name in PRODUCERS:
            ages[name] = ages.get(name, 0) + 1
        if isinstance(record, Assertion):
            ages[record.producer] = 0
        for name, age in ages.items():
            if age > 6:
                standing._leave((name,))

    patch.setattr(Standing, "apply", forgetful)


def a_lower_assertion_is_ignored(patch: Patch) -> None:
    """A producer that returns with less is taken to keep its former promise."""
    put = Minimum.set

    def upwards(self: Minimum[str], key: str, value: int) -> None:
        put(self, key, max(value, self.get(key) or 0))

    patch.setattr(Minimum, "set", upwards)


# --- exactness ------------------------------------------------------------------------------------


def all_idle_is_the_end_of_time(patch: Patch) -> None:
    exact = Standing.exact_ms.fget
    assert exact is not None

    def endless(standing: Standing) -> int | None:
        return exact(standing) if standing.active_count else records.EVENT_MS_MAX

    patch.setattr(Standing, "exact_ms", property(endless))


def a_regress_is_delivered(patch: Patch) -> None:
    def settled(generator: Generator) -> Watermark | None:
        exact = generator._standing.exact_ms
        if exact is None or exact == generator._delivered_ms:
            return None
        generator._delivered_ms = exact
        return Watermark(exact)

    patch.setattr(Generator, "_settled", settled)


def stale_values_stay_in_the_heap(patch: Patch) -> None:
    patch.setattr(Minimum, "least", lambda self: self._heap[0] if self._values else None)


def snapshots_have_no_open_assertions(patch: Patch) -> None:
    _snapshots(patch, lambda snapshot: replace(snapshot, pending=()))


def a_turn_delivers_before_it_has_caught_up(patch: Patch) -> None:
    patch.setattr(Generator, "behind", False)


def replayed_records_count_again(patch: Patch) -> None:
    """A record that the checkpoint holds is applied once more."""
    apply = Timeline.apply

    def again(timeline: Timeline, anchor: Anchor, record: Record) -> bool:
        if not apply(timeline, anchor, record):
            timeline.head.apply(record)
        return True

    patch.setattr(Timeline, "apply", again)


# --- liveness -------------------------------------------------------------------------------------


def an_abort_lifts_no_hold(patch: Patch) -> None:
    def kept(record: Record) -> Record | None:
        aborted = isinstance(record, records.End) and not record.committed
        return None if aborted else record

    _record(patch, kept)


def idle_producers_count(patch: Patch) -> None:
    _record(patch, lambda record: None if isinstance(record, Idle) else record)


def commits_apply_no_assertion(patch: Patch) -> None:
    def dropped(record: Record) -> Record | None:
        return None if isinstance(record, Assertion) and record.txn is not None else record

    _record(patch, dropped)


def waits_for_an_acknowledgement(patch: Patch) -> None:
    """What is asserted behind the last acknowledged entry waits for the next one."""
    advance = Generator.advance

    def lazy(
        generator: Generator, mark_delete: Place | None = None, at_most: int = 100
    ) -> Effect | None:
        if mark_delete is None or mark_delete <= generator.mark_delete:
            return None
        return advance(generator, mark_delete, max(at_most, 100))

    patch.setattr(Generator, "advance", lazy)


Bug = Callable[[Patch], None]
BUGS: Mapping[str, tuple[Bug, ...]] = {
    "invariant 7": (
        no_hold,
        a_hold_without_a_value_is_none,
        a_hold_follows_its_producer,
        a_hold_ends_at_the_markers_first_entry,
        assertions_in_transactions_count_at_once,
        aborted_assertions_count,
        snapshots_have_no_holds,
        trimming_without_a_snapshot,
        reads_past_the_mark_delete,
        acknowledgements_count_before_they_are_written,
        individual_acknowledgements_count,
        a_seek_back_keeps_the_watermark,
        idle_is_decided_on_read,
        a_lower_assertion_is_ignored,
    ),
    "exact": (
        an_idle_producer_frees_its_transactions,
        all_idle_is_the_end_of_time,
        a_regress_is_delivered,
        stale_values_stay_in_the_heap,
        a_turn_delivers_before_it_has_caught_up,
    ),
    "recovery": (snapshots_have_no_open_assertions, replayed_records_count_again),
    "liveness": (
        an_abort_lifts_no_hold,
        idle_producers_count,
        commits_apply_no_assertion,
        waits_for_an_acknowledgement,
    ),
}
"""By the property that catches them."""
