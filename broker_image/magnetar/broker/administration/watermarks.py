"""Watermarks as administrators see them.

Owns: the watermark of a subscription, and of all of a topic's, with who holds it back. Imports:
topics, watermarks, errors. Invariants: what is answered is of acknowledgements that are durable; a
partitioned topic has the least of its partitions', and none while one of them has none.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from magnetar.broker.administration.site import Site
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.upkeep.expiry import write
from magnetar.errors import SubscriptionNotFound
from magnetar.names import TopicName

NONE: dict[str, Any] = {
    "watermark": None,
    "boundedBy": None,
    "activeProducers": 0,
    "clamped": 0,
    "late": 0,
}


class Watermarks:
    """Watermarks of topics."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def of_subscription(self, topic: TopicName, subscription: str) -> dict[str, Any]:
        """Raises NotOwner, TopicNotFound, SubscriptionNotFound, StorageError."""

        async def read(part: TopicName) -> dict[str, Any]:
            found = (await self._site.host(part)).subscriptions.get(subscription)
            if found is None:
                raise SubscriptionNotFound(f"Subscription {subscription} not found on topic {part}")
            return await _of(found)

        suffix = f"/subscription/{quote(subscription, safe='')}/watermark"
        return _least(topic, await self._site.on_each(topic, read, "GET", suffix))

    async def of_topic(self, topic: TopicName) -> dict[str, Any]:
        """By subscription, of a topic served here or all partitions of one. Raises NotOwner,
        TopicNotFound, StorageError."""
        names = await self._subscriptions(topic)
        return {name: await self.of_subscription(topic, name) for name in names}

    async def _subscriptions(self, topic: TopicName) -> list[str]:
        async def names(part: TopicName) -> list[str]:
            host = await self._site.host(part)
            return [name for name, found in host.subscriptions.items() if found.core.durable]

        found = await self._site.on_each(topic, names, "GET", "/subscriptions")
        return sorted({name for part in found.values() for name in part})


async def _of(host: SubscriptionHost) -> dict[str, Any]:
    marks = host.topic.watermarks
    if marks is None:
        return NONE
    durable_to = host.core.cursor.mark_delete_position
    await write(host)
    return marks.report(host, durable_to)


def _least(topic: TopicName, parts: dict[TopicName, dict[str, Any]]) -> dict[str, Any]:
    """What a partitioned topic has of its partitions'."""
    if list(parts) == [topic]:
        return parts[topic]
    values = [found["watermark"] for found in parts.values()]
    missing = next((part for part, found in parts.items() if found["watermark"] is None), None)
    slowest = min(parts, key=lambda part: parts[part]["watermark"]) if missing is None else missing
    return {
        "watermark": None if missing is not None else min(values),
        "boundedBy": parts[slowest]["boundedBy"],
        "activeProducers": max(found["activeProducers"] for found in parts.values()),
        "clamped": sum(found["clamped"] for found in parts.values()),
        "late": sum(found["late"] for found in parts.values()),
        "partitions": {str(part): found for part, found in parts.items()},
    }
