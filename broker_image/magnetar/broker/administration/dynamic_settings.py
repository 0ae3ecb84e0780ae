"""Settings that change while brokers run.

Owns: `DynamicSettings`: their names and stored values; those of load balancing have Pulsar's names.
Imports: balance.settings, balancing, live settings, metadata. Invariant: a stored value is one that
this version accepts, alone and with all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.balance.settings import FIELDS, text_of
from magnetar.broker.administration.documents import Documents
from magnetar.broker.administration.site import Site
from magnetar.broker.bundles.balancing.settings import changed
from magnetar.hosting.live_settings import LIVE, followed, read
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import BROKER_CONFIGURATION, DocumentsRecord


class DynamicSettings:
    """One record for all brokers."""

    def __init__(self, site: Site, documents: Documents) -> None:
        self._site, self._documents = site, documents

    def names(self) -> list[str]:
        return sorted({*FIELDS, *LIVE})

    async def values(self) -> dict[str, str]:
        stored = await self._documents.documents(BROKER_CONFIGURATION)
        return {name: text_of(value) for name, value in sorted(stored.items())}

    async def change(self, name: str, value: str | None) -> None:
        """Set a value, or (None) return to the default. Raises InvalidRequest."""
        broker = self._site.broker
        defaults, key = broker.ownership.balance.defaults, keys.documents(BROKER_CONFIGURATION)

        def after(current: DocumentsRecord | None) -> DocumentsRecord | None:
            given: dict[str, Any] = current.documents if current is not None else {}
            found = (
                changed(defaults, given, name, value)
                if name in FIELDS
                else _with_live(broker.context.live.started, given, name, value)
            )
            return DocumentsRecord(found) if found else None

        written, revision = await self._site.change(key, DocumentsRecord, after)
        if written is not None:  # ahead of the watch
            broker.views.documents.observe(BROKER_CONFIGURATION, written.encode(), revision)


def _with_live(
    started: BrokerSettings, given: Mapping[str, Any], name: str, value: str | None
) -> dict[str, Any]:
    """What is stored once a live setting has a value (None = that of the start again). Raises
    InvalidRequest."""
    after = {key: stored for key, stored in given.items() if key != name}
    if value is None:
        return after
    after[name] = read(name, value)
    refused = followed(started, {name: after[name]})[1]
    if name in refused:
        raise refused[name]
    return after
