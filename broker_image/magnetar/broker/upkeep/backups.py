"""Copies of the metadata store, made by the leader.

Owns: when a copy is written into storage, and the report of it in the store. Imports: metadata,
storage. Invariants: no copy is written while nothing durable has changed; a copy that fails is
tried again in the next round; the report is written once per interval, and when a failure begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StorageError, StoreError
from magnetar.metadata import keys
from magnetar.metadata.backup import read_backup
from magnetar.metadata.records import BackupReportRecord
from magnetar.storage.restore.backups import keep_backup

log = structlog.get_logger(__name__)

PROBLEM_LENGTH_MAX = 300


class MetadataBackups:
    """Called in every round of a leader's maintenance."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._due = 0.0
        self._last: Mapping[str, bytes] | None = None
        self._report = BackupReportRecord()
        self._notified = 0.0
        context.metrics.gauge(
            "magnetar_metadata_backup_current_timestamp_seconds",
            "When this broker, as the leader, last made a copy of the metadata store or found the "
            "newest one current; 0 = never",
            lambda: self._report.current_ms / 1000,
        )

    async def keep_up(self) -> None:
        """Copy the store if it is time and it has changed. Raises StoreError, StorageError."""
        now = self._context.clock.monotonic()
        if now < self._due:
            return
        try:
            report = await self._copy()
        except (StoreError, StorageError) as error:
            interval_s = self._context.settings.metadata_backup_interval_s
            if not self._report.problem or now >= self._notified + interval_s:
                await self._inform(replace(self._report, problem=str(error)[:PROBLEM_LENGTH_MAX]))
            raise
        await self._inform(report)
        self._due = now + self._context.settings.metadata_backup_interval_s

    async def _copy(self) -> BackupReportRecord:
        """What can be said of the newest copy now. Raises StoreError, StorageError."""
        context, now_ms = self._context, self._context.clock.wall_ms()
        backup = await read_backup(context.store, now_ms)
        contents = {key: value for key, value in backup.items.items() if key != keys.BACKUP}
        report = replace(self._report, current_ms=now_ms, problem="")
        if contents != self._last:
            name = await keep_backup(
                context.store, context.volume, backup, context.settings.metadata_backups_kept
            )
            log.info("metadata.backup", object=name or "a newer one is there", keys=len(contents))
            if name is not None:
                report = replace(report, object=name, revision=backup.revision, created_ms=now_ms)
        self._last = contents
        return report

    async def _inform(self, report: BackupReportRecord) -> None:
        """Write the report that the operator reads; if the store is unavailable, the next one."""
        with contextlib.suppress(StoreError):
            await self._context.store.put(keys.BACKUP_REPORT, report.encode())
            self._report, self._notified = report, self._context.clock.monotonic()
