"""Connections to the clusters' metadata stores, and the operator's term in each.

Owns: one store per set of endpoints, for as long as a cluster uses it; guarded writes; views of the
records that resources own; who asks a store that does not answer. Imports: magnetar.metadata,
clock, metrics, outages, record_view. Invariants: every write compares `operator/term`, so an
operator that lost its Lease without noticing changes nothing after its successor's first write; the
term is taken lazily, so that a steady state writes nothing; many callers of a store that is
unavailable wait for it only once, and look again when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from magnetar.clock import Clock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore, TlsMaterial
from magnetar.metadata.codec import Record
from magnetar.metadata.election import Election
from magnetar.metadata.records import CordonRecord, NamespaceRecord, TenantRecord
from magnetar.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Operation,
    Put,
    RangeResult,
)
from magnetar.names import NamespaceName
from magnetar_operator.brokers.scaling import Cordon, draining_cordon
from magnetar_operator.engine import passes
from magnetar_operator.etcd.admin import EtcdAdmin
from magnetar_operator.etcd.users import EtcdUsers
from magnetar_operator.kube.errors import NotLeading
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.stores.outages import NO_ANSWER, CircuitBreaker
from magnetar_operator.stores.record_view import Change, RecordView

log = structlog.get_logger(__name__)

READ_TIMEOUT_S, WRITE_TIMEOUT_S = 4.0, 3.0
NO_LEASE = 0
VIEWED: dict[str, type[Record]] = {keys.NAMESPACES: NamespaceRecord, keys.TENANTS: TenantRecord}
"""What custom resources own."""


class ClusterStore:
    """One cluster's store, for reading freely and writing as the leader."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        metrics: OperatorMetrics,
        identity: str,
        may_write: Callable[[], bool],
        owned_changed: Callable[[str], None] = lambda _: None,
        tls: TlsMaterial | None = None,
    ) -> None:
        """`owned_changed` gets the owner, as records name it, of every record that another writer
        changed, or that can be read at last."""
        self.reader = store
        self._owned_changed = owned_changed
        self._tls = tls
        self._admin: EtcdAdmin | None = None
        self._clock, self._metrics, self._identity, self._may_write = (
            clock,
            metrics,
            identity,
            may_write,
        )
        self.claims: dict[tuple[str, str], set[NamespaceName]] = {}
        """Of TopicNamespaces (by namespace and name) seen here: what each speaks for, and spoke
        for, for when it is gone or made again."""
        self.empty_since: dict[NamespaceName, tuple[tuple[object, ...], float]] = {}
        """Namespaces about to be deleted: what was seen of them, and since when (monotonic) it
        is so."""
        self._followers: dict[str, set[str]] = {}
        """By record: who decided by it, though another resource owns it."""
        self.swept: set[str] = set()
        """Clusters (uids) for which it was looked up what resources that are gone still own
        here."""
        self._election: Election | None = None
        self._seizing = asyncio.Lock()
        self._users: EtcdUsers | None = None
        # Apart, because a store may answer one and not the other: without space, or with a disk
        # that hardly writes.
        self._reads, self._writes = CircuitBreaker(), CircuitBreaker()
        self._views = {
            prefix: RecordView(store, prefix, self._changed, clock, self._viewed)
            for prefix in VIEWED
        }
        self._viewing: list[asyncio.Task[None]] = []
        self._closed = False
        self.restoring = False
        """Whether nothing is written but by the pod that fills the store."""

    async def record(self, key: str) -> KeyValue | None:
        """A record below one of `VIEWED`, from a warm copy; a writer compares its
        revision. Raises as `read`."""
        if self._closed:
            raise StoreUnavailable("no cluster uses this store any more")
        view = next(view for prefix, view in self._views.items() if key.startswith(prefix))
        if not self._viewing:
            self._viewing = [
                asyncio.create_task(each.run(), name=f"view of {prefix}")
                for prefix, each in self._views.items()
            ]
        if view.knows(key):
            return view.get(key)
        item = await self.read(key)
        view.read(key, item)
        return item

    async def read(self, key: str) -> KeyValue | None:
        """What the store itself has under `key`. Raises StoreError, and immediately StoreOutage
        while it does not answer; TimeoutError."""
        with self._asking(self._reads):
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self.reader.get(key)

    async def range(self, prefix: str) -> RangeResult:
        """All that the store itself has below `prefix`. Raises as `read`."""
        with self._asking(self._reads):
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self.reader.range(prefix)

    @contextmanager
    def _asking(self, breaker: CircuitBreaker) -> Iterator[None]:
        """Around a request to the store. Raises StoreOutage."""
        breaker.admit(self._clock.monotonic())
        try:
            yield
        except (StoreError, TimeoutError) as error:
            # A read that is refused is refused to every caller; a write may be refused for what it
            # says.
            if breaker is self._reads or isinstance(error, NO_ANSWER):
                breaker.failed(self._clock.monotonic(), str(error) or "no answer in time")
            else:
                self._answered(breaker)
            raise
        self._answered(breaker)

    def _answered(self, breaker: CircuitBreaker) -> None:
        if breaker.answered():
            self._writes.try_now()
            self.look_again()

    def _viewed(self, error: StoreError | None) -> None:
        """A view has read everything, or could not."""
        if error is not None:
            self._reads.failed(self._clock.monotonic(), str(error))
        else:
            self._answered(self._reads)

    def look_again(self) -> None:
        """Have all resources that speak for something here look again: those that were refused a
        record while the store was unavailable, or that decided by what another store said."""
        for namespace, name in self.claims:
            self._owned_changed(f"{namespace}/{name}")

    def follow(self, key: str, owner: str) -> None:
        """`owner` decides by a record that another resource owns: the next change of it concerns
        both."""
        self._followers.setdefault(key, set()).add(owner)

    def _changed(self, change: Change) -> None:
        """A record has changed: its owners and followers look at it, but for the one that wrote
        it."""
        old, new = (
            _owner_of(change.key, value) if value is not None else ""
            for value in (change.old, change.new)
        )
        concerned = {old, new} | self._followers.pop(change.key, set())
        for owner in concerned - {"", new if change.ours else ""}:
            self._owned_changed(owner)

    async def close(self) -> None:
        """End views and connections."""
        self._closed = True
        for task in self._viewing:
            task.cancel()
        await asyncio.gather(*self._viewing, return_exceptions=True)
        if self._admin is not None:
            await self._admin.close()
        await self.reader.close()

    async def write(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        """Apply `operations` if the compares hold and we still lead; False if they did not hold.

        Raises NotLeading, StoreError, and immediately StoreOutage while the store takes nothing;
        TimeoutError.
        """
        self._require_leadership()
        if self.restoring:
            raise StoreUnavailable(
                "the metadata store is being restored, and nothing else is written to it until "
                "that has ended"
            )
        with self._asking(self._writes):
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                guard = await self._guard()
                self._require_leadership()
                self._metrics.store_writes.inc()
                passes.count_effect()
                for view in self._views.values():
                    view.writing(operations)
                result = await self.reader.transact([guard, *compares], operations)
        if result.succeeded:
            for view in self._views.values():
                view.wrote(operations, result.revision)
            return True
        for view in self._views.values():
            view.doubt(compare.key for compare in compares)
        term = next(
            (item.mod_revision for item in result.current if item.key == keys.OPERATOR_TERM), 0
        )
        if term != guard.operand:
            self.forget_term()
            raise NotLeading("another operator has begun its term in this cluster's store")
        return False

    async def cordon(self, broker: str, reason: str) -> None:
        """Have `broker` transfer its bundles and take no new ones. Raises as `write`."""
        current, compare = await self._cordon_of(broker)
        cordon = draining_cordon(reason, current)
        if current is None or not current.drain:
            await self.write(
                (compare,),
                (Put(keys.cordon(broker), CordonRecord(cordon.drain, cordon.reason).encode()),),
            )

    async def close_to_bundles(self, broker: str, reason: str) -> None:
        """Have `broker` take no new bundles, unless it is cordoned anyway. Raises as `write`."""
        current, compare = await self._cordon_of(broker)
        if current is None:
            record = CordonRecord(drain=False, reason=reason)
            await self.write((compare,), (Put(keys.cordon(broker), record.encode()),))

    async def uncordon(self, broker: str) -> None:
        """Lift our own cordon of `broker`; one that a person has set stays, or comes back.
        Raises as `write`."""
        current, compare = await self._cordon_of(broker)
        if current is None or not (current.is_ours or current.is_for_replacement):
            return
        key, before = keys.cordon(broker), current.before
        await self.write(
            (compare,),
            (
                Put(key, CordonRecord(before.drain, before.reason).encode())
                if before
                else Delete(key),
            ),
        )

    async def _cordon_of(self, broker: str) -> tuple[Cordon | None, Compare]:
        """The cordon as it stands, and the comparison that holds while it does. Raises
        StoreError, TimeoutError."""
        key = keys.cordon(broker)
        item = await self.read(key)
        if item is None:
            return None, Compare(key, "mod", "=", 0)
        record = CordonRecord.decode(item.value)
        return Cordon(record.drain, record.reason), Compare(key, "mod", "=", item.mod_revision)

    async def ensure_users(self) -> int:
        """Users, roles and authentication of an etcd that is ours alone; the number of changes.
        Raises NotLeading, StoreError, TimeoutError."""
        if self._users is None:
            assert isinstance(self.reader, EtcdStore)
            self._users = EtcdUsers(self.reader.channels, self.before_change)
        return await self._users.converge()

    def admin(self, clients: Mapping[int, str], peers: Mapping[int, str]) -> EtcdAdmin:
        """The members of a managed etcd, by ordinal: where they are asked, where they reach each
        other."""
        if self._admin is None:
            self._admin = EtcdAdmin(clients, peers, self._tls)
        return self._admin

    def before_change(self) -> None:
        """To be called before etcd itself is changed. Raises NotLeading."""
        self._require_leadership()
        self._metrics.store_writes.inc()
        passes.count_effect()

    def forget_term(self) -> None:
        """The next write begins a term again."""
        self._election = None

    async def _guard(self) -> Compare:
        async with self._seizing:
            if self._election is None:
                election = Election(
                    self.reader, self._clock, keys.OPERATOR_TERM, self._identity, NO_LEASE
                )
                self._metrics.store_writes.inc()
                passes.count_effect()
                await election.seize()
                self._election = election
            return self._election.guard()

    def _require_leadership(self) -> None:
        if not self._may_write():
            raise NotLeading("this process does not lead")


def _owner_of(key: str, value: bytes) -> str:
    """Whom a record names as its owner; "" = none, or it cannot be read."""
    kind = VIEWED[next(prefix for prefix in VIEWED if key.startswith(prefix))]
    try:
        return str(getattr(kind.decode(value), "owner", ""))
    except StoreError:
        return ""


Endpoints = tuple[str, ...]
Cluster = tuple[str, str]
"""Kubernetes namespace and name of a BrokerCluster."""


class Stores:
    """All clusters' stores: each is open from its first use until no cluster uses it."""

    def __init__(
        self,
        clock: Clock,
        metrics: OperatorMetrics,
        identity: str,
        may_write: Callable[[], bool],
        owned_changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock, self._metrics, self._identity, self._may_write = (
            clock,
            metrics,
            identity,
            may_write,
        )
        self._owned_changed = owned_changed
        self._open: dict[Endpoints, tuple[TlsMaterial | None, ClusterStore]] = {}
        self._used: dict[Cluster, tuple[Endpoints, TlsMaterial | None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(
        self, cluster: Cluster, endpoints: Sequence[str], tls: TlsMaterial | None = None
    ) -> ClusterStore:
        """The store of `cluster` behind `endpoints` (host:port); connects when first used, and
        again when it comes to TLS or has another secret. Resources that decided by another one
        until now look again."""
        now = tuple(endpoints), tls
        before, self._used[cluster] = self._used.get(cluster, now), now
        _, former = self._open.get(before[0], (None, None))
        if before[0] != now[0]:
            self._close_unused()
        store = self._opened(*now)
        if before != now and former is not None:
            former.look_again()  # what changed between their views was not reported
        return store

    def _opened(self, key: Endpoints, tls: TlsMaterial | None) -> ClusterStore:
        known, store = self._open.get(key, (None, None))
        if store is not None and known is tls:
            return store
        claims = store.claims if store is not None else {}
        if store is not None:
            self._close_soon(store)
        opened = EtcdStore(key, tls, clock=self._clock)
        store = ClusterStore(
            opened,
            self._clock,
            self._metrics,
            self._identity,
            self._may_write,
            self._owned_changed,
            tls,
        )
        store.claims.update(claims)
        self._open[key] = tls, store
        return store

    def opened(self) -> list[ClusterStore]:
        """The stores that are connected to."""
        return [store for _, store in self._open.values()]

    def leadership_changed(self) -> None:
        """Every term ends with the Lease; what went while another process led was not seen."""
        for store in self.opened():
            store.forget_term()
            store.swept.clear()

    def retain(self, clusters: Iterable[Cluster]) -> None:
        """Forget all other clusters: what none of these uses is closed."""
        self._used = {cluster: self._used[cluster] for cluster in clusters if cluster in self._used}
        self._close_unused()

    def _close_unused(self) -> None:
        for endpoints in set(self._open) - {used for used, _ in self._used.values()}:
            log.info("store.closed", endpoints=",".join(endpoints))
            self._close_soon(self._open.pop(endpoints)[1])

    def _close_soon(self, store: ClusterStore) -> None:
        closing = asyncio.ensure_future(store.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every store."""
        self.retain(())
        await asyncio.gather(*self._closing)
