"""Who serves which bundle.

Owns: this broker's part in the incarnation of bundle records: resolving owners, assigning unowned
bundles, acquiring, releasing, parking requests concurrently. Imports: balance (transition rules,
placement), metadata, storage (fencing). Source: transition rule of PIP-192, transfer of PIP-307.

Invariants: a bundle is served here only between our Owned record and our RELEASE, and only while
our claim stands; every acquisition passes through an Assigning record whose revision is the epoch;
nothing is replayed before the previous owner's log is sealed; a request for a bundle that changes
hands waits (up to `park_timeout_s`) instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from magnetar.broker.bundles.assigning import Assigner
from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.checkpointer import Checkpointer
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.liveness import Liveness
from magnetar.broker.bundles.log_rolling import LogRoller
from magnetar.broker.bundles.preloading import Preloads
from magnetar.broker.bundles.records import commit_record
from magnetar.broker.bundles.recovery.bundle_recovery import noted_lengths, recover_bundle
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.bundles.recovery.retries import RecoveryRetries
from magnetar.broker.bundles.releasing import Releaser
from magnetar.broker.bundles.renewals import Renewals
from magnetar.broker.bundles.splitting import Splitter
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.entry_index import TailCache
from magnetar.broker.reading.log_keys import LogKeys
from magnetar.broker.topics.effective_policies import EffectivePolicies
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import NamespaceNotFound, NotOwner, ServiceNotReady, StorageError, StoreError
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    BundleRecord,
    BundleState,
    IncarnationRecord,
    NamespaceRecord,
)
from magnetar.names import BundleName, TopicName, bundle_of
from magnetar.ownership import rules as rules
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
STORE_RETRY_S = 0.1


class Ownership:
    """Drives this broker's bundles from the records it sees."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self._context, self._views = context, views
        self._tail_cache = TailCache(context.settings.tail_cache_bytes_max)
        self._roller = LogRoller(context)
        self._owned: dict[str, OwnedBundle] = {}
        self.policies = EffectivePolicies(context.settings, views, self._owned)
        self.registry = TopicRegistry(context, views)
        self._work: dict[str, asyncio.Task[None]] = {}
        self._events = BundleEvents()
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._renewals = Renewals(self._owned, self._move_quietly)
        self._liveness = Liveness(context)
        self.assigner = Assigner(context, views)
        self._log_keys = LogKeys(context, self.bundle_of)
        self._beginnings: dict[str, int] = {}
        self._retries = RecoveryRetries(context)
        self._recovering: dict[str, int] = {}
        self._stopped = False
        self._scans = LogScans(
            context.volume, lambda incarnation: noted_lengths(context.store, views, incarnation)
        )
        self._preloads = Preloads(context, self._scans)
        self.checkpointer = Checkpointer(context, views, self._owned, self._roller, self)
        self._releaser = Releaser(
            context,
            views,
            self._owned,
            self._events,
            self._roller,
            self.checkpointer,
            self.assigner,
        )
        self._splitter = Splitter(
            context, views, self._owned, self.registry, self._events, self._make
        )
        views.bundles.listen(self._bundles_changed)
        for view in (views.incarnations, views.cordons, views.namespaces):
            view.listen(lambda _names: self._events.all_changed())
        views.incarnations.listen(
            lambda _names: self._liveness.forget(frozenset(views.incarnations.items))
        )
        # What was assigned to us between our registration and now will not change again by itself.
        self._bundles_changed(list(views.bundles.items))

    @property
    def owned(self) -> dict[str, OwnedBundle]:
        """Bundles served here, by name; read only."""
        return self._owned

    # --- questions --------------------------------------------------------------------------------

    async def bundle_of(self, topic: TopicName) -> BundleName:
        """The bundle a topic falls into. Raises NamespaceNotFound."""
        name = topic.namespace_name
        viewed = self._views.namespaces.get(str(name))
        if viewed is None:
            # The view may be a moment behind a namespace that was just created: ask the store
            # before saying no.
            found = await self._context.store.get(keys.namespace(name))
            if found is None:
                raise NamespaceNotFound(
                    f"namespace {name} of topic {topic} does not exist; create it first "
                    f"(TopicNamespace, or PUT /admin/v2/namespaces/{name})"
                )
            self._views.namespaces.observe(str(name), found.value, found.mod_revision)
            record = NamespaceRecord.decode(found.value)
        else:
            record = viewed.record
        return bundle_of(name, record.boundaries, topic.hash)

    async def owner_of(self, topic: TopicName) -> IncarnationRecord:
        """As `resolve`, for the bundle of a topic, however often that is split concurrently."""
        return await self._of_topic(topic, self.resolve)

    async def serving_topic(self, topic: TopicName) -> OwnedBundle:
        """As `serving`, for the bundle of a topic, however often that is split concurrently."""
        return await self._of_topic(topic, self.serving)

    async def _of_topic(self, topic: TopicName, ask: Callable[[BundleName], Awaitable[T]]) -> T:
        while True:
            bundle = await self.bundle_of(topic)
            try:
                return await ask(bundle)
            except NotOwner:  # BundleSplit is one
                if await self.bundle_of(topic) == bundle:
                    raise

    async def resolve(self, bundle: BundleName) -> IncarnationRecord:
        """The live owner, after assigning the bundle if it has none. Raises BundleSplit,
        ServiceNotReady after `park_timeout_s`."""
        name = str(bundle)
        deadline = self._context.clock.monotonic() + self._context.settings.park_timeout_s
        while (owner := await self._owner_to_name(name)) is None:
            remaining = self._remaining(deadline, name)
            settling = self._resolving.get(name)
            if settling is None:  # one for all who ask for this bundle
                settling = self._resolving[name] = asyncio.create_task(
                    self._settle(name), name=f"resolve {name}"
                )
                settling.add_done_callback(lambda done: self._settled(name, done))
            await asyncio.wait([settling], timeout=remaining)
            if (
                settling.done()
                and not settling.cancelled()
                and (error := settling.exception()) is not None
            ):
                raise error  # that there is no such bundle
        return owner

    def _settled(self, name: str, task: asyncio.Task[None]) -> None:
        self._resolving.pop(name, None)
        if not task.cancelled():
            # told to who asked, and missed by nobody whose client has left concurrently
            task.exception()

    async def _owner_to_name(self, name: str) -> IncarnationRecord | None:
        """The owner of a bundle, if it has one that clients may be sent to."""
        viewed = self._views.bundles.get(name)
        if viewed is None or viewed.record.state not in (BundleState.OWNED, BundleState.SPLITTING):
            return None
        owner = self._views.incarnations.get(viewed.record.incarnation)
        if owner is None:
            return None
        ours = viewed.record.incarnation == self._context.incarnation
        return (
            owner.record
            if ours or await self._liveness.may_be_named(viewed.record.incarnation, owner.record)
            else None
        )

    async def _settle(self, name: str) -> None:
        """Assign a bundle if it is an orphan; returns when something about it has changed, or
        after a while."""
        event = self._events.of(name)
        if self._is_orphan(self._views.bundles.get(name)):
            await self.assigner.assign_merged(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await event.wait()

    async def serving(self, bundle: BundleName) -> OwnedBundle:
        """The bundle as served here; waits while it is on its way here, or being released.
        Raises NotOwner, ServiceNotReady."""
        name, asked = str(bundle), False
        deadline = self._context.clock.monotonic() + self._context.settings.park_timeout_s
        while True:
            changed = self._events.of(name)
            owned = self._owned.get(name)
            if owned is not None and owned.serving:
                return owned
            viewed = self._views.bundles.get(name)
            if owned is None and (
                viewed is None or self._is_orphan(viewed) or not self._concerns_us(viewed.record)
            ):
                if asked:
                    raise NotOwner(
                        f"bundle {name} is not served by this broker or is being unloaded; look "
                        "the topic up again"
                    )
                asked = True
                await self._ask_store(name)
                continue
            await self._wait(changed, deadline, name)

    async def _ask_store(self, name: str) -> None:
        """Who was sent here by a bundle's former owner may be faster than our watch: see the
        record as it is now, once for all who ask."""
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(
                self._read_record(name), name=f"read {name}"
            )
            asking.add_done_callback(lambda _task: self._asking.pop(name, None))
        await asyncio.wait([asking], timeout=LOOK_AGAIN_S)

    async def _read_record(self, name: str) -> None:
        with contextlib.suppress(StoreError):
            item = await self._context.store.get(keys.bundle(BundleName.parse(name)))
            if item is not None:
                self._views.bundles.observe(name, item.value, item.mod_revision)

    def _concerns_us(self, record: BundleRecord) -> bool:
        """Whether we have the bundle, or are to get it."""
        return self._context.incarnation in (record.incarnation, record.destination)

    def _is_orphan(self, viewed: Viewed[BundleRecord] | None) -> bool:
        if viewed is None or viewed.record.state is BundleState.FREE:
            return True
        return self._views.incarnations.get(viewed.record.incarnation) is None

    async def _wait(self, changed: asyncio.Event, deadline: float, name: str) -> None:
        # the caller looks again and gives up at its own deadline
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._remaining(deadline, name), LOOK_AGAIN_S)):
                await changed.wait()

    def _remaining(self, deadline: float, name: str) -> float:
        """Seconds left to wait. Raises ServiceNotReady if there are none."""
        remaining = deadline - self._context.clock.monotonic()
        if remaining <= 0:
            raise ServiceNotReady(
                f"Failed to acquire ownership: bundle {name} is being unloaded for too long; try "
                "again"
            )
        return remaining

    # --- following our records --------------------------------------------------------------------

    def _bundles_changed(self, names: list[str]) -> None:
        for name in names:
            self._events.changed(name)
            self._preloads.look(name, self._views.bundles.get(name))
            self._follow(name)

    def _follow(self, name: str) -> None:
        """Start what our record asks for, unless this bundle is being worked on already."""
        if name in self._work:
            self._give_up_recovery(name)
            return
        viewed, owned = self._views.bundles.get(name), self._owned.get(name)
        if viewed is not None and viewed.record.incarnation == self._context.incarnation:
            state = viewed.record.state
            if state is BundleState.ASSIGNING and owned is None:
                self.begin(name, self._acquire(name, viewed))
            elif state is BundleState.RELEASING and owned is not None:
                self.begin(name, self._releaser.carry_out(name, owned, viewed))
            elif state is BundleState.SPLITTING and owned is not None:
                self.begin(name, self._split(owned, viewed))
            taken = state is BundleState.ASSIGNING  # taken from us and given back, both unseen
        else:
            taken = True
        if taken and owned is not None:
            # Somebody took a bundle that we never released: they have fenced us, or will; stop
            # before we find out the hard way.
            self._context.fail(f"bundle {name} was taken over while we served it")

    def _give_up_recovery(self, name: str) -> None:
        """A recovery for a record that has been replaced leads nowhere, however long it would
        take."""
        revision, viewed = self._recovering.get(name), self._views.bundles.get(name)
        if revision is not None and (viewed is None or viewed.mod_revision != revision):
            log.info("bundle.recovery_given_up", bundle=name, revision=revision)
            del self._recovering[name]
            self._work[name].cancel()

    def busy(self, name: str) -> bool:
        """Whether a task works on this bundle."""
        return name in self._work

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work on a bundle, on which nobody else works; its failure ends this incarnation."""
        task = asyncio.create_task(work, name=f"bundle {name}")
        self._work[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._work.pop(name, None)
        self._beginnings.pop(name, None)
        self._events.changed(name)
        if task.cancelled():
            if not self._stopped:
                self._follow(name)
            return
        error = task.exception()
        if error is not None:
            log.error("bundle.work_failed", bundle=name, error=repr(error))
            self._context.fail(f"bundle {name}: {error!r}")
            return
        self._follow(name)

    # --- acquiring --------------------------------------------------------------------------------

    async def _acquire(self, name: str, assigned: Viewed[BundleRecord]) -> None:
        """From our Assigning record to Owned: fence, recover, commit."""
        started = self._context.clock.monotonic()
        epoch = self._context.restore * RESTORE_STRIDE + assigned.mod_revision
        self._recovering[name] = assigned.mod_revision
        try:
            bundle, ledger_ids = BundleName.parse(name), LedgerIds(epoch)
            preloaded = await self._preloads.take(name, assigned.record)
            recovered = await recover_bundle(
                self._context, bundle, assigned.record, ledger_ids, self._scans, preloaded
            )
            policies, owned = self.policies.version, self._make(bundle, ledger_ids, recovered)
            await owned.host(recovered.topics)
        except Exception as error:
            # Stay Assigning: the leader may place it elsewhere, and we look again when the record
            # changes or the retry comes. Whatever it is, it is about what is stored of this bundle:
            # an end of ours would pass it on to the next broker, and that one's to the one after
            # it.
            self._recovering.pop(name, None)
            revision, items = assigned.mod_revision, self._views.bundles.items
            await self._retries.wait(
                name,
                epoch,
                error,
                lambda: self._events.of(name),
                lambda: getattr(items.get(name), "mod_revision", -1) != revision,
            )
            return
        finally:
            self._recovering.pop(name, None)
        self._retries.over(name)
        try:
            # Once we have seen the assignment: files of whoever is fenced by now may go, and our
            # term would begin in one that is gone.
            await self._context.log.check_claim()
        except StorageError:
            return  # which ends this incarnation
        start, end = self._context.log.position, recovered.sealed_end
        self._beginnings[name] = start.file
        record = rules.own(
            assigned.record, self._context.incarnation, epoch=epoch, start=start, sealed_end=end
        )
        committed = await commit_record(
            self._context, self._views, name, assigned.mod_revision, record
        )
        if committed is None and not self._is_ours(name, epoch):
            log.info("bundle.acquire_lost", bundle=name, epoch=epoch)
            return
        self._owned[name] = owned
        if self.policies.version != policies:
            owned.refresh_policies()
        owned.append_term(record)  # before anything else of this term
        self.registry.adopt(owned)
        self._context.metrics.bundles_owned.set(len(self._owned))
        kind = "takeover" if recovered.fenced else "move" if preloaded is None else "preloaded"
        self._context.metrics.acquisitions.labels(kind).inc()
        seconds = round(self._context.clock.monotonic() - started, 4)
        self._context.metrics.acquire_seconds.observe(seconds)
        log.info(
            "bundle.owned",
            bundle=name,
            epoch=epoch,
            topics=len(recovered.topics),
            seconds=seconds,
            fenced=recovered.fenced,
        )

    def _make(
        self, name: BundleName, ledger_ids: LedgerIds, recovered: RecoveredBundle
    ) -> OwnedBundle:
        ledger_ids.running_low, due = self._renewals.ask, self.checkpointer.ask
        return OwnedBundle(
            self._context,
            name,
            ledger_ids,
            recovered,
            self._tail_cache,
            self.policies,
            self.registry,
            due,
        )

    def _is_ours(self, name: str, epoch: int) -> bool:
        """Whether our term began though its answer was lost: a request to release it may have
        changed the record since."""
        viewed = self._views.bundles.get(name)
        if viewed is None:
            return False  # taken from us, divided, and gone
        ours = (viewed.record.incarnation, viewed.record.epoch) == (
            self._context.incarnation,
            epoch,
        )
        return ours and viewed.record.state is not BundleState.ASSIGNING

    # --- releasing --------------------------------------------------------------------------------

    async def move(
        self, name: str, destination: str, reason: str, *, pinned_until_ms: int = 0
    ) -> None:
        """Ask for a planned move of a bundle we own, as `Releaser.request`. Returns when it is
        transferred."""
        await self._releaser.request(name, destination, reason, pinned_until_ms)

    async def pin(self, name: str, until_ms: int) -> None:
        """Keep a bundle we own here until then; 0 takes that back. Raises NotOwner,
        ServiceNotReady while it changes hands, StoreError."""
        await self._releaser.pin(name, until_ms)

    # --- splitting --------------------------------------------------------------------------------

    async def split(
        self, bundle: BundleName, boundaries: tuple[int, ...], reason: str = "split requested"
    ) -> list[BundleName]:
        """Divide a bundle that we own at `boundaries`; its children, which we own then. Raises
        as `Splitter.request`."""
        if self.assigner.leaving:
            raise ServiceNotReady(
                f"bundle {bundle} is being unloaded: this broker is stopping; ask its next owner"
            )
        return await self._splitter.request(bundle, boundaries, reason)

    async def _split(self, owned: OwnedBundle, splitting: Viewed[BundleRecord]) -> None:
        children = await self._splitter.carry_out(owned, splitting)
        if not children:
            self._roller.roll_soon()  # it was called off, and has left
        self._bundles_changed(children)  # somebody may want one of them moved already

    # --- our log ----------------------------------------------------------------------------------

    def file_sealed(self, number: int, length: int, topics: dict[str, list[int]]) -> None:
        """The log has sealed a file: make it known, and shorten chains that have grown too long."""
        self._roller.file_sealed(number, length)
        self._log_keys.publish(number, length, topics)
        self.checkpointer.checkpoint_long_chains()

    @property
    def first_file_needed(self) -> int:
        """Files of our log from this one on may be the start of a term that is about to be
        committed."""
        return min(self._beginnings.values(), default=self._context.log.position.file)

    # --- stopping ---------------------------------------------------------------------------------

    async def empty(self, reason: str) -> None:
        """Hand over every bundle we have now; raises ServiceNotReady if no other broker may take
        them: then they stay."""
        self.assigner.place((self._context.incarnation,))
        await asyncio.gather(*(self._move_quietly(name, reason) for name in sorted(self._owned)))

    async def release_all(self, reason: str) -> None:
        """Hand every bundle over, or free it where nobody can take it; raises TimeoutError after
        `drain_timeout_s`."""
        self.assigner.leaving = True
        async with asyncio.timeout(self._context.settings.drain_timeout_s):
            while self._owned or self._work.keys() - self._retries.waiting.keys():
                if self._owned:
                    await asyncio.gather(
                        *(self._move_quietly(name, reason) for name in sorted(self._owned))
                    )
                else:
                    hopeful = [
                        task
                        for name, task in self._work.items()
                        if name not in self._retries.waiting
                    ]
                    await asyncio.wait(hopeful, timeout=1.0)

    async def _move_quietly(self, name: str, reason: str) -> None:
        try:
            await self.move(name, "", reason)
        except NotOwner:
            await asyncio.sleep(STORE_RETRY_S)  # it is leaving by itself, or has left
        except StoreError as error:
            log.warning("bundle.move_failed", bundle=name, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def stop(self) -> None:
        """Cancel what is under way; the records stay for whoever recovers them."""
        self._stopped = True
        self._roller.stop()
        self.checkpointer.stop()
        await self._log_keys.stop()
        await self.assigner.stop()
        await self._liveness.stop()
        await self._renewals.stop()
        tasks = [*self._work.values(), *self._resolving.values(), *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._preloads.stop()
        await self._scans.stop()
        await self.registry.stop()
        for owned in self._owned.values():
            owned.stop()
        self._owned.clear()
        self._events.all_changed()
