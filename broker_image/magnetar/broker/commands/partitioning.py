"""Partitioned topics.

Owns: the number of partitions of a topic and its changes. Imports: metadata, names, errors,
ownership, the registry. Invariants: creating and growing are one compare-and-swap each, after which
every broker lists all partitions; a partition exists from then on, though its owner writes it into
its log at its first use; a partition beyond the number is never created.
"""

from __future__ import annotations

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic_limits import TopicLimits
from magnetar.broker.topics.topic_registry import change_mark
from magnetar.errors import (
    InvalidPartitions,
    NamespaceNotFound,
    NotAllowed,
    PartitionsNotPossible,
    PreconditionFailed,
    TopicExists,
)
from magnetar.metadata import keys
from magnetar.metadata.records import PartitionedTopicRecord
from magnetar.metadata.store import Compare, Delete, Put
from magnetar.names import TopicName


class Partitioning:
    """Answers how many partitions a topic has, and changes it."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership, self._registry = context, ownership, ownership.registry
        self.limits = TopicLimits(context.settings, ownership.registry, ownership.policies)

    async def record(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """The topic's entry as of now. Raises NamespaceNotFound, StoreError."""
        await self._ownership.bundle_of(topic)
        item = await self._context.store.get(keys.partitioned_topic(topic))
        return PartitionedTopicRecord.decode(item.value) if item is not None else None

    async def count(self, topic: TopicName) -> int:
        """Partitions of a topic, 0 if it is not partitioned (or not there yet). Raises
        NamespaceNotFound, StoreError."""
        record = await self.record(topic)
        return record.partitions if record is not None else 0

    async def exists(self, topic: TopicName) -> bool:
        """Whether the topic is there: partitioned, plain, or a partition of one. Raises
        NamespaceNotFound, StoreError."""
        if await self.record(topic) is not None or self._registry.holds(topic):
            return True
        return topic.partition >= 0 and topic.partition < await self.count(topic.base)

    async def partitioned_topic_of(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """The entry of the partitioned topic that has this partition, None if there is none.
        Raises StoreError."""
        if topic.partition < 0:
            return None
        # Partitions are never removed, so a mirror that has this one needs no read of the store.
        record = self._registry.entry(topic.base)
        if record is None or record.partitions <= topic.partition:
            record = await self.record(topic.base)
        return record if record is not None and record.partitions > topic.partition else None

    async def check_creation(self, topic: TopicName) -> None:
        """Refuse a name that cannot be a topic of its own. Raises NotAllowed, NamespaceNotFound,
        StoreError."""
        # A plain topic is created while the store is unavailable, too: its owner has the log.
        known = self._registry.entry(topic)
        partitions = (
            await self.count(topic.base)
            if topic.partition >= 0
            else known.partitions
            if known is not None
            else 0
        )
        if topic.partition >= partitions > 0:
            raise NotAllowed(
                f"Illegal topic partition name {topic} with max allowed {partitions} partitions"
            )
        if topic.partition < 0 and partitions > 0:
            raise NotAllowed(
                f"topic {topic} is partitioned; use its partitions {topic}-partition-0 to "
                f"-{partitions - 1}"
            )

    async def create(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Raises TopicExists, InvalidPartitions, NotAllowed, NamespaceNotFound, StoreError."""
        self._check_number(partitions)
        if topic.partition >= 0:
            raise PreconditionFailed(
                "Partitioned Topic Name should not contain '-partition-'",
                "choose a name that does not end in -partition-N",
            )
        await self._ownership.bundle_of(topic)
        self._registry.check_namespace(topic)
        parts = [topic.with_partition(index) for index in range(partitions)]
        if any(map(self._registry.holds, parts)):
            raise TopicExists("This topic already exists")
        record = PartitionedTopicRecord(partitions=partitions, properties=properties or {})
        key, namespace = keys.partitioned_topic(topic), keys.namespace(topic.namespace_name)
        with self.limits.room(parts):
            result = await self._context.store.transact(
                [Compare(key, "create", "=", 0), Compare(namespace, "create", ">", 0)],
                [Put(key, record.encode()), change_mark(topic.namespace_name)],
            )
        if not result.succeeded:
            if not any(item.key == namespace for item in result.current):
                raise NamespaceNotFound(
                    "Namespace not found",
                    f"{topic.namespace_name} of topic {topic} was deleted; create it first",
                )
            raise TopicExists("This topic already exists")
        self._registry.observe(topic, record.encode(), result.revision)

    async def grow(
        self, topic: TopicName, partitions: int, subscriptions: tuple[str, ...] = ()
    ) -> None:
        """Have at least `partitions`; new ones are born with `subscriptions`, so that what is
        published before their consumers look again is kept.

        Raises NotAllowed for a topic without partitions, PartitionsNotPossible, StoreError.
        """
        key = keys.partitioned_topic(topic)
        while True:
            await self._ownership.bundle_of(topic)
            item = await self._context.store.get(key)
            if item is None:
                raise NotAllowed(
                    f"Topic {topic} is not the partitioned topic.", "it does not exist; create it"
                )
            record = PartitionedTopicRecord.decode(item.value)
            if not record.partitions:
                raise NotAllowed(
                    f"Topic {topic} is not the partitioned topic.",
                    "its number of partitions cannot change",
                )
            if partitions < record.partitions:
                raise PartitionsNotPossible(
                    f"Desired partitions {partitions} can't be less than the current partitions "
                    f"{record.partitions}."
                )
            limit = self._context.settings.partitions_max
            if partitions > limit:
                raise PartitionsNotPossible(
                    f"Desired partitions {partitions} can't be greater than the maximum partitions "
                    f"per topic {limit}."
                )
            born_with = tuple(sorted({*record.subscriptions, *subscriptions}))
            grown = PartitionedTopicRecord(
                partitions=partitions, properties=record.properties, subscriptions=born_with
            )
            with self.limits.room(
                [topic.with_partition(index) for index in range(record.partitions, partitions)]
            ):
                result = await self._context.store.transact(
                    [Compare(key, "mod", "=", item.mod_revision)],
                    [Put(key, grown.encode()), change_mark(topic.namespace_name)],
                )
            if result.succeeded:
                self._registry.observe(topic, grown.encode(), result.revision)
                return

    def _check_number(self, partitions: int) -> None:
        limit = self._context.settings.partitions_max
        if not 1 <= partitions <= limit:
            raise InvalidPartitions(
                "Number of partitions should be more than 0"
                if partitions < 1
                else f"Number of partitions should be less than or equal to {limit}",
                f"{partitions} is out of range: use 1..{limit}",
            )

    async def delete(self, topic: TopicName) -> None:
        """Forget a partitioned topic; its partitions are deleted by their owners. Raises
        StoreError."""
        key = keys.partitioned_topic(topic)
        result = await self._context.store.transact(
            [], [Delete(key), change_mark(topic.namespace_name)]
        )
        self._registry.observe(topic, None, result.revision)
