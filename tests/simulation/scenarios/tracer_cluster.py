"""The brokers of the tracer scenarios, and what is watched in them.

Owns: `Cluster` (three real brokers on simulated ports; planned moves, splits, merges, graceful stops and
cordons that it makes by itself), its small sizes, and `Evidence`, the counts that prove what a run
went through. Imports: the kernel, magnetar.ownership, magnetar.broker. Receipts and recoveries
reach the history through wrappers around two production functions, put on for the length of one
run: the broker itself has no hooks for tests. Invariants: everything random comes from the world's
seed; a broker that ends itself for a reason that no fault explains fails the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from magnetar.broker.bundles import acquiring, bundle, releasing
from magnetar.broker.bundles import log_rolling as rolling
from magnetar.broker.bundles.bundle import RecoveredBundle
from magnetar.broker.bundles.recovery.bundle_recovery import Preloaded
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.context import BrokerContext
from magnetar.broker.incarnation import Broker
from magnetar.broker.ports import SendRun
from magnetar.errors import MagnetarError
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.records import BundleRecord, BundleState, CordonRecord, NamespaceRecord
from magnetar.metadata.store import Delete, Put
from magnetar.names import DEFAULT_BUNDLES, BundleName, NamespaceName, TopicName, initial_boundaries
from magnetar.ownership.splits import range_equally_divide, specified_positions_divide
from magnetar.storage.log import files as log_files
from magnetar.topics.ledger_ids import LedgerIds
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History, Position
from tests.simulation.kernel.world import Environment, World

BROKERS = ("broker-0", "broker-1", "broker-2")
PORT = 6650
SERVICE_URL = "pulsar://" + ",".join(f"{name}:{PORT}" for name in BROKERS)
MOVE_TIMEOUT_S = 3.0
WITHOUT_LIMIT = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
Recover = Callable[..., Awaitable[RecoveredBundle]]
EXPECTED_ENDINGS = ("log: ", "claim: ", "was taken over")
"""How an incarnation may end itself: its log or its claim is gone, or it saw another
incarnation's record."""


def small(**changes: Any) -> BrokerSettings:
    """Settings below the bounds for production, so that files roll, chains are shortened and
    caches are missed within seconds."""
    settings = BrokerSettings(
        lease_ttl_s=3.0,
        keep_alive_s=5.0,
        drain_timeout_s=5.0,
        ack_write_delay_s=0.2,
        checkpoint_files_max=1,
    )
    sizes: dict[str, float] = {
        "max_message_bytes": 8 << 10,
        "log_file_bytes": 40 << 10,
        "tail_cache_bytes_max": 8 << 10,
    }
    sizes |= {
        "maintenance_s": 0.5,
        "checkpoint_age_s": 1.0,
        "rewrite_age_s": 1.0,
        "replaced_kept_s": 0.3,
    }
    sizes |= {"stuck_state_s": 5.0}
    sizes |= {"topic_check_s": 0.3, "retention_check_s": 0.5, "trim_grace_s": 0.5}
    for name, value in {**sizes, **changes}.items():
        object.__setattr__(settings, name, value)
    return settings


