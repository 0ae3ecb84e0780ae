"""A transaction coordinator's log.

Owns: `TransactionLog`: recovery of the incarnations before, group commit of changes, checkpoints,
what they make superfluous. Imports: storage, the claim, the core. Invariants: an incarnation writes
a checkpoint of everything the incarnations before it have acknowledged, and has it in its number's
record, before it answers anything, so the chain is always one range, of its own log; what runs
behind a change runs after the change was flushed and the claim was found; nothing is deleted that
the record, as it stands, may ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from magnetar.clock import Clock
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.errors import LimitExceeded, StorageError
from magnetar.metadata.records import RESTORE_STRIDE, CheckpointPointer, LogPosition, LogRange
from magnetar.storage import names
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.transactions.coordinator_format import CoordinatorCheckpoint, encode_changes
from magnetar.storage.transactions.coordinator_log import (
    newest_epoch,
    read_changes,
    read_state,
    write_checkpoint,
)
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.records import Change

log = structlog.get_logger(__name__)

FILE_BYTES = 16 << 20
BLOCK_BYTES_MAX = 8 << 20
CHECKPOINT_BYTES = 8 << 20
"""Bytes of log that a recovery reads, about, before a checkpoint spares it them."""


class TransactionLog:
    """The log of one incarnation of one number. `on_failed` is called once, when nothing may be
    acknowledged any more."""

    def __init__(
        self,
        volume: Volume,
        clock: Clock,
        claim: CoordinatorClaim,
        on_failed: Callable[[StorageError], object],
        *,
        file_bytes: int = FILE_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        self._volume, self._claim, self._on_failed, self._checkpoint_bytes = (
            volume,
            claim,
            on_failed,
            checkpoint_bytes,
        )
        self._writer = LogWriter(
            volume,
            clock,
            claim.incarnation,
            file_bytes=file_bytes,
            block_bytes_max=min(BLOCK_BYTES_MAX, file_bytes // 2),
            on_fenced=on_failed,
        )
        self._sequence = -1
        self._since_checkpoint = 0
        self._deferred: list[Change] = []
        self._opened = self._overrun = False

    # --- life -------------------------------------------------------------------------------------

    async def recover(self, core: CoordinatorCore) -> None:
        """Bring `core` to where the incarnations before have left the number, and open our own log;
        `claim.settle` must follow.

        Raises StorageError; CorruptData names what is damaged or missing.
        """
        claim, record = self._claim, self._claim.record
        assert record is not None, "the number is held first"
        newest = await newest_epoch(self._volume, claim.tcid)
        if newest >= claim.epoch:
            raise StorageError(
                f"transaction coordinator {claim.tcid}: the metadata store gives it epoch "
                f"{claim.epoch}, storage has seen {newest} "
                f"(restore number {newest // RESTORE_STRIDE}): an older store was put back; run "
                "`magnetar metadata restore --in-place`"
            )
        if record.checkpoint is not None:
            core.restore(await read_state(self._volume, record.checkpoint))
        count = 0
        async for change in read_changes(self._volume, claim.tcid, record.chain):
            core.apply(change)
            count += 1
        await self._writer.open()
        self._opened = True
        pointer, chain = await self._write_checkpoint(core)
        claim.begin_log(pointer, chain)
        log.info(
            "coordinator.recovered",
            tcid=claim.tcid,
            epoch=claim.epoch,
            changes=count,
            live=core.live,
            outcomes=core.outcomes,
        )

    async def close(self) -> None:
        """Flush and seal; failures go to `on_failed`."""
        if self._opened:
            self._opened = False
            if self._deferred and not self._writer.fenced:
                self.append((), None)
            await self._writer.close()

    async def check_claim(self) -> None:
        """For an incarnation that has nothing to write. Raises Fenced."""
        await self._writer.check_claim()

    # --- changes ----------------------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """Where the next block goes."""
        return self._writer.position

    @property
    def since_checkpoint(self) -> int:
        """Bytes that a recovery would read behind the last checkpoint."""
        return self._since_checkpoint

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for a flush."""
        return self._writer.pending_bytes

    def when_at_most(self, pending_bytes: int, go_on: Callable[[], object]) -> None:
        """Call `go_on` once no more than so many bytes wait for a flush, or will ever be
        flushed."""
        self._writer.when_at_most(pending_bytes, go_on)

    def defer(self, changes: Sequence[Change]) -> None:
        """Append these with the next ones: no caller waits for them."""
        self._deferred += changes

    def append(self, changes: Sequence[Change], on_durable: Callable[[], object] | None) -> None:
        """Append changes, perhaps none; `on_durable` runs once everything appended up to here is
        durable, in the order of the calls."""
        if self._overrun:
            return
        if self._deferred:
            changes = (*self._deferred, *changes)
            self._deferred.clear()
        after = (lambda _place: on_durable()) if on_durable is not None else None
        try:
            if not changes:
                self._writer.append((), 0, 0, after)
                return
            encoded = encode_changes(self._claim.epoch, self._claim.tcid, changes)
            self._writer.append(encoded.buffers, encoded.size, len(changes), after)
            self._since_checkpoint += encoded.size
        except LimitExceeded as error:
            # The core has these changes already, so nothing may follow them: the next incarnation
            # begins with what is durable.
            self._overrun = True
            self._on_failed(
                StorageError(f"transaction coordinator {self._claim.tcid} cannot keep up: {error}")
            )

    # --- checkpoints ------------------------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """Whether so much was written that a recovery should not read all of it."""
        return self._since_checkpoint >= self._checkpoint_bytes

    async def checkpoint(self, core: CoordinatorCore) -> None:
        """Spare the next incarnation the replay of what was written so far. Raises Fenced, StorageError,
        StoreError."""
        pointer, chain = await self._write_checkpoint(core)
        await self._claim.point(pointer, chain)
        await self.tidy()

    async def _write_checkpoint(
        self, core: CoordinatorCore
    ) -> tuple[CheckpointPointer, tuple[LogRange, ...]]:
        position, claim = self._writer.position, self._claim
        written, self._sequence = self._since_checkpoint, self._sequence + 1
        # Everything before `position` is in the state, and what is on its way as well: applied
        # again it changes nothing.
        found = CoordinatorCheckpoint(
            claim.tcid, claim.epoch, claim.incarnation, position, core.state()
        )
        name = await write_checkpoint(self._volume, found, self._sequence)
        self._since_checkpoint -= written
        return CheckpointPointer(name, claim.incarnation, position), (
            LogRange(claim.incarnation, position, None),
        )

    async def tidy(self) -> None:
        """Delete what the record, as this incarnation has written it, does not need; what cannot be
        deleted now goes with the next checkpoint."""
        try:
            await self._delete_superseded()
        except StorageError as error:
            log.warning("coordinator.cleanup_delayed", tcid=self._claim.tcid, error=str(error))

    async def _delete_superseded(self) -> None:
        """Older checkpoints, and files of our own log. Raises StorageError."""
        record = self._claim.record
        assert record is not None, "only a holder has a log"
        if record.checkpoint is None or record.checkpoint.incarnation != self._claim.incarnation:
            return
        for name in await self._volume.list(names.coordinator_checkpoints(self._claim.tcid)):
            if name < record.checkpoint.object:
                await self._volume.remove(name)
        incarnation, first = self._claim.incarnation, record.checkpoint.position.file
        for name in await self._volume.list(names.logs_of(incarnation)):
            number = names.index_number(name)  # the last that is made of a file
            if number is not None and number < first:
                for part in (names.log_file, names.sealed, names.index):
                    await self._volume.remove(part(incarnation, number))
