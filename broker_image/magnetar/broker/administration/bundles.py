"""Bundles of a namespace, and work on all topics in them.

Owns: unloading, splitting, merging and pinning bundles, clearing backlogs and deleting subscriptions by
bundle. Imports: metadata, names, the parts that it puts together. Invariant: work on a whole
namespace is done at the owners of all its bundles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote

from magnetar.broker.administration.moves import Moves, store_needed
from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.site import Site
from magnetar.broker.administration.subscriptions import Subscriptions
from magnetar.broker.administration.topics import Topics
from magnetar.errors import (
    InvalidTopicName,
    NotOwner,
    PreconditionFailed,
    SubscriptionNotFound,
    TopicNotFound,
)
from magnetar.names import BundleName, NamespaceName, TopicName, bundles_of
from magnetar.ownership.splits import boundaries_of
from magnetar.storage.turns import Turns

TOPICS_PER_TURN_MAX = 500
"""Topics that are assigned to their bundles before others get their turn."""

NOT_FOUND = "Namespace not found"


class Bundles:
    """Bundles of namespaces."""

    def __init__(
        self, site: Site, moves: Moves, topics: Topics, subscriptions: Subscriptions
    ) -> None:
        self._site, self._moves, self._topics, self._subscriptions = (
            site,
            moves,
            topics,
            subscriptions,
        )

    async def unload_namespace(self, name: NamespaceName, destination: str) -> None:
        """Have all bundles of a namespace transferred by their owners, but those that
        `destination` has already."""
        record = await self._site.namespace_record(name, NOT_FOUND)
        await self._moves.unload_each(bundles_of(name, record.boundaries), destination)

    async def split_bundle(
        self,
        name: NamespaceName,
        bundle: str,
        algorithm: str,
        positions: Sequence[int],
        *,
        unload: bool,
    ) -> None:
        """Raises InvalidTopicName, InvalidRequest, NotAllowed, NotOwner with the owner's
        address, ServiceNotReady."""
        found = await self.bundle(name, bundle)
        boundaries = boundaries_of(found, algorithm, positions)
        await self._moves.serve(found)
        with store_needed():
            children = await self._site.broker.ownership.split(found, boundaries)
            for child in children if unload else ():
                await self._moves.unload(child, "")

    async def merge_bundle(self, name: NamespaceName, bundle: str) -> str:
        """Merge a bundle with its right neighbour; the name of the merged one. Raises NotAllowed
        if there is no such neighbour or another broker serves it, NotOwner with the owner's
        address, TopicNotFound for a range that is not a bundle, ServiceNotReady."""
        found = await self.bundle(name, bundle)
        await self._moves.serve(found)
        with store_needed():
            return str(await self._site.broker.ownership.merge(found))

    async def unload_bundle(self, name: NamespaceName, bundle: str, destination: str) -> None:
        """Transfer one bundle. Raises NotOwner, TopicNotFound for a range that is not a bundle."""
        await self._moves.unload(await self.bundle(name, bundle), destination)

    async def pin_bundle(self, name: NamespaceName, bundle: str, seconds: float | None) -> None:
        """Have load balancing leave a bundle with its owner, for `move_pin_s` by default; 0 s
        removes a pin.

        Raises NotOwner with the owner's address, TopicNotFound for a range that is not a bundle,
        ServiceNotReady.
        """
        found = await self.bundle(name, bundle)
        await self._moves.serve(found)
        with store_needed():
            await self._site.broker.ownership.pin(str(found), self._moves.pinned_until_ms(seconds))

    async def clear_backlog(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Skip everything, for one subscription or (with "") all, on the topics of a bundle, or
        (with "") of all bundles at their owners."""

        async def clear(topic: TopicName) -> None:
            for found in (
                [subscription] if subscription else await self._subscriptions.subscriptions(topic)
            ):
                await self._subscriptions.skip(topic, found, None)

        suffix = f"/{quote(subscription, safe='')}" if subscription else ""
        await self._on_topics(name, bundle, clear, f"clearBacklog{suffix}")

    async def unsubscribe_all(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Delete one subscription from the topics of a bundle, or (with "") of all bundles at
        their owners."""

        async def unsubscribe(topic: TopicName) -> None:
            await self._subscriptions.delete_subscription(topic, subscription, force=False)

        await self._on_topics(
            name, bundle, unsubscribe, f"unsubscribe/{quote(subscription, safe='')}"
        )

    async def _on_topics(
        self,
        name: NamespaceName,
        bundle: str,
        act: Callable[[TopicName], Awaitable[None]],
        route: str,
    ) -> None:
        """Act on the persistent topics of a bundle served here, or (with "") have that done for
        every bundle that has topics.

        Topics without the subscription are passed over. Raises NotOwner for a bundle of another
        broker's.
        """
        await self._site.namespace_record(name, NOT_FOUND)
        wanted: dict[BundleName, list[TopicName]] = (
            {await self.bundle(name, bundle): []} if bundle else {}
        )
        turns = Turns(TOPICS_PER_TURN_MAX)
        for topic in map(TopicName.parse, await self._topics.topics(name)):
            within = await self._site.broker.ownership.bundle_of(topic)
            if not bundle or within in wanted:
                wanted.setdefault(within, []).append(topic)
            await turns.after(1)
        for found, topics in wanted.items():
            try:
                await self._moves.serve(found)
            except NotOwner as error:
                if bundle or not error.http_url:
                    raise
                path = f"/admin/v2/namespaces/{name}/{found.range}/{route}"
                await ask_broker(self._site.broker.context, error.http_url, "POST", path)
                continue
            for topic in topics:
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound):
                    await act(topic)

    async def bundle(self, name: NamespaceName, span: str) -> BundleName:
        """The bundle of a namespace with this range. Raises NamespaceNotFound, InvalidTopicName,
        PreconditionFailed."""
        try:
            bundle = BundleName.parse(f"{name}/{span.lower()}")
        except InvalidTopicName as error:
            raise InvalidTopicName(f"Invalid bundle range: {span}", error.remedy) from error
        boundaries = (await self._site.namespace_record(name)).boundaries
        if bundle not in bundles_of(name, boundaries):
            raise PreconditionFailed(
                f"Invalid upper boundary for bundle {bundle}"
                if bundle.low in boundaries
                else f"Cannot find bundle {bundle} in the bundles list",
                f"GET /admin/v2/namespaces/{name}/bundles lists them",
            )
        return bundle

    def topics_of_bundle(
        self, name: NamespaceName, bundle: str, topics: Sequence[str]
    ) -> list[str]:
        found = BundleName.parse(f"{name}/{bundle.lower()}")
        return [topic for topic in topics if found.contains(TopicName.parse(topic))]

    def hash_positions(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: TopicName.parse(topic).hash for topic in topics}