@dataclass
class Evidence:
    """What happened in one run: counts of log events, of trace events, of faults that met a
    broker at work."""

    counts: Counter[str] = field(default_factory=Counter)
    endings: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = EXPECTED_ENDINGS
    watch: Callable[[str], None] | None = None
    """Called with the name of every event."""

    def __call__(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """As a structlog processor: count the event, print nothing."""
        name = event["event"]
        if name == "bundle.owned":
            name = "takeover" if event["fenced"] else "acquired without a fence"
        elif name in ("broker.failed", "coordinator.failed"):
            self.endings.append(event["reason"])
        elif name == "background.surprise":
            self.surprises.append(f"{event['work']}: {event['error_type']}: {event['error']}")
        self.counts[name] += 1
        if self.watch is not None:
            self.watch(name)
        raise structlog.DropEvent

    def unexplained(self) -> list[str]:
        """Endings that no fault explains, and errors of background work, none of which a fault
        may cause."""
        return [
            reason for reason in self.endings if not any(known in reason for known in self.expected)
        ] + self.surprises


class SimulatedUsage:
    """A machine that is always half used."""

    cores = 2.0
    memory_limit_bytes = 1 << 30

    def cpu_seconds(self) -> float:
        return 0.0

    def memory_bytes(self) -> int:
        return 1 << 29


class Cluster(World):
    """A world with three brokers. `exercise`: they also move, split and merge bundles and stop by
    themselves, until `settle`.

    What `patch` changes holds while the world is open.
    """

    patch: pytest.MonkeyPatch

    def __init__(
        self,
        seed: int,
        history: History,
        faults: Faults | None = None,
        *,
        settings: BrokerSettings | None = None,
        exercise: bool = False,
        slots: bool = False,
    ) -> None:
        super().__init__(seed, faults, slots=slots)
        self.history, self.settings, self.exercise = history, settings or small(), exercise
        self.evidence = Evidence()
        self.brokers: dict[str, Broker] = {}
        self.topics: list[str] = []
        self._recorded = self.loop.record
        self.loop.record = self._record  # type: ignore[method-assign]
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        super().__enter__()
        self.patch = self._patches.enter_context(pytest.MonkeyPatch.context())
        self._patches.enter_context(_observed(self))
        return self

    def close(self) -> None:
        self._patches.close()
        super().close()

    def start_brokers(self) -> None:
        """The first incarnation of each. What the tracer publishes is kept permanently, so that
        it can be read back."""
        self.make_namespaces({"default": {"retention_policies": WITHOUT_LIMIT}}, DEFAULT_BUNDLES)
        for name in BROKERS:
            self.node(name, self.run_broker, restarts=True, tolerated=(MagnetarError, OSError))

    def make_namespaces(self, policies: Mapping[str, Mapping[str, Any]], bundles: int) -> None:
        """Namespaces of the tenant `public` by name, as an operator makes them before anything
        is produced."""
        for name, given in policies.items():
            record = NamespaceRecord(initial_boundaries(bundles), dict(given), bundles_created=1)
            put = Put(keys.namespace(NamespaceName("public", name)), record.encode())
            self.store.execute(lambda core, _now, put=put: core.transact((), (put,)))

    async def run_broker(self, environment: Environment) -> None:
        """One incarnation of a broker process: the same logic as production, ended by its first
        failure."""

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
        identity = ProcessIdentity(
            environment.name, environment.name, environment.name, PORT, http_url=""
        )
        broker = self.brokers[environment.name] = Broker(ports, identity, self.settings)
        try:
            await broker.start()
            ended = asyncio.ensure_future(broker.ended())
            leaving = asyncio.ensure_future(self._work(broker, environment))
            splitting = asyncio.ensure_future(self._split_now_and_then(broker, environment))
            merging = asyncio.ensure_future(self._merge_now_and_then(broker))
            await asyncio.wait([ended, leaving], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            splitting.cancel()
            merging.cancel()
            if not ended.done():
                self.evidence.counts["graceful stop"] += 1
                await broker.stop()
        finally:
            await broker.close()

    async def _work(self, broker: Broker, environment: Environment) -> None:
        """Planned moves now and then; returns when the broker is to stop gracefully."""
        clock = environment.clock
        while True:
            await asyncio.sleep(clock.uniform(0.5, 3.0))
            if not self.exercise:
                continue
            if clock.random_bits(4) == 0:
                return
            owned = sorted(broker.ownership.owned)
            others = sorted(set(broker.ownership.assigner.candidates()) - {broker.incarnation})
            if owned and others:
                name = owned[clock.random_bits(16) % len(owned)]
                destination = (
                    others[clock.random_bits(16) % len(others)] if clock.random_bits(1) else ""
                )
                with contextlib.suppress(MagnetarError, TimeoutError):
                    async with asyncio.timeout(MOVE_TIMEOUT_S):
                        await broker.ownership.move(name, destination, "exercise")

    async def _split_now_and_then(self, broker: Broker, environment: Environment) -> None:
        """Beside everything else, its own moves too."""
        while True:
            await asyncio.sleep(environment.clock.uniform(1.0, 6.0))
            if self.exercise:
                with contextlib.suppress(MagnetarError, TimeoutError):
                    async with asyncio.timeout(MOVE_TIMEOUT_S):
                        await self._split(broker, environment)

    async def _merge_now_and_then(self, broker: Broker) -> None:
        """Beside everything else: make one bundle of two neighbours of this broker."""
        chance = random.Random(f"{self.seed}/merges/{broker.incarnation}")
        while True:
            await asyncio.sleep(chance.uniform(1.0, 4.0))
            served = sorted(broker.ownership.owned.items())
            pairs = [
                known.name
                for name, known in served
                for _, other in served
                if known.name.namespace == other.name.namespace
                and known.name.high == other.name.low
            ]
            if self.exercise and pairs:
                with contextlib.suppress(MagnetarError, TimeoutError):
                    async with asyncio.timeout(MOVE_TIMEOUT_S):
                        await broker.ownership.merge(chance.choice(pairs), "exercise")

    async def _split(self, broker: Broker, environment: Environment) -> None:
        """Divide one of the broker's bundles, most often one with topics, in the middle or where
        one of them begins."""
        clock, owned = environment.clock, broker.ownership.owned
        names = sorted(name for name, bundle in owned.items() if bundle.topics) or sorted(owned)
        if not names:
            return
        bundle = owned[names[clock.random_bits(16) % len(names)]]
        positions = sorted(TopicName.parse(topic).hash for topic in bundle.topics)
        boundaries = specified_positions_divide(bundle.name, positions[: 1 + clock.random_bits(1)])
        if not boundaries or clock.random_bits(1):
            boundaries = range_equally_divide(bundle.name)
        await broker.ownership.split(bundle.name, boundaries)

    # --- the operator's part ----------------------------------------------------------------------

    def cordon(self, broker: str, *, drain: bool) -> None:
        """Write a cordon, as the operator does before a scale-down."""
        record = CordonRecord(drain, "exercise").encode()
        self.store.execute(
            lambda core, _now: core.transact((), (Put(keys.cordon(broker), record),))
        )
        self.evidence.counts["cordon with drain" if drain else "cordon"] += 1

    def uncordon(self, broker: str) -> None:
        self.store.execute(lambda core, _now: core.transact((), (Delete(keys.cordon(broker)),)))

    async def cordon_now_and_then(self, until_s: float) -> None:
        """Cordon one broker after another, with and without drain."""
        chance = random.Random(f"{self.seed}/cordons")
        while self.now < until_s:
            await asyncio.sleep(chance.uniform(1.0, 8.0))
            name = chance.choice(BROKERS)
            self.cordon(name, drain=chance.random() < 0.7)
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            self.uncordon(name)

    def settle(self) -> None:
        """No more work of our own, no cordons; faults end separately."""
        self.exercise = False
        for name in BROKERS:
            self.uncordon(name)

    # --- looking ----------------------------------------------------------------------------------

    def bundle_records(self) -> dict[str, BundleRecord]:
        """All bundle records as the store has them now."""
        items = self.store.core.range(keys.BUNDLES, 0).items
        return {
            item.key.removeprefix(keys.BUNDLES): BundleRecord.decode(item.value) for item in items
        }

    def registered(self) -> set[str]:
        """Incarnations registered now."""
        return {
            item.key.removeprefix(keys.INCARNATIONS)
            for item in self.store.core.range(keys.INCARNATIONS, 0).items
        }

    def owner_of(self, topic: str) -> str:
        """Name of the broker whose record says that it serves the topic, or ""."""
        for name, record in self.bundle_records().items():
            if record.state is BundleState.OWNED and BundleName.parse(name).contains(
                TopicName.parse(topic)
            ):
                return record.incarnation.rpartition(".")[0]
        return ""

    def fenced(self, broker: str) -> bool:
        """Whether the current incarnation of a broker has lost its claim."""
        return not self.stored(f"claims/{self.brokers[broker].incarnation}")

    def resume(self, name: str) -> None:
        """As the world's; counts processes that come back as zombies, fenced while they had
        bundles."""
        broker = self.brokers.get(name)
        if (
            broker is not None
            and self.current(name).paused
            and broker.ready
            and broker.ownership.owned
            and self.fenced(name)
        ):
            self.evidence.counts["zombie resumed"] += 1
        super().resume(name)

    def _record(self, node: str, kind: str, *details: object) -> None:
        self.evidence.counts[f"trace: {kind}"] += 1
        self._recorded(node, kind, *details)


@contextlib.contextmanager
def _observed(cluster: Cluster) -> Iterator[None]:
    """Small limits, logs to the evidence, receipts and recoveries to the history."""
    history = cluster.history
    answer = ProducerSession.durable
    # whatever stands there now, a planted bug included
    rebuild: Recover = vars(acquiring)["recover_bundle"]

    def durable(session: ProducerSession, ledger: int, first_entry: int, run: SendRun) -> None:
        last = Position(ledger, first_entry + len(run) - 1)
        history.receipt(str(session.topic.name), last, session.topic.context.incarnation)
        answer(session, ledger, first_entry, run)

    async def recover(
        context: BrokerContext,
        bundle: BundleName,
        record: BundleRecord,
        ledger_ids: LedgerIds,
        scans: LogScans,
        preloaded: Preloaded | None,
    ) -> RecoveredBundle:
        if preloaded is not None:
            cluster.evidence.counts["preloaded"] += 1
        recovered = await rebuild(context, bundle, record, ledger_ids, scans, preloaded)
        if cluster.bundle_records().get(str(bundle)) != record:
            # Others have gone on since: this recovery cannot become a term, and what it read may be
            # collected by now.
            cluster.evidence.counts["stale recovery"] += 1
            return recovered
        found = {
            name: Position(*topic.core.last_confirmed)
            for name, topic in recovered.topics.items()
            if topic.core.last_confirmed.entry >= 0
        }
        topics = [topic for topic in cluster.topics if bundle.contains(TopicName.parse(topic))]
        if cluster.bundle_records().get(str(bundle)) == record:
            for term, span in zip(record.epochs, record.chain, strict=True):
                history.takeover(span.incarnation, term, topics, found)
        else:
            # Others have gone on since, whose files may be gone: this attempt ends at its
            # compare-and-swap.
            cluster.evidence.counts["recovery from an old record"] += 1
        return recovered

    before = structlog.get_config()
    structlog.configure(
        processors=[cluster.evidence],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerSession, "durable", durable)
        patch.setattr(acquiring, "recover_bundle", recover)
        patch.setattr(bundle, "CHECKPOINT_SLICE_BYTES", 1)
        patch.setattr(releasing, "MOVE_SCAN_BYTES_MAX", 16 << 10)
        patch.setattr(rolling, "SMALL_FILE_BYTES_MAX", 8 << 10)
        patch.setattr(log_files, "SHORT_FILE_BYTES", 12 << 10)
        try:
            yield
        finally:
            structlog.configure(**before)
