"""Holding a transaction coordinator's number (TCID).

Owns: `CoordinatorClaim`: taking a number under a lease, keeping its durable record, announcing it
to clients, giving it back. Imports: metadata, errors, clock. Invariants: a number has one holder,
whose epoch is higher than that of every holder before it; each change of the record compares that
no process has taken the number since, so a former holder changes nothing; a holder says Serving
only in the transaction that finds its number below the set's limit, so a reader of Retiring or
Released, after the limit was lowered, knows that nothing is begun any more; numbers are announced
in order; an incarnation's log is in the record before, or with, its state Serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import structlog

from magnetar import __version__
from magnetar.clock import Clock
from magnetar.coordinator.identity import CoordinatorIdentity
from magnetar.errors import Compacted, Fenced
from magnetar.metadata import keys
from magnetar.metadata.records import (
    COORDINATORS_MAX,
    RESTORE_STRIDE,
    CheckpointPointer,
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
    CoordinatorState,
    ListenerAddress,
    LogRange,
)
from magnetar.metadata.store import Compare, Delete, KeyValue, MetadataStore, Operation, Put

log = structlog.get_logger(__name__)

UNLIMITED = CoordinatorSetRecord(limit=COORDINATORS_MAX, announced=0)
"""What holds while no operator has said anything."""


class CoordinatorClaim:
    """One incarnation's claim of one number. `restore` is the cluster's restore number."""

    def __init__(
        self, store: MetadataStore, clock: Clock, identity: CoordinatorIdentity, restore: int
    ) -> None:
        self._store, self._clock, self._identity, self._restore = store, clock, identity, restore
        self._revision = 0
        self._seen = self._set_revision = 0
        self._settling = asyncio.Lock()
        self._begins = False
        self._log: tuple[CheckpointPointer, tuple[LogRange, ...]] | None = None
        self._held: tuple[CoordinatorClaimRecord, int] | None = None
        """What says where the number is served, and the lease that it is bound to."""
        self.record: CoordinatorRecord | None = None

    @property
    def tcid(self) -> int:
        return self._identity.tcid

    @property
    def incarnation(self) -> str:
        return self._identity.incarnation

    @property
    def epoch(self) -> int:
        """Of this incarnation; 0 while it holds nothing."""
        return self.record.epoch if self.record is not None else 0

    @property
    def settled(self) -> bool:
        """Whether this incarnation holds its number and has said what it does with it."""
        return self.record is not None and self.record.state in (
            CoordinatorState.SERVING,
            CoordinatorState.RETIRING,
        )

    async def acquire(self, lease: int) -> None:
        """Take the number as soon as it has no holder. Raises StoreError."""
        while True:
            found = await self._store.range(keys.coordinator_claim(self.tcid))
            held = _exact(found.items, keys.coordinator_claim(self.tcid))
            if held is not None:
                holder = CoordinatorClaimRecord.decode(held.value)
                log.info(
                    "coordinator.waits",
                    tcid=self.tcid,
                    holder=holder.incarnation,
                    url=holder.service_url,
                )
                await self._freed(found.revision)
            elif await self._take(lease):
                log.info(
                    "coordinator.claimed",
                    tcid=self.tcid,
                    epoch=self.epoch,
                    incarnation=self._identity.incarnation,
                )
                return

    @property
    def begins(self) -> bool:
        """Whether transactions may begin: from before a record says that they do not, until one
        says that they do."""
        return self._begins

    async def settle(self, open_transactions: Callable[[], int]) -> None:
        """Serve or retire as the set's limit says, and announce the number when it is its turn;
        nothing is written that stands there already.

        `open_transactions` is asked when no more begin, if that is what will be written. Raises
        Fenced if another process has taken the number, StoreError.
        """
        async with self._settling:
            await self._settle(open_transactions)
            assert self.record is not None, "only a holder settles"
            self._begins = self.record.state is CoordinatorState.SERVING

    async def _settle(self, open_transactions: Callable[[], int]) -> None:
        while True:
            found = await self._store.range(keys.COORDINATOR_SET)
            item = _exact(found.items, keys.COORDINATOR_SET)
            known = CoordinatorSetRecord.decode(item.value) if item is not None else UNLIMITED
            self._seen, self._set_revision = (
                found.revision,
                item.mod_revision if item is not None else 0,
            )
            if self.tcid >= known.limit:
                self._begins = False
            operations = self._settlement(known, open_transactions())
            unchanged = Compare(keys.COORDINATOR_SET, "mod", "=", self._set_revision)
            if not operations or await self._write((unchanged,), operations):
                return

    def begin_log(self, checkpoint: CheckpointPointer, chain: tuple[LogRange, ...]) -> None:
        """From here on the record names these; the next `settle` writes them, before this
        incarnation answers anything."""
        self._log = checkpoint, chain

    async def point(self, checkpoint: CheckpointPointer, chain: tuple[LogRange, ...]) -> None:
        """Replace how to recover this number's transactions. Raises Fenced if another process has
        taken the number, StoreError."""
        assert self.record is not None, "only a holder has a log"
        self._log = checkpoint, chain
        while (self.record.checkpoint, self.record.chain) != self._log:
            record = self._changed(self.record.state, self.record.open_transactions)
            await self._write((), [Put(keys.coordinator(self.tcid), record.encode())])

    async def advertise(self, listeners: Mapping[str, ListenerAddress]) -> None:
        """Advertise these addresses to clients of these listeners. Raises Fenced if another
        process has taken the number, StoreError."""
        assert self._held is not None, "only a holder is served anywhere"
        claim, lease = replace(self._held[0], listeners=dict(listeners)), self._held[1]
        while self._held[0] != claim:
            if await self._write(
                (), [Put(keys.coordinator_claim(self.tcid), claim.encode(), lease)]
            ):
                self._held = claim, lease

    async def release(self, open_transactions: int) -> None:
        """Give the number back at once. Raises Fenced if it was taken already, StoreError."""
        assert self.record is not None, "only a holder has something to give back"
        while self.record.state is not CoordinatorState.RELEASED:
            operations: list[Operation] = [Delete(keys.coordinator_claim(self.tcid))]
            # who has not looked into its log yet leaves the record as the incarnation before wrote
            # it
            if self.settled:
                record = self._changed(CoordinatorState.RELEASED, open_transactions)
                operations.append(Put(keys.coordinator(self.tcid), record.encode()))
            if await self._write((), operations):
                return

    async def set_changed(self) -> None:
        """Wait until the set's record is another than `settle` has seen. Raises StoreError."""
        try:
            async with aclosing(self._store.watch(keys.COORDINATOR_SET, self._seen + 1)) as watch:
                async for batch in watch:
                    if any(event.key == keys.COORDINATOR_SET for event in batch.events):
                        return
        except Compacted:
            return  # that long ago: look again

    # --- steps ------------------------------------------------------------------------------------

    async def _freed(self, revision: int) -> None:
        """Wait until the claim that was there at `revision` is gone. Raises StoreError."""
        key = keys.coordinator_claim(self.tcid)
        try:
            async with aclosing(self._store.watch(key, revision + 1)) as watch:
                async for batch in watch:
                    if any(event.key == key and event.value is None for event in batch.events):
                        return
        except Compacted:
            return

    async def _take(self, lease: int) -> bool:
        """Take the number if it is still free. Raises StoreError."""
        key, claim_key = keys.coordinator(self.tcid), keys.coordinator_claim(self.tcid)
        item = await self._store.get(key)
        before = CoordinatorRecord.decode(item.value) if item is not None else None
        # Records do not survive the loss of a store, but every store that follows has a higher
        # restore number.
        epoch = max(before.epoch if before is not None else 0, self._restore * RESTORE_STRIDE) + 1
        record = CoordinatorRecord(self._identity.incarnation, epoch, CoordinatorState.RECOVERING)
        if before is not None:
            record = replace(
                before,
                incarnation=self._identity.incarnation,
                epoch=epoch,
                state=CoordinatorState.RECOVERING,
            )
        claim = CoordinatorClaimRecord(
            incarnation=self._identity.incarnation,
            epoch=epoch,
            name=self._identity.name,
            service_url=self._identity.service_url,
            http_url=self._identity.http_url,
            service_url_tls=self._identity.service_url_tls,
            http_url_tls=self._identity.http_url_tls,
            listeners=dict(self._identity.listeners),
            started_ms=self._clock.wall_ms(),
            version=__version__,
        )
        compares = [
            Compare(claim_key, "create", "=", 0),
            Compare(key, "mod", "=", item.mod_revision if item is not None else 0),
        ]
        result = await self._store.transact(
            compares, [Put(key, record.encode()), Put(claim_key, claim.encode(), lease)]
        )
        if result.succeeded:
            self.record, self._revision = record, result.revision
            self._held = claim, lease
        return result.succeeded

    def _settlement(self, known: CoordinatorSetRecord, open_transactions: int) -> list[Operation]:
        """What must be written so that record and set say what is."""
        serves = self.tcid < known.limit
        record = self._changed(
            CoordinatorState.SERVING if serves else CoordinatorState.RETIRING, open_transactions
        )
        operations: list[Operation] = []
        if record != self.record:
            operations.append(Put(keys.coordinator(self.tcid), record.encode()))
        if serves and known.announced == self.tcid:
            announced = CoordinatorSetRecord(known.limit, self.tcid + 1, known.owner)
            operations.append(Put(keys.COORDINATOR_SET, announced.encode()))
        return operations

    async def _write(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        """Write if this incarnation still holds the number and `compares` hold; False if they
        did not. Raises Fenced, StoreError."""
        key = keys.coordinator(self.tcid)
        result = await self._store.transact(
            [Compare(key, "mod", "=", self._revision), *compares], operations
        )
        if not result.succeeded:
            item = _exact(result.current, key)
            current = CoordinatorRecord.decode(item.value) if item is not None else None
            if item is None or current is None or current.incarnation != self._identity.incarnation:
                raise Fenced(
                    f"transaction coordinator {self.tcid} has another holder: "
                    f"{current.incarnation if current else 'none'}"
                )
            # A write of ours may have been carried out although its answer was lost.
            self.record, self._revision = current, item.mod_revision
            return False
        for operation in operations:
            if operation.key == key and isinstance(operation, Put):
                self.record, self._revision = (
                    CoordinatorRecord.decode(operation.value),
                    result.revision,
                )
                log.info(
                    "coordinator.settled",
                    tcid=self.tcid,
                    epoch=self.epoch,
                    state=str(self.record.state),
                )
        return True

    def _changed(self, state: CoordinatorState, open_transactions: int) -> CoordinatorRecord:
        assert self.record is not None, "only a holder has a record"
        checkpoint, chain = self._log or (self.record.checkpoint, self.record.chain)
        return replace(
            self.record,
            state=state,
            open_transactions=open_transactions,
            checkpoint=checkpoint,
            chain=chain,
        )


def _exact(items: tuple[KeyValue, ...], key: str) -> KeyValue | None:
    """The item of exactly that key: 1 is a prefix of 10."""
    return next((item for item in items if item.key == key), None)
