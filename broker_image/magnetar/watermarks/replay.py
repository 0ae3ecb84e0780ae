"""Watermarks of one topic, as a checkpoint and the log have them.

Owns: the way of a timeline into a checkpoint and back, and its replay. Imports: errors, siblings.
Pure.
Invariants: replaying what a checkpoint holds already changes nothing; a timeline is trimmed where
the record that trims the topic lies, so live and in replay to the same snapshot; in a checkpoint the
last horizon is the base, those before it are bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from magnetar.errors import CorruptData
from magnetar.watermarks.bounds import Bound
from magnetar.watermarks.codec import Decoder, encode
from magnetar.watermarks.records import START, Snapshot
from magnetar.watermarks.timeline import EMPTY, Anchored, Timeline, TimelineState


def controls_of(timeline: Timeline) -> Iterable[bytes]:
    """For a checkpoint: what is durable now, encoded as it is consumed."""
    return _encoded(timeline.to_state())


def _encoded(state: TimelineState) -> Iterator[bytes]:
    for anchor, least_ms in state.bounds:
        yield from encode(Anchored(anchor, Snapshot(resting_ms=least_ms)), horizon=True)
    if state.base.anchor != START:
        yield from encode(state.base, horizon=True)
    for anchored in state.records:
        yield from encode(anchored)


class TopicWatermarks:
    """A timeline while the log is replayed."""

    def __init__(self, controls: Iterable[bytes] = ()) -> None:
        """Begins with what a checkpoint holds. Raises CorruptData."""
        horizons, records, decoder = [EMPTY.base], list[Anchored](), Decoder()
        for control in controls:
            found = decoder.feed(control)
            if found is not None and found[1] and not records:
                horizons.append(found[0])
            elif found is not None:
                records.append(found[0])
        bounds = tuple(
            Bound(anchor, snapshot.resting_ms)
            for anchor, snapshot in horizons[1:-1]
            if isinstance(snapshot, Snapshot)
        )
        self.timeline = Timeline(TimelineState(horizons[-1], tuple(records), bounds))
        self._decoder = Decoder(midway=True)

    def apply(self, control: bytes) -> None:
        """A control record of the log. Raises CorruptData."""
        found = self._decoder.feed(control)
        if found is None:
            return
        anchored, horizon = found
        if not horizon:
            self.timeline.apply(*anchored)
            self.timeline.thin()
        elif isinstance(anchored.record, Snapshot):
            self.timeline.trim(anchored)
        else:
            raise CorruptData(f"the horizon at {tuple(anchored.anchor)} is no snapshot")
