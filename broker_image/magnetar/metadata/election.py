"""Electing a leader, and acting only as the one elected.

Owns: `Election` and the record of a leader. Imports: asyncio, contextlib, structlog, clock, errors,
records, store. Invariants: at most one candidate's `guard` holds at any revision, because the term
is the leader key's mod_revision; a leader that puts the guard into each of its transactions changes
nothing after its term, however late it learns that it ended.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from magnetar.clock import Clock
from magnetar.errors import Compacted, StoreUnavailable
from magnetar.metadata.codec import Record
from magnetar.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put

RETRY_S_MIN, RETRY_S_MAX = 0.1, 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderRecord(Record):
    """Value of a leader key; `candidate` names the process (for a broker: its incarnation)."""

    candidate: str


class Election:
    """One candidate for the term kept under `key`, bound to `lease` (0: a term that only a
    successor ends).

    A candidate name must not be shared by two live processes: a term found under one's own name is
    taken over at once.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, key: str, candidate: str, lease: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._lease = lease
        self._value = LeaderRecord(candidate).encode()
        self._term = 0

    @property
    def term(self) -> int:
        """mod_revision of the key as this candidate wrote it; 0 while it does not lead as far as
        it knows."""
        return self._term

    def guard(self) -> Compare:
        """The condition to put into every transaction made as the leader: it fails once the term
        is over."""
        assert self._term, "only an elected leader has a guard"
        return Compare(self._key, "mod", "=", self._term)

    async def current(self) -> tuple[str, int] | None:
        """Candidate and term of the present leader, or None. Raises StoreUnavailable."""
        item = await self._store.get(self._key)
        return (LeaderRecord.decode(item.value).candidate, item.mod_revision) if item else None

    async def campaign(self) -> int:
        """Wait until elected; returns the term.

        Raises LeaseLost when this candidate's lease is gone; waits while the store is unavailable.
        """
        while True:
            try:
                item, revision = await self._read()
                if item is None or item.value == self._value:
                    if await self._take(item):
                        return self._term
                    continue
                await self._wait_until_changed(revision)
            except StoreUnavailable as error:
                # A lost answer may have been a victory: the next round's read shows.
                log.info("election waits for the metadata store", key=self._key, error=str(error))
                await asyncio.sleep(self._clock.uniform(RETRY_S_MIN, RETRY_S_MAX))

    async def seize(self) -> int:
        """Take the term from any holder; returns the new term.

        For a caller whose leadership was decided elsewhere (the operator's Kubernetes Lease) and
        which must end its predecessor's term. Raises StoreUnavailable (then call again: a term won
        unseen is simply replaced) and LeaseLost.
        """
        while not await self._take(await self._store.get(self._key)):
            pass
        return self._term

    async def _take(self, item: KeyValue | None) -> bool:
        """Begin a term that replaces `item`, unless the key has changed since."""
        if (
            item is not None
            and item.value == self._value
            and item.lease == self._lease
            and self._lease
        ):
            self._term = item.mod_revision
            return True
        unchanged = Compare(self._key, "mod", "=", item.mod_revision if item else 0)
        result = await self._store.transact(
            (unchanged,), (Put(self._key, self._value, self._lease),)
        )
        if result.succeeded:
            self._term = result.revision
            log.info("term begins", key=self._key, term=self._term)
        return result.succeeded

    async def lost(self) -> str:
        """Wait until this candidate's term has ended; returns the reason.

        Does not end while the store is unavailable: the guard decides.
        """
        assert self._term, "only an elected leader can lose"
        while True:
            try:
                item, revision = await self._read()
                if item is None or item.mod_revision != self._term:
                    break
                await self._wait_until_changed(revision)
            except StoreUnavailable:
                await asyncio.sleep(self._clock.uniform(RETRY_S_MIN, RETRY_S_MAX))
        ended, self._term = self._term, 0
        reason = (
            "another candidate took it"
            if item
            else "the key is gone (lease expired or term resigned)"
        )
        log.info("term ends", key=self._key, term=ended, reason=reason)
        return f"term {ended} of {self._key!r} has ended: {reason}"

    async def _read(self) -> tuple[KeyValue | None, int]:
        """The key, and the revision as of which this is it: the one of a term may have been
        compacted since long."""
        found = await self._store.range(self._key)
        return next((item for item in found.items if item.key == self._key), None), found.revision

    async def _wait_until_changed(self, revision: int) -> None:
        """Return once the key has a change after `revision`, or when only a fresh read can show
        it."""
        try:
            async with aclosing(self._store.watch(self._key, revision + 1)) as watch:
                async for batch in watch:
                    if any(event.key == self._key for event in batch.events):
                        return
        except Compacted:
            return

    async def resign(self) -> None:
        """End this candidate's term, if it still has it. Raises StoreUnavailable (the lease's
        end then does it)."""
        if self._term:
            guard, self._term = self.guard(), 0
            await self._store.transact((guard,), (Delete(self._key),))
