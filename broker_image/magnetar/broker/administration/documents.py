"""Stored documents.

Owns: groups of documents that administrators store and read back. Imports: metadata, errors.
Invariant: one group is one record and holds at most `DOCUMENTS_MAX`.
"""

from __future__ import annotations

from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.errors import LimitExceeded
from magnetar.metadata import keys
from magnetar.metadata.records import DocumentsRecord

DOCUMENTS_MAX = 1000
"""Documents of one group, which are one record."""


class Documents:
    """Stored documents by group."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def documents(self, group: str) -> dict[str, Any]:
        item = await self._site.broker.context.store.get(keys.documents(group))
        return dict(DocumentsRecord.decode(item.value).documents) if item is not None else {}

    async def write_document(self, group: str, name: str, value: Any) -> None:
        """Raises LimitExceeded if a group would hold more than `DOCUMENTS_MAX`."""

        def change(current: DocumentsRecord | None) -> DocumentsRecord | None:
            found = {**(current.documents if current is not None else {}), name: value}
            kept = {key: stored for key, stored in found.items() if stored is not None}
            if value is not None and len(kept) > DOCUMENTS_MAX:
                raise LimitExceeded(
                    f"{group}: {DOCUMENTS_MAX} are stored already; delete some first"
                )
            return DocumentsRecord(kept) if kept else None

        await self._site.change(keys.documents(group), DocumentsRecord, change)
