"""Brokers with transaction coordinators beside them.

Owns: `CoordinatorCluster` (the tracer's brokers and real coordinators of two numbers on simulated
ports, which are stopped, scaled down to one and up again as the operator does it), with logs and
checkpoints so small that both come within seconds. Imports: the tracer's cluster,
magnetar.coordinator. Invariants: as the tracer's cluster; a number goes only once its record says
that it begins nothing and has nothing open.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from magnetar.coordinator import incarnation as life
from magnetar.coordinator.identity import tcid_of
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.transaction_log import TransactionLog
from magnetar.errors import MagnetarError
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.metadata import keys
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.records import CoordinatorRecord, CoordinatorSetRecord, CoordinatorState
from magnetar.metadata.store import Put
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_cluster import PORT, Cluster, SimulatedUsage, small

NUMBERS = 2
COORDINATORS = ("main-coordinator-0", "main-coordinator-1", "spare-coordinator-1")
"""The last one stands for a pod that was made again while nobody knew whether the one before
still runs: two want the same number."""
LOG_FILE_BYTES = 16 << 10
CHECKPOINT_BYTES = 2 << 10
STOPPED_EVERY_S = (2.0, 12.0)
SCALED_EVERY_S = (1.0, 6.0)
RETIRING_PATIENCE_S = 6.0
OUTLIVED_EVERY_S = (2.0, 6.0)
OUTLIVED_FOR_S = (1.0, 3.0)
LOOK_S = 0.1
START_S = 20.0
ENDINGS = (
    "lease",
    "claim claims/",
    "claim: ",
    "has another holder",
    "was taken over",
    "fenced",
    "failed: EIO",
)
"""How a coordinator's life may end itself: its lease, its claim or its number is gone, or its
disk has failed."""


class CoordinatorCluster(Cluster):
    """A cluster whose brokers have coordinators of two numbers beside them."""

    def __init__(self, seed: int, history: History, faults: Faults, **settings: Any) -> None:
        transactional = {
            "transactions_enabled": 1,
            "lease_ttl_s": 2.0,
            "transaction_participant_timeout_s": 3.0,
        }
        super().__init__(
            seed, history, faults, settings=small(**{**transactional, **settings}), exercise=True
        )
        self.evidence.expected += ENDINGS
        self.coordinators: dict[str, Coordinator] = {}
        self._metrics = CoordinatorMetrics()
        self._away_from = NUMBERS

    def __enter__(self) -> CoordinatorCluster:
        super().__enter__()
        # Whatever stands there now, a planted bug included.
        log = partial(TransactionLog, file_bytes=LOG_FILE_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)
        self.patch.setattr(life, "TransactionLog", log)
        return self

    def start_all(self) -> None:
        """The first incarnation of every broker and coordinator; returns when every number has been
        announced."""
        self.start_brokers()
        self._tell_limit(NUMBERS)
        for name in COORDINATORS:
            self.node(name, self.run_coordinator, restarts=True, tolerated=(MagnetarError, OSError))
        self.run_until(lambda: self._announced() == NUMBERS, START_S)

    async def run_coordinator(self, environment: Environment) -> None:
        """One incarnation of a coordinator process, ended by its first failure. It begins once the
        number is not scaled away."""
        name = environment.name
        while tcid_of(name) >= self._away_from:
            await asyncio.sleep(LOOK_S)

        def lease(on_lost: Callable[[str], None]) -> LeaseKeeper:
            return LeaseKeeper(
                environment.store, environment.clock, self.settings.lease_ttl_s, on_lost
            )

        ports = ProcessPorts(
            environment.clock,
            environment.network,
            environment.volume,
            environment.store,
            lease,
            SimulatedUsage(),
        )
        identity = ProcessIdentity(name, name, name, PORT, http_url="")
        found = self.coordinators[name] = Coordinator(ports, identity, self.settings, self._metrics)
        try:
            await found.start()
            ended = asyncio.ensure_future(found.ended())
            leaving = asyncio.ensure_future(self._until_stopped(environment))
            await asyncio.wait([ended, leaving], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not ended.done():
                self.evidence.counts["coordinator stopped"] += 1
                await found.stop()
        finally:
            await found.close()

    async def _until_stopped(self, environment: Environment) -> None:
        """Until the pod is deleted: with its number, or now and then to be made again."""
        clock = environment.clock
        planned_s = clock.monotonic() + clock.uniform(*STOPPED_EVERY_S)
        while tcid_of(environment.name) < self._away_from and not (
            self.exercise and clock.monotonic() > planned_s
        ):
            await asyncio.sleep(LOOK_S)

    # --- the operator's part ----------------------------------------------------------------------

    async def scale_now_and_then(self, until_s: float) -> None:
        """To one coordinator, once the other one has nothing open, and back."""
        chance = random.Random(f"{self.seed}/coordinators")
        last = NUMBERS - 1
        while self.now < until_s:
            await asyncio.sleep(chance.uniform(*SCALED_EVERY_S))
            self._tell_limit(last)
            patient_until_s = min(until_s, self.now + RETIRING_PATIENCE_S)
            while self.now < patient_until_s and not self._may_go(last):
                await asyncio.sleep(LOOK_S)
            if self._may_go(last):
                self.evidence.counts["scaled down"] += 1
                self._away_from = last
                await asyncio.sleep(chance.uniform(*SCALED_EVERY_S))
            self._away_from = NUMBERS
            self._tell_limit(NUMBERS)

    async def outlive_leases(self, until_s: float) -> None:
        """Holders of a number go on when their lease has ended and another one begins: the
        store's clock is ahead, and it cannot be asked."""
        chance = random.Random(f"{self.seed}/outlived")
        while True:
            await asyncio.sleep(chance.uniform(*OUTLIVED_EVERY_S))
            if self.now >= until_s:
                return
            number = NUMBERS - 1  # a process waits for it
            holders = [
                name
                for name, found in self.coordinators.items()
                if found.ready and found.tcid == number
            ]
            for name in holders:
                self.fabric.partition(name, STORE_HOST)
                self.store.expire_leases_of(name)
                self.evidence.counts["lease outlived"] += 1
            await asyncio.sleep(chance.uniform(*OUTLIVED_FOR_S))
            for name in holders:
                self.fabric.heal(name, STORE_HOST)

    def _announced(self) -> int:
        item = self.store.core.get(keys.COORDINATOR_SET)
        return CoordinatorSetRecord.decode(item.value).announced if item is not None else 0

    def _tell_limit(self, limit: int) -> None:
        record = CoordinatorSetRecord(
            limit=limit, announced=min(limit, self._announced()), owner="default/main"
        )
        self.store.execute(
            lambda core, _now: core.transact((), (Put(keys.COORDINATOR_SET, record.encode()),))
        )

    def _may_go(self, tcid: int) -> bool:
        record = self.coordinator_record(tcid)
        idle = record is not None and record.state in (
            CoordinatorState.RETIRING,
            CoordinatorState.RELEASED,
        )
        return record is not None and idle and record.open_transactions == 0

    def settle(self) -> None:
        super().settle()
        self._away_from = NUMBERS
        self._tell_limit(NUMBERS)

    # --- looking ----------------------------------------------------------------------------------

    def coordinator_record(self, tcid: int) -> CoordinatorRecord | None:
        """What the store says of a number now."""
        item = self.store.core.get(keys.coordinator(tcid))
        return CoordinatorRecord.decode(item.value) if item is not None else None

    def unready(self) -> list[str]:
        """Numbers that nobody answers for."""
        served = {found.tcid for found in self._ready()}
        return [
            f"transaction coordinator {number}" for number in range(NUMBERS) if number not in served
        ]

    def check_endings(self) -> None:
        """Nothing ended itself, no request failed, and no damage is reported, without a reason.
        Raises AssertionError."""
        unexplained = self.evidence.unexplained()
        assert not unexplained, f"processes ended themselves without a reason: {unexplained}"
        assert not self.evidence.counts["connection.request_failed"], (
            "a request failed with an error that is none of ours"
        )
        damage = [
            found
            for broker in self.brokers.values()
            if broker.ready
            for found in broker.context.damage.listed()
        ]
        assert not damage, f"storage is reported as damaged, and is not: {damage}"

    def open_transactions(self) -> int:
        """Transactions that have not ended everywhere, of the numbers that are served."""
        found = [coordinator.service.transactions for coordinator in self._ready()]
        return sum(transactions.live for transactions in found if transactions is not None)

    def _ready(self) -> list[Coordinator]:
        return [found for found in self.coordinators.values() if found.ready]
