"""New epochs for bundles that run out of ledger ids.

Owns: `Renewals`: the unloading of bundles whose term has few ledger ids left. Imports: bundle,
topics.ledger_ids. Invariant: a bundle is unloaded once at a time, as by an administrator; its next
owner has a new epoch, and with it all ledger ids. An unload that failed is repeated with the next
ledger id that is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.hosting.shared_task import cancel_all
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)

REASON = "few ledger ids of its epoch are left"
Unload = Callable[[str, str], Coroutine[Any, Any, None]]
"""Unload a bundle, for this reason; does not raise."""


class Renewals:
    """Unloads of bundles among those that are served here."""

    def __init__(self, owned: Mapping[str, OwnedBundle], unload: Unload) -> None:
        self._owned, self._unload = owned, unload
        self._unloading: dict[str, asyncio.Task[None]] = {}

    def ask(self, ledger_ids: LedgerIds) -> None:
        """Few of these ids are left: unload every bundle of their term."""
        for name, owned in self._owned.items():
            if owned.ledger_ids is ledger_ids and name not in self._unloading:
                log.warning("bundle.ledger_ids_low", bundle=name, epoch=ledger_ids.epoch)
                self._unloading[name] = asyncio.create_task(self._renew(name), name=f"renew {name}")

    async def _renew(self, name: str) -> None:
        try:
            await self._unload(name, REASON)
        finally:
            del self._unloading[name]

    async def stop(self) -> None:
        """Cancel what is under way."""
        await cancel_all(self._unloading.values())
