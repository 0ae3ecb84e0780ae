"""Bundles moved by request of an administrator.

Owns: `Moves`: unloading bundles here or at their owners, the destination that a name means, when a
pin ends. Imports: metadata, names, errors, site, peers. Invariants: an unknown destination is
refused before anything moves; a move to a named broker pins the bundle there for `move_pin_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.site import Site
from magnetar.errors import (
    InvalidRequest,
    NotOwner,
    ServiceNotReady,
    StoreUnavailable,
)
from magnetar.metadata.records import IncarnationRecord
from magnetar.names import BundleName


class Moves:
    """Unloads and pins bundles."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def unload(self, bundle: BundleName, destination: str) -> None:
        """Move a bundle by request of a person: to a named broker it is pinned there for
        `move_pin_s`."""
        ownership = self._site.broker.ownership
        target = self.incarnation_of(destination) if destination else ""
        pinned_until_ms = self.pinned_until_ms(None) if target else 0
        await self.serve(bundle)
        with store_needed():
            await ownership.move(
                str(bundle), target, "unload requested", pinned_until_ms=pinned_until_ms
            )

    async def unload_each(self, bundles: Iterable[BundleName], destination: str) -> None:
        """Have bundles transferred by their owners, but those that `destination` has already; the first failure, when all have been tried."""
        # refuse it once, and before anything moves
        target = self.incarnation_of(destination) if destination else ""
        outcomes = await asyncio.gather(
            *(self._unload_anywhere(bundle, destination, target) for bundle in bundles),
            return_exceptions=True,
        )
        if (
            failed := next((outcome for outcome in outcomes if outcome is not None), None)
        ) is not None:
            raise failed

    async def _unload_anywhere(self, bundle: BundleName, destination: str, target: str) -> None:
        """Have a bundle transferred by its owner; nothing if it has none, or if that is `target`,
        the incarnation of `destination`."""
        viewed, owner = (
            self._site.broker.views.bundles.get(str(bundle)),
            self._owner_of(str(bundle)),
        )
        if owner is None or (viewed is not None and viewed.record.incarnation == target):
            return
        if str(bundle) in self._site.broker.ownership.owned:
            await self.unload(bundle, destination)
            return
        query = f"?destinationBroker={quote(destination, safe='')}" if destination else ""
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload{query}"
        await ask_broker(self._site.broker.context, owner.http_url, "PUT", path)

    def _owner_of(self, bundle: str) -> IncarnationRecord | None:
        """The live incarnation that has a bundle, as far as we know."""
        views = self._site.broker.views
        viewed = views.bundles.get(bundle)
        owner = views.incarnations.get(viewed.record.incarnation) if viewed is not None else None
        return owner.record if owner is not None else None

    async def serve(self, bundle: BundleName) -> None:
        """Raises NotOwner with the owner's address if that is another broker."""
        ownership = self._site.broker.ownership
        if str(bundle) not in ownership.owned:
            owner = await ownership.resolve(bundle)
            if owner.broker != self._site.broker.context.broker:
                raise NotOwner(
                    f"bundle {bundle} is served by {owner.broker}; ask {owner.http_url}",
                    owner.http_url,
                    owner.http_url_tls,
                )
            await ownership.serving(bundle)

    def pinned_until_ms(self, seconds: float | None) -> int:
        """When a pin of now ends (None = after `move_pin_s`); 0: there is none."""
        context = self._site.broker.context
        kept_s = context.settings.move_pin_s if seconds is None else seconds
        return context.clock.wall_ms() + int(kept_s * 1000) if kept_s else 0

    def incarnation_of(self, name: str) -> str:
        """The incarnation of a live broker, named, or as GET /admin/v2/brokers lists it, or by
        an address. Raises InvalidRequest."""
        address = name.rpartition("://")[2]
        for identifier, viewed in self._site.broker.views.incarnations.items.items():
            if name == viewed.record.broker or address in addresses_of_broker(viewed.record):
                return identifier
        raise InvalidRequest(
            f"destinationBroker: {name!r} is not a live broker; GET /admin/v2/brokers lists them"
        )


@contextlib.contextmanager
def store_needed() -> Iterator[None]:
    """Raises ServiceNotReady where the metadata store gives no answer."""
    try:
        yield
    except StoreUnavailable as error:
        raise ServiceNotReady(f"the metadata store does not answer: {error}") from error


def address_of_broker(record: IncarnationRecord) -> str:
    """host:port by which REST lists a broker: of the address that other brokers use."""
    return record.http_url.partition("://")[2]


def addresses_of_broker(record: IncarnationRecord) -> frozenset[str]:
    """host:port of all addresses of a broker's REST."""
    return frozenset({address_of_broker(record), record.http_url_tls.partition("://")[2]} - {""})
