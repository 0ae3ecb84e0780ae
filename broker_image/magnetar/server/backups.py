"""Copies of the metadata store, made by the leader.

Owns: when a copy is written into storage. Imports: metadata, storage.
Invariants: nothing is written while nothing durable has changed; a copy that fails is tried again in the next round.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from magnetar.metadata import keys
from magnetar.metadata.backup import read_backup
from magnetar.server.context import BrokerContext
from magnetar.storage.backups import keep_backup

log = structlog.get_logger(__name__)


class MetadataBackups:
    """Called in every round of a leader's maintenance."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._due = 0.0
        self._last: Mapping[str, bytes] | None = None

    async def keep_up(self) -> None:
        """Copy the store if it is time and it has changed. Raises StoreError, StorageError."""
        context, now = self._context, self._context.clock.monotonic()
        if now < self._due:
            return
        backup = await read_backup(context.store, context.clock.wall_ms())
        contents = {key: value for key, value in backup.items.items() if key != keys.BACKUP}
        if contents != self._last:
            name = await keep_backup(context.store, context.volume, backup, context.settings.metadata_backups_kept)
            log.info("metadata.backup", object=name or "a newer one is there", keys=len(contents))
        self._last = contents
        self._due = now + context.settings.metadata_backup_interval_s
