"""Event-time watermarks of partitions, as storage has them.

Owns: `Steps`, the watermark of a partition by position, and `timelines_of`, which reads the control
records of topics from their bundle's checkpoint and the log since. Imports: metadata records,
storage formats, watermarks, planning, sealed_logs. Invariants: a step depends on control records behind its
entry and those before only; a watermark never goes back along a partition; only sealed files are
read, in the order in which they were written and up to the first that is not sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName
from magnetar.storage.checkpoint import read_checkpoint
from magnetar.storage.log.format import TopicOperation, TopicRecord
from magnetar.storage.log.watermark_format import WatermarkRecord
from magnetar.storage.volumes.volume import Volume
from magnetar.watermarks.records import Snapshot
from magnetar.watermarks.replay import TopicWatermarks
from magnetar.watermarks.standing import Standing
from magnetar.watermarks.timeline import Timeline
from magnetar_jobs.inputs import Position
from magnetar_jobs.planning import unless_collected
from magnetar_jobs.sealed_logs import SealedChain


@dataclass(frozen=True, slots=True)
class Steps:
    """`start_ms` holds before the first of `places`, `values_ms[i]` from `places[i]` on. None: there
    is no watermark yet."""

    start_ms: int | None = None
    places: tuple[Position, ...] = ()
    values_ms: tuple[int, ...] = ()

    @property
    def end_ms(self) -> int | None:
        return self.values_ms[-1] if self.values_ms else self.start_ms

    def at(self, place: Position) -> int | None:
        """The watermark behind an entry."""
        number = bisect_right(self.places, place)
        return self.values_ms[number - 1] if number else self.start_ms

    def capped(self, others: Iterable[int | None]) -> Steps:
        """The minimum of this partition's watermark and `others`, which stand still."""
        found = list(others)
        if any(value is None for value in found):
            return Steps()
        cap = min((value for value in found if value is not None), default=None)
        if cap is None:
            return self
        start = self.start_ms if self.start_ms is None else min(self.start_ms, cap)
        return Steps(start, self.places, tuple(min(value, cap) for value in self.values_ms))


def steps_of(timeline: Timeline, after: Position, until: Position) -> Steps:
    """The watermark of a topic behind `after`, up to `until`."""
    base, records, _ = timeline.to_state()
    assert isinstance(base.record, Snapshot)
    standing = Standing(base.record)
    value = standing.exact_ms if base.anchor.place <= until else None
    start, steps = (value if base.anchor.place <= after else None), dict[Position, int]()
    if value is not None and base.anchor.place > after:
        steps[base.anchor.place] = value
    for anchor, record in records:
        if anchor.place > until:
            break
        standing.apply(record)
        exact = standing.exact_ms
        if exact is None or (value is not None and exact <= value):
            continue
        value = exact
        if anchor.place <= after:
            start = value
        else:
            steps[anchor.place] = value
    return Steps(start, tuple(steps), tuple(steps.values()))


def together(parts: Mapping[str, Steps]) -> dict[str, Steps]:
    """The watermark of all partitions, along each: the others count as they are at the end."""
    return {
        name: steps.capped(other.end_ms for found, other in parts.items() if found != name)
        for name, steps in parts.items()
    }


# --- reading --------------------------------------------------------------------------------------


class _Replay:
    """Timelines while a log is read."""

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._found = {topic: TopicWatermarks() for topic in topics}

    @property
    def timelines(self) -> dict[str, Timeline]:
        return {topic: found.timeline for topic, found in self._found.items()}

    def begin(self, topic: str, controls: Iterable[bytes]) -> None:
        """What a checkpoint holds of a topic. Raises CorruptData."""
        self._found[topic] = TopicWatermarks(controls)

    def apply(self, record: object) -> None:
        """A record of the log. Raises CorruptData."""
        if isinstance(record, TopicRecord) and record.topic in self._topics:
            if record.operation is TopicOperation.DELETE:
                self._found[record.topic] = TopicWatermarks()
        elif isinstance(record, WatermarkRecord) and record.topic in self._topics:
            self._found[record.topic].apply(record.control)


async def timelines_of(
    store: MetadataStore, volume: Volume, bundle: BundleName, topics: Collection[str]
) -> dict[str, Timeline]:
    """The control records of topics of a bundle that sealed files hold. Raises StoreError,
    StorageError, CorruptData."""
    return await unless_collected(
        partial(_timelines_once, store, volume, bundle, topics),
        f"is missing; bundle {bundle} needs it: restore it from a backup",
    )


async def _timelines_once(
    store: MetadataStore, volume: Volume, bundle: BundleName, topics: Collection[str]
) -> dict[str, Timeline]:
    replay = _Replay(topics)
    item = await store.get(keys.bundle(bundle))
    if item is None:
        return replay.timelines
    record = BundleRecord.decode(item.value)
    if record.checkpoint is not None:
        checkpoint = await read_checkpoint(volume, record.checkpoint.object)
        for topic in topics:
            state = checkpoint.topics.get(topic)
            if state is not None and state.watermarks is not None:
                replay.begin(topic, state.watermarks)
    chain = await SealedChain.of(volume, record)
    async for found in chain.records(volume, bundle):
        replay.apply(found)
    return replay.timelines
