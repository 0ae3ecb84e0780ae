"""Stored documents.

Owns: groups of documents that administrators store and read back. Imports: metadata, errors.
Invariant: one group is one record and holds at most `DOCUMENTS_MAX`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar.balance.filters import matches
from magnetar.broker.administration.moves import addresses_of_broker
from magnetar.broker.administration.site import Site
from magnetar.broker.bundles.balancing.policies import (
    isolation_policies,
    isolation_policy,
)
from magnetar.errors import InvalidRequest, LimitExceeded, MagnetarError
from magnetar.metadata import keys
from magnetar.metadata.records import ISOLATION_POLICIES, DocumentsRecord
from magnetar.names import CLUSTER_NAME

DOCUMENTS_MAX = 1000
"""Documents of one group, which are one record."""


class Documents:
    """Stored documents by group."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def documents(self, group: str) -> dict[str, Any]:
        item = await self._site.broker.context.store.get(keys.documents(group))
        return dict(DocumentsRecord.decode(item.value).documents) if item is not None else {}

    async def document(self, group: str, name: str, absent: MagnetarError) -> Any:
        """Raises `absent`."""
        found = (await self.documents(group)).get(name)
        if found is None:
            raise absent
        return found

    async def remove(self, group: str, name: str, absent: MagnetarError) -> None:
        """Raises `absent`."""
        await self.document(group, name, absent)
        await self.write_document(group, name, None)

    async def write_document(self, group: str, name: str, value: Any) -> None:
        """Raises LimitExceeded if a group would hold more than `DOCUMENTS_MAX`, InvalidRequest for
        an isolation policy that no decision could read."""
        if value is not None and group.startswith(f"{ISOLATION_POLICIES}/"):
            _check_isolation(name, value)

        def change(current: DocumentsRecord | None) -> DocumentsRecord | None:
            found = {**(current.documents if current is not None else {}), name: value}
            kept = {key: stored for key, stored in found.items() if stored is not None}
            if value is not None and len(kept) > DOCUMENTS_MAX:
                raise LimitExceeded(
                    f"{group}: {DOCUMENTS_MAX} are stored already; delete some first"
                )
            return DocumentsRecord(kept) if kept else None

        await self._site.change(keys.documents(group), DocumentsRecord, change)

    async def isolation_of(self, broker: str) -> dict[str, Any]:
        """The first policy that names a broker, by its address, as primary or secondary."""
        texts = {broker, broker.rpartition(":")[0]}
        for viewed in self._site.broker.views.incarnations.items.values():
            if broker in addresses_of_broker(viewed.record):
                texts.add(viewed.record.broker)
        stored = await self.documents(f"{ISOLATION_POLICIES}/{CLUSTER_NAME}")
        for policy in isolation_policies(stored):
            primary = matches(policy.primary, *texts)
            if primary or matches(policy.secondary, *texts):
                return _isolation(broker, policy.name, policy.namespaces, primary)
        return _isolation(broker, None, (), False)


def _check_isolation(name: str, policy: Any) -> None:
    """Raises InvalidRequest."""
    fault = "" if policy.get("namespaces") and policy.get("primary") else "namespaces and primary"
    try:
        if not fault and policy.get("auto_failover_policy"):
            isolation_policy(name, policy)
            return
        fault = f"it needs {fault or 'auto_failover_policy'}"
    except InvalidRequest as error:
        fault = str(error)
    raise InvalidRequest(
        f"Invalid format of input policy data. policy: {name}",
        f"{fault}: send namespaces, primary and auto_failover_policy",
    )


def _isolation(
    broker: str, policy: str | None, namespaces: Sequence[str], primary: bool
) -> dict[str, Any]:
    named = {} if policy is None else {"policyName": policy}
    return {
        "brokerName": broker,
        **named,
        "namespaceRegex": list(namespaces),
        "primary": primary,
    }
