"""A warm copy of the records below one prefix of a cluster's store.

Owns: the copy, its watch, reporting changes, and whether the store answered. Imports: asyncio,
clock, magnetar.metadata. Invariants: a record is only ever replaced by a younger one; what this
process has just written or read itself is known immediately; every change is reported once, however
it was learned of first (by the watch, the answer to a write, a read); a write is guarded by the
revision that the view showed, so a view that lags behind costs another try, never a wrong write;
what a watch might have missed is found by reading everything again now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from magnetar.clock import Clock
from magnetar.errors import Compacted, StoreError
from magnetar.metadata.store import (
    Delete,
    Event,
    KeyValue,
    MetadataStore,
    Operation,
    Put,
    RangeResult,
)

log = structlog.get_logger(__name__)

RELOAD_S = 300.0
RETRY_MIN_S, RETRY_MAX_S = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """One record that is not as it was; None = absent."""

    key: str
    old: bytes | None
    new: bytes | None
    ours: bool = False
    """Whether this process wrote it."""


class RecordView:
    """Records below `prefix`. Reading is free; `run` keeps it warm."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        changed: Callable[[Change], None],
        clock: Clock,
        asked: Callable[[StoreError | None], None] = lambda _: None,
    ) -> None:
        """`asked` is called after every attempt to read everything, with the error if it failed."""
        self._store, self._prefix, self._changed, self._clock, self._asked = (
            store,
            prefix,
            changed,
            clock,
            asked,
        )
        self._records: dict[str, KeyValue] = {}
        self._doubtful: set[str] = set()
        self._own: dict[str, bytes | None] = {}
        self._shown_at = 0
        """The newest revision that a range or the watch has shown; 0 = none yet."""

    def knows(self, key: str) -> bool:
        """Whether `get` may be asked for this key."""
        return self._shown_at > 0 and key.startswith(self._prefix) and key not in self._doubtful

    def get(self, key: str) -> KeyValue | None:
        """The record as it was last known."""
        return self._records.get(key)

    def doubt(self, keys: Iterable[str]) -> None:
        """Another reader has seen other values of these keys: have them read from the store
        until they are known again."""
        for key in keys:
            if key.startswith(self._prefix):
                self._doubtful.add(key)
                self._own.pop(key, None)

    def read(self, key: str, item: KeyValue | None) -> None:
        """Take in what was just read from the store itself; one that is absent stays doubtful:
        the watch may still have to show what came before its deletion."""
        if item is not None and key.startswith(self._prefix):
            self._doubtful.discard(key)
            self._take_newer(item, ours=False)

    def writing(self, operations: Iterable[Operation]) -> None:
        """This process sends these changes now: the watch may show them before the answer is
        here, and they are private to it."""
        for operation in operations:
            if operation.key.startswith(self._prefix):
                self._own[operation.key] = operation.value if isinstance(operation, Put) else None

    def wrote(self, operations: Iterable[Operation], revision: int) -> None:
        """Take in what this process wrote in the transaction of that revision."""
        for operation in operations:
            if not operation.key.startswith(self._prefix):
                continue
            if isinstance(operation, Put):
                self._doubtful.discard(operation.key)
                item = KeyValue(operation.key, operation.value, revision, revision, 1)
                self._take_newer(item, ours=True)
            elif isinstance(operation, Delete):
                self._doubtful.add(operation.key)  # as what was read to be absent

    async def run(self) -> None:
        """Keep the copy warm, until cancelled."""
        delay_s, words = RETRY_MIN_S, ""
        while True:
            try:
                found = await self._range()
                delay_s, words = RETRY_MIN_S, ""
                async with asyncio.timeout(RELOAD_S * self._clock.uniform(0.8, 1.2)):
                    await self._follow(found.revision + 1)
            except (TimeoutError, Compacted):
                continue
            except StoreError as error:
                if str(error) != words:
                    words = str(error)
                    log.warning("view.interrupted", prefix=self._prefix, error=words)
                await asyncio.sleep(delay_s * self._clock.uniform(0.7, 1.0))
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _range(self) -> RangeResult:
        """Read everything. Raises StoreError."""
        try:
            found = await self._store.range(self._prefix)
        except StoreError as error:
            self._asked(error)
            raise
        self._load(found)
        self._asked(None)
        return found

    async def _follow(self, revision: int) -> None:
        async with aclosing(self._store.watch(self._prefix, revision)) as batches:
            async for batch in batches:
                for event in batch.events:
                    self._take(event)

    def _load(self, found: RangeResult) -> None:
        """Everything as of one revision. Younger records are our own writes made since, unless
        the store itself has gone back in time."""
        before, self._records = self._records, {item.key: item for item in found.items}
        first, went_back = self._shown_at == 0, found.revision < self._shown_at
        self._shown_at = found.revision
        self._doubtful.clear()
        for key, old in before.items():
            if old.mod_revision > found.revision and not went_back:
                self._records[key] = old
            elif key not in self._records:
                self._report(key, old, None, ours=False)
        for key, new in self._records.items():
            if not first or key in before:  # what was never asked for is no news
                self._report(key, before.get(key), new, ours=False)

    def _take(self, event: Event) -> None:
        key, old = event.key, self._records.get(event.key)
        self._shown_at = max(self._shown_at, event.mod_revision)
        ours = key in self._own and self._own.pop(key) == event.value
        if old is not None and event.mod_revision <= old.mod_revision:
            return
        self._doubtful.discard(key)
        if event.value is not None:
            self._take_newer(
                KeyValue(key, event.value, event.create_revision, event.mod_revision, 1), ours
            )
        elif old is not None:
            del self._records[key]
            self._report(key, old, None, ours)

    def _take_newer(self, item: KeyValue, ours: bool) -> None:
        """Replace a record by `item`, if that is newer."""
        old = self._records.get(item.key)
        if old is None or old.mod_revision < item.mod_revision:
            self._records[item.key] = item
            if self._shown_at or old is not None:
                self._report(item.key, old, item, ours)

    def _report(self, key: str, old: KeyValue | None, new: KeyValue | None, ours: bool) -> None:
        change = Change(
            key,
            old.value if old is not None else None,
            new.value if new is not None else None,
            ours,
        )
        if change.old != change.new:
            self._changed(change)
