"""Operating the cluster's brokers.

Owns: cordons by request of a person, what is damaged anywhere, and where space is short. Imports:
metadata, errors. Source: the operator writes cordons of its own straight into the store.
Invariants: a drain without a broker to take the bundles is refused, unless it is forced; a broker
that does not answer is named, not left out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.site import Site
from magnetar.errors import MagnetarError, NotAllowed, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import CordonRecord


class Operations:
    """Brokers, as a person operates them."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def cordon(self, broker: str, *, drain: bool, reason: str, force: bool) -> None:
        """Raises TopicNotFound for a broker that is not there, NotAllowed if no other broker takes
        bundles and `force` is not set."""
        views = self._site.broker.views
        live = {viewed.record.broker for viewed in views.incarnations.items.values()}
        if broker not in live:
            raise TopicNotFound(
                f"there is no live broker {broker}; the live ones are {', '.join(sorted(live))}"
            )
        others = {
            viewed.record.broker
            for viewed in views.incarnations.items.values()
            if viewed.record.broker != broker
            and not viewed.record.draining
            and views.cordons.get(viewed.record.broker) is None
        }
        if drain and not others and not force:
            raise NotAllowed(
                f"no broker but {broker} takes bundles; start another broker, or lift a cordon, first"
            )
        record = CordonRecord(drain=drain, reason=reason)
        revision = await self._site.broker.context.store.put(keys.cordon(broker), record.encode())
        views.cordons.observe(broker, record.encode(), revision)

    async def uncordon(self, broker: str) -> None:
        """Raises TopicNotFound if there is no such cordon."""
        found, revision = await self._site.change(
            keys.cordon(broker), CordonRecord, lambda current: current
        )
        if found is None:
            raise TopicNotFound(f"broker {broker} is not cordoned; there is nothing to undo")
        _, revision = await self._site.change(
            keys.cordon(broker), CordonRecord, lambda _current: None
        )
        self._site.broker.views.cordons.observe(broker, None, revision)

    def damage(self) -> list[dict[str, Any]]:
        """What is wrong with the storage of this broker now."""
        return self._site.broker.context.damage.listed()

    async def cluster_damage(self) -> dict[str, Any]:
        """Damage that any broker knows of, why those publish nothing that lack space, and
        brokers that do not answer."""
        broker = self._site.broker
        others = [
            viewed.record
            for name, viewed in sorted(broker.views.incarnations.items.items())
            if name != broker.incarnation
        ]

        async def ask(name: str, http_url: str) -> tuple[str, dict[str, Any] | None]:
            try:
                return name, await ask_broker(
                    broker.context, http_url, "GET", "/magnetar/v1/damage"
                )
            except MagnetarError:
                return name, None

        own = {"damage": broker.context.damage.listed(), "short_of_space": self.short_of_space()}
        answers: list[tuple[str, dict[str, Any] | None]] = [(broker.context.broker, own)]
        answers += await asyncio.gather(*(ask(record.broker, record.http_url) for record in others))
        answered = [(name, found) for name, found in answers if found is not None]
        return {
            "damage": [
                {"broker": name, **row} for name, found in answered for row in found["damage"]
            ],
            "short_of_space": {
                name: found["short_of_space"]
                for name, found in answered
                if found.get("short_of_space")
            },
            "unreachable": [name for name, found in answers if found is None],
        }

    def short_of_space(self) -> str:
        """Why this broker publishes nothing for want of space; "" while it has enough."""
        return str(self._site.broker.context.log.space.short or "")
