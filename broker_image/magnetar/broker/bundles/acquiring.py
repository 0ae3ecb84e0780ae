"""Acquiring bundles: from our Assigning record to Owned.

Owns: recovery of a bundle that was assigned to us, again after it failed, and the commit of our
term. Imports: ownership rules, recovery, siblings. Source: transition rule of PIP-192. Invariants:
nothing is replayed before the previous owner's log is sealed; a failed recovery leaves the record
Assigning and this broker alive; while Owned is being committed the log file in which our term may
begin is not collected; `append_term` is the first record of the term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.phases import Phase, advance
from magnetar.broker.bundles.preloading import Preloads
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.recovery.bundle_recovery import recover_bundle
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.bundles.recovery.retries import RecoveryRetries
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.effective_policies import EffectivePolicies
from magnetar.errors import StorageError
from magnetar.hosting.views import Viewed
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)

Make = Callable[[BundleName, LedgerIds, RecoveredBundle], OwnedBundle]
"""A bundle in the term of these ledger ids, as recovered."""


@dataclass(slots=True)
class _Acquisition:
    """A bundle on its way from the Assigning record that names us to service."""

    name: str
    assigned: Viewed[BundleRecord]
    epoch: int
    phase: Phase = Phase.ABSENT
    first_file: int = 0
    """While COMMITTING: the file of our log in which the term begins."""

    def enter(self, phase: Phase) -> None:
        self.phase = advance(self.phase, phase)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A bundle with its topics in memory, before its term."""

    owned: OwnedBundle
    recovered: RecoveredBundle
    policies: int
    kind: str


class Acquirer:
    """Acquires bundles that are assigned to this broker."""

    def __init__(
        self,
        context: BrokerContext,
        records: BundleRecords,
        served: ServedBundles,
        events: BundleEvents,
        scans: LogScans,
        policies: EffectivePolicies,
        make: Make,
    ) -> None:
        self._context, self._records, self._served, self._events = context, records, served, events
        self._scans, self._policies, self._make = scans, policies, make
        self._retries = RecoveryRetries(context)
        self._acquiring: dict[str, _Acquisition] = {}
        self.preloads = Preloads(context, records, scans)

    def is_retrying(self, name: str) -> bool:
        """Whether recovery of this bundle failed, and the next attempt is not due."""
        acquisition = self._acquiring.get(name)
        return acquisition is not None and acquisition.phase is Phase.RETRYING

    @property
    def first_file_needed(self) -> int:
        """Files of our log from this one on may be the start of a term that is about to be
        committed."""
        starts = (
            found.first_file
            for found in self._acquiring.values()
            if found.phase is Phase.COMMITTING
        )
        return min(starts, default=self._context.log.position.file)

    def give_up(self, name: str) -> bool:
        """Whether a recovery is under way for a record that has been replaced: it leads nowhere,
        however long it would take, and is to be cancelled."""
        acquisition = self._acquiring.get(name)
        if acquisition is None or acquisition.phase is not Phase.RECOVERING:
            return False
        if not self._is_stale(acquisition):
            return False
        revision = acquisition.assigned.mod_revision
        log.info("bundle.recovery_given_up", bundle=name, revision=revision)
        del self._acquiring[name]
        return True

    def _is_stale(self, acquisition: _Acquisition) -> bool:
        viewed = self._records.get(acquisition.name)
        return viewed is None or viewed.mod_revision != acquisition.assigned.mod_revision

    async def carry_out(self, name: str, assigned: Viewed[BundleRecord]) -> None:
        """From our Assigning record to Owned: fence, recover, commit."""
        acquisition = _Acquisition(name, assigned, self._records.epoch_of(assigned))
        self._acquiring[name] = acquisition
        started = self._context.clock.monotonic()
        try:
            while (ready := await self._recover(acquisition)) is None:
                if self._is_stale(acquisition):
                    return
                started = self._context.clock.monotonic()
            if await self._commit(acquisition, ready):
                self._note(acquisition, ready, self._context.clock.monotonic() - started)
        finally:
            self._acquiring.pop(name, None)
            if acquisition.phase is not Phase.SERVING:
                acquisition.enter(Phase.ABSENT)

    async def _recover(self, acquisition: _Acquisition) -> _Ready | None:
        """The bundle in memory; None after a failure and the wait that follows it."""
        acquisition.enter(Phase.RECOVERING)
        name, record = acquisition.name, acquisition.assigned.record
        bundle, ledger_ids = BundleName.parse(name), LedgerIds(acquisition.epoch)
        try:
            preloaded = await self.preloads.take(name, record)
            recovered = await recover_bundle(
                self._context, bundle, record, ledger_ids, self._scans, preloaded
            )
            policies, owned = self._policies.version, self._make(bundle, ledger_ids, recovered)
            await owned.host(recovered.topics)
        except Exception as error:
            # The record stays Assigning: the leader may place it elsewhere. Any error concerns what
            # is stored of this bundle: ending this broker would pass it on to the next one.
            acquisition.enter(Phase.RETRYING)
            await self._retries.wait(
                name,
                acquisition.epoch,
                error,
                lambda: self._events.of(name),
                lambda: self._is_stale(acquisition),
            )
            return None
        self._retries.over(name)
        kind = "takeover" if recovered.fenced else "move" if preloaded is None else "preloaded"
        return _Ready(owned, recovered, policies, kind)

    async def _commit(self, acquisition: _Acquisition, ready: _Ready) -> bool:
        """Begin our term; False if another broker changed the record, or our claim is gone."""
        acquisition.first_file = self._context.log.position.file
        acquisition.enter(Phase.COMMITTING)
        try:
            # Once we have seen the assignment: files of an incarnation that is fenced by now may be
            # collected, and our term would begin in one that is gone.
            await self._context.log.check_claim()
        except StorageError:
            return False  # which ends this incarnation
        name, assigned, epoch = acquisition.name, acquisition.assigned, acquisition.epoch
        start = self._context.log.position
        acquisition.first_file = start.file
        record = rules.own(
            assigned.record,
            self._context.incarnation,
            epoch=epoch,
            start=start,
            sealed_end=ready.recovered.sealed_end,
        )
        committed = await self._records.commit(name, assigned.mod_revision, record)
        if committed is None and not self._is_ours(name, epoch):
            log.info("bundle.acquire_lost", bundle=name, epoch=epoch)
            return False
        acquisition.enter(Phase.SERVING)
        ready.owned.append_term(record)  # before anything else of this term
        self._served.begin(ready.owned)
        if self._policies.version != ready.policies:
            ready.owned.refresh_policies()
        return True

    def _is_ours(self, name: str, epoch: int) -> bool:
        """Whether our term began though its answer was lost: a request to release it may have
        changed the record since."""
        viewed = self._records.get(name)
        if viewed is None:
            return False  # taken from us, divided, and gone
        record = viewed.record
        ours = (record.incarnation, record.epoch) == (self._context.incarnation, epoch)
        return ours and record.state is not BundleState.ASSIGNING

    def _note(self, acquisition: _Acquisition, ready: _Ready, seconds: float) -> None:
        seconds = round(seconds, 4)
        self._context.metrics.acquisitions.labels(ready.kind).inc()
        self._context.metrics.acquire_seconds.observe(seconds)
        log.info(
            "bundle.owned",
            bundle=acquisition.name,
            epoch=acquisition.epoch,
            topics=len(ready.recovered.topics),
            seconds=seconds,
            fenced=ready.recovered.fenced,
        )
