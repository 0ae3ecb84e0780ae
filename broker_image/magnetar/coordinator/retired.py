"""Numbers (TCIDs) that are released, or about to be.

Owns: what the first coordinator answers for numbers without a holder, and how one that retires has
another begin a transaction. Imports: claims and records, the core, storage, client (connections).
Clients learn the number of coordinators once. Invariants: only a number that is neither announced
nor held is answered for, from its own checkpoint and log, in which nothing is written; an
incarnation that did not give its number back (its process died, or was stopped and wakes up) is
fenced before what it has left is believed; no other process ends what has not ended; a transaction
is begun by a number that says so itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from magnetar.client.connection import Credentials
from magnetar.client.failures import failure_of
from magnetar.client.pool import Pool
from magnetar.clock import Clock, elapsed_ms
from magnetar.coordinator.identity import check_coordinator
from magnetar.errors import MagnetarError, Retry, TransactionCoordinatorNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import (
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
)
from magnetar.metadata.store import MetadataStore
from magnetar.network import Network
from magnetar.storage.transactions.coordinator_log import read_changes, read_state
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import Answer, EndRequested, JoinRequested, Write
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests

if TYPE_CHECKING:
    from magnetar.hosting.tls import TlsPort


READ_MAX = 4
"""Numbers whose transactions are kept in memory; those of any other one are read again on
request."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a number has left, as of a `revision` of its record; `read_ms` is `elapsed_ms`."""

    revision: int
    core: CoordinatorCore
    read_ms: int


class RetiredNumbers:
    """Answers for numbers that are not there any more."""

    def __init__(self, store: MetadataStore, volume: Volume, clock: Clock, limits: Limits) -> None:
        self._store, self._volume, self._clock, self._limits = store, volume, clock, limits
        self._read: OrderedDict[int, _Read] = OrderedDict()
        self._reading: dict[int, asyncio.Lock] = {}

    async def check(self, tcid: int) -> tuple[int, CoordinatorRecord]:
        """The record of a number that is answered for here, and its revision. Raises
        TransactionCoordinatorNotFound, StoreError."""
        # The record first: the holder it names had a claim, which never comes back, so without a claim
        # now none of them serves any more.
        item = await self._store.get(keys.coordinator(tcid))
        claims = (await self._store.range(keys.COORDINATOR_CLAIMS)).items
        known = await self._store.get(keys.COORDINATOR_SET)
        announced = CoordinatorSetRecord.decode(known.value).announced if known is not None else 0
        if (
            tcid < announced
            or item is None
            or any(claim.key == keys.coordinator_claim(tcid) for claim in claims)
        ):
            raise TransactionCoordinatorNotFound(
                f"transaction coordinator {tcid} is not served here; look it up again"
            )
        return item.mod_revision, CoordinatorRecord.decode(item.value)

    async def ask(self, tcid: int, event: EndRequested | JoinRequested) -> None:
        """What is known of a transaction that has ended. Raises what the number itself would,
        TransactionCoordinatorNotFound, StorageError."""
        core = await self.core_of(tcid)
        if core.is_live(event.least):
            raise TransactionCoordinatorNotFound(
                f"transaction {TxnId(tcid, event.least)} has not ended, and its coordinator is "
                "gone; it must come back to end it"
            )
        for effect in core.handle(event):
            assert isinstance(effect, Write), effect
            assert not effect.changes, "nothing changes that has ended"
            for answer in effect.then:
                if isinstance(answer, Answer) and answer.error is not None:
                    raise answer.error

    async def core_of(self, tcid: int) -> CoordinatorCore:
        """Everything that a number has left; only to be looked at. Raises NotAllowed,
        TransactionCoordinatorNotFound, StorageError, StoreError."""
        check_coordinator(tcid)
        async with self._reading.setdefault(tcid, asyncio.Lock()):
            held = self._read.pop(tcid, None)  # one that is served again is not kept
            revision, record = await self.check(tcid)
            if held is None or held.revision != revision:
                held = _Read(revision, await self._recovered(tcid, record), elapsed_ms(self._clock))
            # its clock does not run by itself
            held.core.forget(held.core.seen_ms + elapsed_ms(self._clock) - held.read_ms)
            self._read[tcid] = held  # the last one that was used
            if len(self._read) > READ_MAX:
                self._read.popitem(last=False)
            return held.core

    async def _recovered(self, tcid: int, record: CoordinatorRecord) -> CoordinatorCore:
        core = CoordinatorCore(tcid, self._limits)
        if record.checkpoint is not None:
            core.restore(await read_state(self._volume, record.checkpoint))
        async for change in read_changes(self._volume, tcid, record.chain):
            core.apply(change)
        core.recovered(core.seen_ms)
        return core


PRINCIPALS_MAX = 100
"""Owners of transactions that connections to other coordinators are kept for."""


class OtherCoordinators:
    """Coordinators that begin transactions, for one that does not any more; what they begin is
    its client's, not ours."""

    def __init__(
        self,
        store: MetadataStore,
        network: Network,
        credentials: Credentials,
        timeout_s: float,
        tls: TlsPort | None = None,
    ) -> None:
        self._store, self._network, self._credentials = store, network, credentials
        self._timeout_s, self._tls = timeout_s, tls
        self._pools: dict[str, Pool] = {}

    async def begin(self, own: int, timeout_ms: int, principal: str) -> TxnId:
        """A transaction of another number than `own`, which `principal` owns.

        Raises the last refusal, TransactionCoordinatorNotFound if there is no other.
        """
        known = await self._store.get(keys.COORDINATOR_SET)
        limit = CoordinatorSetRecord.decode(known.value).limit if known is not None else 0
        refused: MagnetarError = TransactionCoordinatorNotFound(
            f"transaction coordinator {own} is retiring and begins no more transactions, and no "
            "other one is there"
        )
        for item in (await self._store.range(keys.COORDINATOR_CLAIMS)).items:
            tcid = int(item.key.removeprefix(keys.COORDINATOR_CLAIMS))
            if tcid != own and tcid < limit:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        claim = CoordinatorClaimRecord.decode(item.value)
                        return await self._ask(claim.service_url, tcid, timeout_ms, principal)
                except OSError as error:  # no answer in time, or no file of the authority
                    refused = TransactionCoordinatorNotFound(
                        f"transaction coordinator {tcid} is not reached: {error!r}"
                    )
                except MagnetarError as error:
                    if error.retry is Retry.NEVER:
                        raise
                    refused = error
        raise refused

    async def close(self) -> None:
        """Close every connection."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.close()

    async def _ask(self, url: str, tcid: int, timeout_ms: int, principal: str) -> TxnId:
        pool = self._pools.pop(principal, None)
        if pool is None:
            pool = Pool(
                self._network, url, replace(self._credentials, original=principal), self._timeout_s
            )
        self._pools[principal] = pool  # the last one that was used
        if len(self._pools) > PRINCIPALS_MAX:
            await self._pools.pop(next(iter(self._pools))).close()
        pool.begin_at(url, self._tls.to_peers() if self._tls is not None else None)
        connection = await pool.get(pool.assigned(url, False))
        number = pool.next_request_id()
        body = (
            await connection.request(number, requests.new_txn(number, tcid, timeout_ms))
        ).new_txn_response
        if body.HasField("error"):
            raise failure_of(body.error, body.message)
        return TxnId(body.txnid_most_bits, body.txnid_least_bits)
