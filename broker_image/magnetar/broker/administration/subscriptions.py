"""Subscriptions.

Owns: creating, deleting and moving subscriptions by request of an administrator. Imports: topics,
errors. Invariants: what is answered is durable; on a partitioned topic an operation acts on all its
partitions, wherever they are served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from magnetar.broker.administration.site import Site
from magnetar.broker.commands.consuming import check_subscription_limit
from magnetar.broker.commands.seeking import reset
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.transactions.positions import first_from, last_up_to
from magnetar.broker.upkeep.expiry import expire, expire_to, skip, write
from magnetar.errors import (
    InUse,
    InvalidRequest,
    NotAllowed,
    SubscriptionNotFound,
    TopicExists,
    UnsupportedCommand,
)
from magnetar.names import TopicName
from magnetar.topics.ledgers import LATEST

T = TypeVar("T")


def no_subscription(topic: TopicName, name: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(
        f"Subscription {name} not found for topic {topic}", "GET .../subscriptions lists them"
    )


class Subscriptions:
    """Subscriptions of topics."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def subscriptions(self, topic: TopicName) -> list[str]:
        async def names(part: TopicName) -> list[str]:
            host = await self._site.host(part)
            return list(host.subscriptions)

        found = await self._site.on_each(topic, names, "GET", "/subscriptions")
        return sorted({name for part in found.values() for name in part})

    async def create_subscription(
        self,
        topic: TopicName,
        subscription: str,
        position: tuple[int, int] | None,
        properties: dict[str, str],
    ) -> None:
        """Raises TopicExists if it is there, TopicNotFound if the topic is not and its namespace
        forbids to create it."""
        if not topic.persistent:
            raise InvalidRequest(
                "Create subscription on non-persistent topic can only be done through client; "
                "subscribe to it"
            )
        if self._site.broker.service.namespace_policies(
            topic.namespace_name
        ).auto_topic_creation.allowed:
            # As for a client that subscribes: what auto-creation makes of an absent topic (perhaps
            # partitions) is there first.
            await self._site.broker.service.partitions_for_client(topic, may_create=True)

        async def create(part: TopicName) -> None:
            host = await self._site.host(part, create=True)
            if subscription in host.subscriptions:
                raise TopicExists(
                    "Subscription already exists for topic", f"{part} has {subscription!r}"
                )
            check_subscription_limit(host)
            start = first_from(host, position) if position is not None else LATEST
            created = host.open_subscription(
                subscription, start, durable=True, properties=dict(properties)
            )
            await write(created)

        body: dict[str, Any] = {"properties": properties}
        if position is not None:
            body |= {"ledgerId": position[0], "entryId": position[1]}
        await self._site.on_each(
            topic, create, "PUT", f"/subscription/{quote(subscription, safe='')}", body
        )

    async def subscription_properties(self, topic: TopicName, subscription: str) -> dict[str, str]:
        async def read(host: SubscriptionHost) -> dict[str, str]:
            return dict(host.core.properties)

        found = await self._on_each(topic, subscription, read, "GET", "/properties")
        return next(iter(found.values()))

    async def replace_subscription_properties(
        self, topic: TopicName, subscription: str, properties: dict[str, str]
    ) -> None:
        async def replace(host: SubscriptionHost) -> None:
            host.core.replace_properties(properties)
            await write(host)

        await self._on_each(topic, subscription, replace, "PUT", "/properties", properties)

    async def delete_subscription(self, topic: TopicName, subscription: str, force: bool) -> None:
        """Raises InUse while consumers are connected and `force` is not set."""

        async def delete(host: SubscriptionHost) -> None:
            sessions = host.sessions()
            if sessions and not force:
                raise InUse(
                    "Subscription has active connected consumers",
                    f"close those of {subscription!r} of {host.topic.name} first, or force it",
                )
            for session in sessions:
                session.close_by_broker(None)
            await host.topic.bundle.remove_subscription(host)

        await self._on_each(topic, subscription, delete, "DELETE", "?force=true" if force else "")

    async def skip(self, topic: TopicName, subscription: str, count: int | None) -> None:
        """Skip the next `count` unacknowledged entries, or all of them (None)."""
        if count is not None:
            await self._one_topic(topic, "Skip messages on a partitioned topic is not allowed")
        what = f"/skip/{count}" if count is not None else "/skip_all"
        await self._on_each(topic, subscription, lambda host: skip(host, count), "POST", what)

    async def expire(self, topic: TopicName, subscription: str | None, seconds: int) -> None:
        """Acknowledge what is older than `seconds`, for one subscription or all of them."""
        if seconds < 0:
            raise InvalidRequest(f"expireMessages: {seconds} is out of range; use 0 or more")
        if not topic.persistent:
            every = " for all subscriptions" if subscription is None else ""
            raise UnsupportedCommand(
                f"Expire messages{every} on a non-persistent topic is not allowed",
                "it keeps no message",
            )

        async def act(part: TopicName) -> None:
            host = await self._site.host(part)
            named = dict(host.subscriptions)
            if subscription is not None:
                named = {subscription: await self._subscription(part, subscription)}
            caught_up = [name for name, found in named.items() if not found.core.backlog]
            for name, found in named.items():
                if name not in caught_up:
                    await expire(found, seconds)
                    await write(found)
            if caught_up and part == topic:
                raise NotAllowed(
                    f"Expire message by timestamp not issued on topic {part} for subscription "
                    f"{caught_up[0]} due to ongoing message expiration not finished or "
                    "subscription almost catch  up. If it's performed on a partitioned topic "
                    "operation might succeeded on other partitions, please check stats of "
                    "individual partition.",
                    "it has no backlog: there is nothing to expire",
                )

        which = (
            f"subscription/{quote(subscription, safe='')}"
            if subscription is not None
            else "all_subscription"
        )
        await self._site.on_each(topic, act, "POST", f"/{which}/expireMessages/{seconds}")

    async def expire_to(
        self, topic: TopicName, subscription: str, position: tuple[int, int]
    ) -> None:
        """Acknowledge everything up to `position`, which is one of a single partition. Raises
        UnsupportedCommand, SubscriptionNotFound."""
        await self._one_topic(
            topic, "Expire message at position is not supported for partitioned-topic"
        )
        host = await self._subscription(topic, subscription)
        named = last_up_to(host.topic, position)
        if named is not None:
            await expire_to(host, named)

    async def reset_to_position(
        self, topic: TopicName, subscription: str, position: tuple[int, int], excluded: bool
    ) -> None:
        """Make `position` (or, with `excluded`, the entry behind it) the next one to be
        delivered."""
        await self._one_topic(
            topic, "Reset-cursor at position is not allowed for partitioned-topic"
        )
        host = await self._subscription(topic, subscription)
        ledgers = host.topic.core.ledgers
        if not excluded:
            ordinal = ledgers.clamp(first_from(host.topic, position))
        else:
            named = last_up_to(host.topic, position)
            ordinal = ledgers.first if named is None else ledgers.ordinal_after(named)
        await reset(host, ordinal)

    async def reset_to_time(self, topic: TopicName, subscription: str, timestamp_ms: int) -> None:
        """Make the first entry published at `timestamp_ms` or later the next one to be
        delivered."""

        async def act(host: SubscriptionHost) -> None:
            await reset(host, await first_published_at(host.topic, timestamp_ms))

        await self._on_each(topic, subscription, act, "POST", f"/resetcursor/{timestamp_ms}")

    async def _on_each(
        self,
        topic: TopicName,
        subscription: str,
        act: Callable[[SubscriptionHost], Awaitable[T]],
        method: str,
        suffix: str,
        body: Any = None,
    ) -> dict[TopicName, T]:
        """Act on the subscription on every partition, here or at the partition's owner."""

        async def act_here(part: TopicName) -> T:
            return await act(await self._subscription(part, subscription))

        path = f"/subscription/{quote(subscription, safe='')}{suffix}"
        return await self._site.on_each(topic, act_here, method, path, body)

    async def _one_topic(self, topic: TopicName, said: str) -> None:
        """Raises UnsupportedCommand for a partitioned topic, on which a position means nothing."""
        if topic.partition < 0 and await self._site.broker.service.partitions(topic):
            raise UnsupportedCommand(said, f"name one of the partitions of {topic}")

    async def _subscription(self, topic: TopicName, name: str) -> SubscriptionHost:
        """A durable subscription of a topic served here. Raises SubscriptionNotFound,
        TopicNotFound, NotOwner."""
        found = (await self._site.host(topic)).subscriptions.get(name)
        if found is None:
            raise no_subscription(topic, name)
        return found
