"""What a query on topics reads, found out by the driver.

Owns: `TopicTask`, the unit of a task, and `TopicPlanner`, which finds partitions, has brokers seal
what they have acknowledged, and finds the files. Imports: options, history, event_watermarks,
cluster, store_places, metadata, storage. Invariants: a plan is a snapshot: of each partition a prefix of its history, with
all that was acknowledged before the request to seal, and all of it immutable files; without a
request, what is sealed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.topic_schemas import history_in
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.volumes.opening import opened_at
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.cluster import (
    bundle_of_topic,
    partitions_of,
    roll_owner,
    shown,
    topics_of,
    until_reached,
)
from magnetar_jobs.event_watermarks import Steps, steps_of, timelines_of, together
from magnetar_jobs.history import History, history_of
from magnetar_jobs.inputs import BEFORE_ALL, UNBOUNDED, Group, Position
from magnetar_jobs.store_places import open_store
from magnetar_jobs.topic_options import NAME, ReadOptions
from magnetar_jobs.value_schemas import TopicValues
from magnetar_jobs.value_types import Column


@dataclass(frozen=True, slots=True)
class TopicTask:
    """What one task reads of one partition. `before` and `first` as in `History`; `steps` are its
    watermarks, and `values` what its payloads are, if they are asked for."""

    topic: str
    partition: int | None
    name: str
    group: Group
    before: Group | None
    first: bool
    steps: Steps | None = None
    values: TopicValues | None = None


def tasks_of(name: TopicName, history: History) -> Iterator[TopicTask]:
    """One task for each group of a partition's history."""
    before, first = history.before, history.first
    index = name.partition if name.partition >= 0 else None
    for number, group in enumerate(history.groups):
        yield TopicTask(str(name.base), index, str(name), group, before, first)
        first = number == 0 and before is None
        before = group


class TopicPlanner:
    """Asks the store and brokers of one cluster."""

    def __init__(self, store: MetadataStore, volume: Volume, options: ReadOptions) -> None:
        self.store, self.volume, self._options = store, volume, options
        self._indexes = dict[tuple[str, int], LevelZeroIndex]()

    async def partitions(self) -> list[TopicName]:
        """All partitions of the topics, by name. Raises InvalidRequest, TopicNotFound,
        NamespaceNotFound."""
        options = self._options
        names = [TopicName.parse(topic) for topic in options.topics]
        if options.namespace:
            names = await topics_of(self.store, NamespaceName.parse(options.namespace))
        found = [partition for name in names for partition in await partitions_of(self.store, name)]
        partitions = sorted(dict.fromkeys(found), key=str)
        unknown = options.named_partitions() - {str(partition) for partition in partitions}
        if unknown:
            raise InvalidRequest(
                f"{NAME}: a position is given for {min(unknown)}, which is not read; name "
                f"partitions of topics that are, such as {partitions[0] if partitions else '-'}"
            )
        if len(partitions) > 1 and not options.same_everywhere:
            raise InvalidRequest(
                f"{NAME}: ledger:entry is a position of one partition, and {len(partitions)} are "
                "read; give positions as JSON by partition"
            )
        return partitions

    async def values(self, name: TopicName, type_name: str = "") -> TopicValues:
        """What payloads of a topic are by its schema, of the type that the query has. Raises
        InvalidRequest."""
        prefix = keys.schemas_of(name)
        history = history_in(prefix, (await self.store.range(prefix)).items)
        return TopicValues.of(str(name.base), history, type_name)

    async def value_column(self) -> Column:
        """The column `value`, the same for all topics. Raises InvalidRequest."""
        column = None
        for name in dict.fromkeys(partition.base for partition in await self.partitions()):
            column = (await self.values(name, column.name if column else "")).column
        if column is None:
            raise InvalidRequest(
                f"{NAME}: namespace {self._options.namespace} has no topics whose schema values "
                "could have; read with option value=bytes"
            )
        return column

    async def with_values(self, tasks: list[TopicTask], type_name: str) -> list[TopicTask]:
        """The tasks with the schemas of their topics; "": as they are."""
        if not type_name:
            return tasks
        topics = {task.topic for task in tasks}
        found = {name: await self.values(TopicName.parse(name), type_name) for name in topics}
        return [replace(task, values=found[task.topic]) for task in tasks]

    async def roll(self, partitions: list[TopicName]) -> dict[TopicName, Position]:
        """Have their brokers seal what they have acknowledged; the last positions of that. Raises
        ServiceNotReady if a broker has died, and no other one has sealed its log yet."""
        url, token_file = self._options.store.broker_url, self._options.token_file
        return {
            name: await roll_owner(self.store, self.volume, name, url, token_file)
            for name in partitions
        }

    async def history(
        self, name: TopicName, after: Position, until: Position = UNBOUNDED
    ) -> History:
        """What files hold of a partition now. Raises ServiceNotReady while that is unknown."""
        bundle = await bundle_of_topic(self.store, name)
        size = self._options.bytes_per_task
        return await history_of(
            self.store,
            self.volume,
            bundle,
            name,
            after,
            until,
            size,
            compacted=self._options.compacted,
            known=self._indexes,
        )

    async def whole_history(
        self, name: TopicName, after: Position, until: Position, rolled: Position
    ) -> History:
        """As `history`, all of it up to `rolled`. Raises ServiceNotReady if its broker takes too
        long."""
        found = await until_reached(lambda: self.history(name, after, until), name, rolled)
        wanted = min(rolled, until)
        if not found.reaches(wanted):
            complete = shown(found.complete or BEFORE_ALL)
            raise ServiceNotReady(
                f"topic {name} can be read up to {complete} of {shown(wanted)}: its broker has not "
                "rewritten yet what transactions have published behind that; try again, or read "
                "with option roll=false"
            )
        return found

    async def tasks(self) -> list[TopicTask]:
        """Of a batch query."""
        options, found = self._options, list[TopicTask]()
        spans = dict[TopicName, tuple[Position, Position]]()
        partitions = await self.partitions()
        rolled = await self.roll(partitions) if options.roll else {}
        for name in partitions:
            after, until = options.after(str(name)), options.until(str(name))
            if isinstance(after, str):
                continue  # behind everything
            history = await self.whole_history(name, after, until, rolled.get(name, BEFORE_ALL))
            spans[name] = after, history.end
            found += tasks_of(name, history)
        return await self.with_watermarks(found, spans) if options.watermarks else found

    async def with_watermarks(
        self, tasks: list[TopicTask], spans: Mapping[TopicName, tuple[Position, Position]]
    ) -> list[TopicTask]:
        """The tasks with the watermark of all partitions together; `spans` (after, until) says what
        is read of each."""
        bundles: dict[BundleName, list[TopicName]] = {}
        for name in spans:
            bundles.setdefault(await bundle_of_topic(self.store, name), []).append(name)
        steps = {}
        for bundle, names in bundles.items():
            topics = [str(name) for name in names]
            timelines = await timelines_of(self.store, self.volume, bundle, topics)
            for name in names:
                steps[str(name)] = steps_of(timelines[str(name)], *spans[name])
        found = together(steps)
        return [replace(task, steps=found[task.name]) for task in tasks]


@asynccontextmanager
async def open_planner(options: ReadOptions) -> AsyncIterator[TopicPlanner]:
    """A planner over the store and the volume that the options name."""
    clock = SystemClock()
    async with (
        open_store(options.store, clock, options.token_file) as store,
        opened_at(options.volume, clock) as volume,
    ):
        yield TopicPlanner(store, volume, options)
