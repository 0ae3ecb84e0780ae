"""Brokers with a planted bug.

Owns: one small patch per rule that the design calls a way to lose data, and `run(bug, seed)`, the
tracer scenario on a broker patched so (`none`: unpatched, the control). Imports: the tracer, the
patched parts of the broker. The faults are those that the rules are about: processes that stop,
pause beyond their lease or cannot renew it while they serve, lose power, and slow flushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.bundles import acquiring
from magnetar.broker.bundles.bundle import RecoveredBundle
from magnetar.broker.bundles.cursor_writing import CursorWriter
from magnetar.broker.bundles.recovery import log_scans
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import SendRun
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep import manifest_compaction as tidying
from magnetar.metadata.records import BundleRecord
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.gc import BundleFacts
from magnetar.storage.log.fencing import SealedFile, seal
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.recovery import list_log_files
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.manifest import CommitResult, commit_manifest, load_manifest
from magnetar.storage.segments.level_one import LevelOneRewrite
from magnetar.storage.volumes.volume import Volume
from magnetar.topics.ledger_ids import LedgerIds, ledger_of
from magnetar.topics.ledgers import Position
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.volume import SimVolume
from tests.simulation.scenarios import tracer
from tests.simulation.scenarios.tracer_cluster import Recover

FAULTS = Faults.none().but(
    crash_every_s=3.0,
    pause_every_s=4.0,
    pause_s=(3.2, 6.0),
    store_partition_every_s=2.5,
    partition_s=(3.2, 8.0),
    power_loss_every_s=10.0,
    down_s=(0.1, 2.0),
    slow_flush_probability=0.05,
    slow_flush_s=(0.1, 1.0),
)

Patch = pytest.MonkeyPatch


def no_look_at_the_claim(patch: Patch) -> None:
    """The owner acknowledges after the flush, without looking for its claim."""

    async def look(_volume: SimVolume, _claim: str) -> None:
        return

    async def check(_log: LogWriter) -> None:
        return

    patch.setattr(SimVolume, "look_for_claim", look)
    patch.setattr(LogWriter, "check_claim", check)


def length_before_fence(patch: Patch) -> None:
    """The new owner reads and seals the lengths first, and removes the claim then."""

    async def fence(
        volume: Volume, incarnation: str, _known: Mapping[int, int]
    ) -> list[SealedFile]:
        sealed = [
            SealedFile(number, await seal(volume, incarnation, number))
            for number in await list_log_files(volume, incarnation)
        ]
        await volume.remove(names.claim(incarnation))
        return sealed

    patch.setattr(log_scans, "fence", fence)


def last_range_ignored(patch: Patch) -> None:
    """Recovery replays the chain without what the last owner wrote."""
    recover: Recover = vars(acquiring)["recover_bundle"]

    async def forgetful(
        context: BrokerContext,
        bundle: BundleName,
        record: BundleRecord,
        ledger_ids: LedgerIds,
        scans: LogScans,
        _preloaded: Any,
    ) -> RecoveredBundle:
        chain = record.chain
        if chain and chain[-1].end is not None:
            record = replace(record, chain=(*chain[:-1], replace(chain[-1], end=chain[-1].start)))
        return await recover(context, bundle, record, ledger_ids, scans, None)

    patch.setattr(acquiring, "recover_bundle", forgetful)


def receipt_before_flush(patch: Patch) -> None:
    """The receipt leaves when the entries are handed to the log."""
    publish, confirm = TopicHost.publish, TopicHost.durable

    class Silence:
        messages_in = bytes_in = 0

        def __init__(self, session: ProducerSession) -> None:
            self.name = session.name

        def durable(self, *_run: Any) -> None:
            return

    def hasty(topic: TopicHost, session: ProducerSession, run: SendRun) -> None:
        position = Position(topic.core.take_ledger(), topic.core.next_entry)
        publish(topic, session, run)
        if not topic.core.frozen:
            session.durable(position.ledger, position.entry, run)

    def silent(topic: TopicHost, run: Any, place: RecordPlace) -> None:
        run.session = Silence(run.session)
        confirm(topic, run, place)

    patch.setattr(TopicHost, "publish", hasty)
    patch.setattr(TopicHost, "durable", silent)


def ack_confirmed_before_flush(patch: Patch) -> None:
    """ACK_RESPONSE leaves when the cursor record is handed to the log."""
    append = CursorWriter._append_deltas

    def hasty(
        cursors: CursorWriter,
        subscription: SubscriptionHost,
        confirmed: Sequence[Callable[[], None]],
    ) -> None:
        for confirm in confirmed:
            confirm()
        append(cursors, subscription, [lambda: None] if confirmed else ())

    patch.setattr(CursorWriter, "_append_deltas", hasty)


def ledger_of_the_term_before(patch: Patch) -> None:
    """A new term goes on in the ledger of the one before, from entry 0."""
    recover: Recover = vars(acquiring)["recover_bundle"]

    async def stale(
        context: BrokerContext,
        bundle: BundleName,
        record: BundleRecord,
        ledger_ids: LedgerIds,
        *how: Any,
    ) -> RecoveredBundle:
        recovered = await recover(context, bundle, record, ledger_ids, *how)
        for topic in recovered.topics.values():
            if topic.core.last_confirmed.ledger > 0:
                topic.core.ledger = topic.core.last_confirmed.ledger
        return recovered

    patch.setattr(acquiring, "recover_bundle", stale)


def topics_of_a_bundle_share_their_ids(patch: Patch) -> None:
    """A ledger id is made of the epoch alone."""
    patch.setattr(LedgerIds, "take", lambda ids: ledger_of(ids.epoch, 0))


def collector_ignores_the_manifest(patch: Patch) -> None:
    """A log file goes when recovery has passed it, though readers find entries nowhere else."""
    patch.setattr(BundleFacts, "lists", lambda _facts, _file: False)


def rewrite_without_compare(patch: Patch) -> None:
    """A rewrite replaces the manifest by what it makes of the one that it began with, whatever
    was committed since."""
    commit: Callable[..., Awaitable[CommitResult]] = vars(tidying)["commit_rewrite"]

    async def blind(
        store: Any, volume: Any, clock: Any, bundle: BundleName, change: LevelOneRewrite
    ) -> CommitResult:
        old, _, _ = await load_manifest(store, volume, bundle)
        # as long as a rewrite of more than a few kilobytes takes
        await asyncio.sleep(clock.uniform(0.0, 0.5))
        made = change.apply(old)
        if made is None:
            return await commit(store, volume, clock, bundle, change)
        return await commit_manifest(
            store, volume, clock, bundle, lambda found: replace(made, generation=found.generation)
        )

    patch.setattr(tidying, "commit_rewrite", blind)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        no_look_at_the_claim,
        length_before_fence,
        last_range_ignored,
        receipt_before_flush,
        ack_confirmed_before_flush,
        ledger_of_the_term_before,
        topics_of_a_bundle_share_their_ids,
        collector_ignores_the_manifest,
        rewrite_without_compare,
    )
}
CONTROL = "none"


@contextmanager
def planting(bugs: Mapping[str, Callable[[Patch], None]], bug: str) -> Iterator[None]:
    """With the bug of that name for as long as the block lasts; with none if it is `CONTROL`."""
    with pytest.MonkeyPatch.context() as patch:
        if bug != CONTROL:
            bugs[bug](patch)
        yield


def run(bug: str, seed: int) -> dict[str, int]:
    """The tracer on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(tracer.run_counted(seed, FAULTS)[1].counts)
