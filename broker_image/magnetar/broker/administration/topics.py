"""Topics.

Owns: creating, deleting, terminating, trimming and unloading topics by request of an administrator,
and their statistics. Imports: metadata, topics, names, errors. Invariants: what is answered is
durable; a topic with clients is deleted only by force; a partitioned topic's record goes after its
partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from magnetar.broker.administration.moves import Moves
from magnetar.broker.administration.partition_sums import sum_stats
from magnetar.broker.administration.peers import ask_peer
from magnetar.broker.administration.site import Site
from magnetar.broker.administration.statistics import (
    ALL,
    Wanted,
    internal_info,
    internal_stats,
    message_id,
    read_earliest,
    topic_stats,
)
from magnetar.broker.administration.subscriptions import Subscriptions
from magnetar.broker.commands.service import Mode
from magnetar.broker.topics.compaction_state import CompactionState
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.expiry import trim_now
from magnetar.errors import (
    InUse,
    NotAllowed,
    NotOwner,
    NotPersistent,
    PreconditionFailed,
    TopicExists,
    TopicNotFound,
    UnsupportedCommand,
)
from magnetar.metadata import keys
from magnetar.metadata.records import TopicPoliciesRecord
from magnetar.names import NamespaceName, TopicName
from magnetar.wire.entries import readable_entry

_FURTHEST_FIRST = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")

ListMode: TypeAlias = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
"""Which topics a list shows."""


class Topics:
    """Topics as a whole."""

    def __init__(self, site: Site, moves: Moves, subscriptions: Subscriptions) -> None:
        self._site, self._moves, self._subscriptions = site, moves, subscriptions

    async def topics(self, name: NamespaceName, mode: ListMode = "PERSISTENT") -> list[str]:
        return await self._site.broker.service.topics_in(name, Mode.Value(mode))

    async def partitioned_topics(self, name: NamespaceName) -> list[str]:
        await self._site.namespace_record(name)
        await self._site.broker.ownership.registry.catch_up(name)
        return self._site.broker.ownership.registry.partitioned(name)

    async def create_topic(self, topic: TopicName, properties: dict[str, str]) -> None:
        """Raises TopicExists."""
        if topic.partition < 0 and await self._site.broker.service.partitions(topic):
            raise TopicExists("This topic already exists")
        if await self._existing(topic) is not None:
            raise TopicExists("This topic already exists")
        host = await self._site.broker.service.open_topic(topic, create=True, by_administrator=True)
        if properties:
            await host.update_properties(
                {f"user.{name}": value for name, value in properties.items()}
            )

    async def _existing(self, topic: TopicName) -> TopicHost | None:
        """The topic as served here, None if it is not there: a partition that was never used
        is not created. Raises NotOwner."""
        await self._site.served_here(topic)
        owned = await self._site.broker.ownership.serving_topic(topic)
        return await owned.topic(topic, create=False) if topic.persistent else owned.held(topic)

    async def delete_topic(
        self, topic: TopicName, force: bool, *, with_schema: bool = True
    ) -> None:
        """Delete a topic with its subscriptions and its schema. Raises InUse while it has clients
        and `force` is not set, NotAllowed for a partitioned topic."""
        if topic.partition < 0 and await self._site.broker.service.partitions(topic):
            raise NotAllowed(
                f"{topic} is a partitioned topic, instead of calling delete topic, please call "
                "delete-partitioned-topic.",
                f"DELETE {topic.local}/partitions deletes it with its partitions",
            )
        host = await self._existing(topic)
        if host is None:
            raise TopicNotFound(f"Topic {topic} not found", "there is nothing to delete")
        if not force:
            _check_unused(host)
        await host.bundle.delete_topic(topic, keep_schema=not with_schema)
        if with_schema and not topic.persistent:  # it has no entry to go with
            await self._site.broker.service.schemas.erase_with_topic(topic)

    async def delete_partitions(
        self, topic: TopicName, force: bool, *, with_schema: bool = True
    ) -> None:
        """Delete all partitions, the schema and the record of a partitioned topic, or, if one has clients and
        `force` is not set, nothing.

        Who comes to a partition while others are deleted stops it there: what has been published to
        that one is kept. Raises TopicNotFound, InUse.
        """
        parts = await self._site.parts(topic)
        if parts == [topic]:
            await self._refuse_whole(topic)
        if not force:
            await self._check_each(parts)
        await self._delete_each(parts, force)
        await self._site.change(
            keys.topic_policies(topic), TopicPoliciesRecord, lambda _current: None
        )
        await self._site.broker.service.partitioning.delete(topic)
        # Clients may have come to partitions that were deleted before the record was gone.
        await self._delete_each(parts, force=True)
        if with_schema:
            await self._site.broker.service.schemas.erase_with_topic(topic)

    async def _refuse_whole(self, topic: TopicName) -> NoReturn:
        """Raises what deleting the partitions of a topic without any is refused with."""
        if self._site.broker.ownership.registry.holds(topic):
            raise NotAllowed(
                f"{topic} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
                "please call delete.",
                f"DELETE {topic.local} deletes it",
            )
        raise TopicNotFound(f"Topic {topic} not found.", "there is nothing to delete")

    async def _check_each(self, parts: list[TopicName]) -> None:
        """Raises InUse if one of these partitions has clients, at its owner."""
        for part in parts:
            try:
                if (host := await self._existing(part)) is not None:
                    _check_unused(host)
            except NotOwner as error:
                if not error.http_url:
                    raise
                with contextlib.suppress(TopicNotFound):  # this partition is not in use
                    stats = await ask_peer(
                        self._site.broker.context, error.http_url, "GET", part, "/stats"
                    )
                    consumers = {
                        name: len(found["consumers"])
                        for name, found in stats["subscriptions"].items()
                    }
                    _refuse_clients(part, len(stats["publishers"]), consumers)

    async def _delete_each(self, parts: list[TopicName], force: bool) -> None:
        for part in parts:
            with contextlib.suppress(TopicNotFound):  # this partition is not in use
                await self.delete_anywhere(part, force)

    async def delete_anywhere(self, topic: TopicName, force: bool) -> None:
        """As `delete_topic`, at the topic's owner."""
        try:
            await self.delete_topic(topic, force)
        except NotOwner as error:
            if not error.http_url:
                raise
            await ask_peer(
                self._site.broker.context,
                error.http_url,
                "DELETE",
                topic,
                "?force=true" if force else "",
            )

    async def partitions(self, topic: TopicName, may_create: bool) -> int:
        return await self._site.broker.service.partitions_for_client(topic, may_create)

    async def create_partitions(self, topic: TopicName, partitions: int) -> None:
        await self._site.broker.service.partitioning.create(topic, partitions)

    async def grow_partitions(self, topic: TopicName, partitions: int) -> None:
        partitioned = await self._site.broker.service.partitions(topic)
        subscriptions = await self._subscriptions.subscriptions(topic) if partitioned else ()
        await self._site.broker.service.partitioning.grow(topic, partitions, tuple(subscriptions))

    async def check_exists(self, topic: TopicName) -> None:
        """Raises TopicNotFound, NotOwner."""
        if await self._site.parts(topic) == [topic]:
            await self._site.host(topic)

    async def stats(self, topic: TopicName, wanted: Wanted = ALL) -> dict[str, Any]:
        host = await self._site.host(topic)
        found = topic_stats(host, wanted)
        if wanted.earliest:
            await read_earliest(host, found)
        return found

    async def internal_stats(self, topic: TopicName) -> dict[str, Any]:
        return internal_stats(await self._site.host(topic))

    async def internal_info(self, topic: TopicName) -> dict[str, Any]:
        """What is stored of a topic, or of each partition that was ever used. Raises
        TopicNotFound."""
        if topic.partition >= 0 or not await self._site.broker.service.partitions(topic):
            return internal_info(await self._site.host(topic))

        async def one(part: TopicName) -> dict[str, Any] | None:
            try:
                return await self.internal_info(part)
            except TopicNotFound:
                return None

        found = await self._site.on_each(topic, one, "GET", "/internal-info")
        return {
            "version": 0,
            "partitions": {str(part): info for part, info in found.items() if info is not None},
        }

    async def partitioned_stats(
        self, topic: TopicName, per_partition: bool, wanted: Wanted = ALL
    ) -> dict[str, Any]:
        count = await self._site.broker.service.partitions(topic)
        if not count:
            raise _no_partitions(topic)

        async def one(part: TopicName) -> dict[str, Any]:
            try:
                return await self.stats(part, wanted)
            except TopicNotFound:
                return sum_stats(())  # this partition was never used

        asked = (
            f"/stats?excludePublishers={str(not wanted.publishers).lower()}"
            f"&excludeConsumers={str(not wanted.consumers).lower()}"
            f"&getEarliestTimeInBacklog={str(wanted.earliest).lower()}"
        )
        found = await self._site.on_each(topic, one, "GET", asked)
        partitions = {str(part): stats for part, stats in found.items()} if per_partition else {}
        return {
            **sum_stats(found.values()),
            "metadata": {"partitions": count, "deleted": False},
            "partitions": partitions,
        }

    async def partitioned_internal_stats(self, topic: TopicName) -> dict[str, Any]:
        count = await self._site.broker.service.partitions(topic)
        if not count:
            raise _no_partitions(topic)
        found = await self._site.on_each(topic, self.internal_stats, "GET", "/internalStats")
        return {
            "metadata": {"partitions": count, "deleted": False},
            "partitions": {str(part): stats for part, stats in found.items()},
        }

    async def last_message_id(self, topic: TopicName) -> dict[str, Any]:
        """MessageIdImpl of the last entry; with the index of its last message if that is a
        batch. Raises UnsupportedCommand, TopicNotFound: a partitioned topic has none."""
        if not topic.persistent:
            raise UnsupportedCommand(
                "GetLastMessageId on a non-persistent topic is not allowed; it keeps no message"
            )
        await self._site.refuse_partitioned(topic)
        host = await self._site.host(topic)
        position, entry = await host.reader.last_message(read_compacted=False)
        found = message_id(position, host.partition)
        if entry is not None:
            parsed = readable_entry(entry)
            if parsed is not None and parsed.batched:
                count = parsed.metadata.num_messages_in_batch
                found |= {"batchIndex": count - 1, "batchSize": count}
        return found

    async def terminate(self, topic: TopicName) -> dict[str, Any]:
        """Nothing can be published any more; the last message id. Raises UnsupportedCommand for
        a partitioned topic, NotPersistent."""
        if not topic.persistent:
            raise NotPersistent("Need to provide a persistent topic name; delete this one")
        if topic.partition < 0 and await self._site.broker.service.partitions(topic):
            raise UnsupportedCommand(
                "Termination of a partitioned topic is not allowed",
                f"use {topic.local}/terminate/partitions",
            )
        host = await self._site.host(topic)
        return message_id(await host.terminate(), host.partition)

    async def terminate_partitions(self, topic: TopicName) -> dict[str, Any]:
        """Terminate every partition; the last message ids by partition number. Raises
        UnsupportedCommand for a topic without partitions."""
        if not topic.persistent or await self._site.parts(topic) == [topic]:
            raise UnsupportedCommand(
                "Termination of a non-partitioned topic is not allowed using "
                "partitioned-terminate, please use terminate commands",
                f"POST {topic.local}/terminate",
            )
        found = await self._site.on_each(topic, self.terminate, "POST", "/terminate")
        return {str(max(0, part.partition)): last for part, last in found.items()}

    async def trim(self, topic: TopicName) -> None:
        """Drop now what retention lets go. Raises UnsupportedCommand."""
        if not topic.persistent:
            raise UnsupportedCommand(
                "Trim on a non-persistent topic is not allowed; it keeps no message"
            )

        async def act(part: TopicName) -> None:
            await trim_now(await self._site.host(part))

        await self._site.on_each(topic, act, "POST", "/trim")

    async def truncate(self, topic: TopicName) -> None:
        """Skip everything for every subscription and drop it, whatever retention says. Raises
        PreconditionFailed."""
        if not topic.persistent:
            raise PreconditionFailed("unsupport truncate", "a non-persistent topic keeps nothing")

        async def act(part: TopicName) -> None:
            await (await self._site.host(part)).truncate()

        await self._site.on_each(topic, act, "DELETE", "/truncate")

    async def roll(self, topic: TopicName, *, rewrite: bool = True) -> tuple[int, int]:
        return await self._site.broker.service.roll(topic, rewrite=rewrite)

    async def compaction_status(self, topic: TopicName) -> dict[str, Any]:
        """LongRunningProcessStatus; of a partitioned topic that of the partition which is furthest
        from success."""
        _check_keeps_messages(topic)

        async def act(part: TopicName) -> dict[str, Any]:
            state = CompactionState()
            if (host := await self._part(topic, part)) is not None:
                await host.bundle.compacted_view(host)  # a job may have committed one
                state = self._site.broker.maintenance.topic_compactor.status(host)
            return {"status": str(state.status), "lastError": state.last_error}

        found = await self._site.on_each(topic, act, "GET", "/compaction")
        return min(found.values(), key=lambda status: _FURTHEST_FIRST.index(status["status"]))

    async def compact(self, topic: TopicName) -> None:
        """Begin to compact a topic, or each of its partitions. Raises AlreadyRunning."""
        _check_keeps_messages(topic)

        async def act(part: TopicName) -> None:
            if (host := await self._part(topic, part)) is not None:
                self._site.broker.maintenance.topic_compactor.request(host)

        await self._site.on_each(topic, act, "PUT", "/compaction")

    async def _part(self, topic: TopicName, part: TopicName) -> TopicHost | None:
        """A topic, or a partition of it; None if this partition was never used. Raises
        TopicNotFound, NotOwner."""
        try:
            return await self._site.host(part)
        except TopicNotFound:
            if part == topic:
                raise
            return None

    async def unload_topic(self, topic: TopicName, destination: str) -> None:
        """Hand the topic's bundle over, of a partitioned topic those of all partitions. Raises
        NotOwner for a topic of another broker's, TopicNotFound."""
        ownership, parts = self._site.broker.ownership, await self._site.parts(topic)
        if parts == [topic]:
            await self._site.host(topic)
        bundles = dict.fromkeys([await ownership.bundle_of(part) for part in parts])
        if parts == [topic]:
            await self._moves.unload(next(iter(bundles)), destination)
        else:
            await self._moves.unload_each(bundles, destination)


def _no_partitions(topic: TopicName) -> TopicNotFound:
    return TopicNotFound(f"Partitioned Topic {topic} not found", "ask for a partitioned topic")


def _check_keeps_messages(topic: TopicName) -> None:
    """Raises UnsupportedCommand."""
    if not topic.persistent:
        raise UnsupportedCommand(f"topic {topic} is non-persistent: there is nothing to compact")


def _check_unused(host: TopicHost) -> None:
    """Raises InUse naming the clients in the way of a deletion; a subscription without consumers
    is none, and goes with its topic."""
    consumers = {name: len(found.core.consumers) for name, found in host.subscriptions.items()}
    _refuse_clients(host.name, len(host.core.producers), consumers)


def _refuse_clients(topic: TopicName, producers: int, consumers: Mapping[str, int]) -> None:
    """Raises InUse if a topic has producers, or subscriptions with consumers."""
    if producers:
        raise InUse(
            "Topic has active producers/subscriptions",
            f"{topic} has {producers} connected producers: close them first or force it",
        )
    if names := sorted(name for name, count in consumers.items() if count):
        raise InUse(
            "Topic has active producers/subscriptions",
            f"{topic} has consumers connected to {', '.join(names[:5])}: close them first or "
            "force it",
        )
