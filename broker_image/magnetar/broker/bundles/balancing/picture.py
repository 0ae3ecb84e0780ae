"""The cluster as decisions see it.

Owns: `Sight`, copies of this broker's views at one moment, and `Picture`, which is made of them.
Imports: balance, views, records. Invariants: `Sight` is taken on the event loop, in a few copies;
a picture is made of it on any thread; brokers are known by their names, which survive restarts; a
broker that is draining or cordoned is not among those that take bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from magnetar.balance.advice import LoadAdvice
from magnetar.balance.cluster import Broker, Cluster, joined
from magnetar.balance.filters import Policies
from magnetar.balance.load import LoadReport
from magnetar.broker.bundles.balancing.policies import (
    ANTI_AFFINITY,
    domains,
    isolation_policies,
    zones,
)
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata.records import (
    FAILURE_DOMAINS,
    ISOLATION_POLICIES,
    NODE_ZONES,
    BundleRecord,
    BundleState,
    DocumentsRecord,
    IncarnationRecord,
    NamespaceRecord,
)
from magnetar.names import CLUSTER_NAME
from magnetar.ownership.rules import is_pinned


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster, its policies, the incarnation of each broker that takes bundles, and the advice
    of load analytics, if there is any."""

    cluster: Cluster
    policies: Policies
    incarnations: Mapping[str, str]
    advice: LoadAdvice | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What this broker knows at one moment. `candidates` are incarnations that take bundles."""

    now_ms: int
    candidates: frozenset[str]
    incarnations: Mapping[str, Viewed[IncarnationRecord]]
    bundles: Mapping[str, Viewed[BundleRecord]]
    namespaces: Mapping[str, Viewed[NamespaceRecord]]
    documents: Mapping[str, Viewed[DocumentsRecord]]
    live: Mapping[str, LoadReport]
    reports: tuple[LoadReport, ...]
    advice: Callable[[], LoadAdvice | None] = lambda: None

    @staticmethod
    def take(
        now_ms: int,
        views: ClusterViews,
        reports: Reports,
        candidates: Collection[str],
        advice: Callable[[], LoadAdvice | None] = lambda: None,
    ) -> Sight:
        """`advice` is asked on the thread that makes the picture: it may have to be read."""
        live = {name: found for name in candidates if (found := reports.get(name)) is not None}
        return Sight(
            now_ms,
            frozenset(candidates),
            dict(views.incarnations.items),
            dict(views.bundles.items),
            dict(views.namespaces.items),
            dict(views.documents.items),
            live,
            tuple(reports.all()),
            advice,
        )

    def picture(self, only: Collection[str] | None = None) -> Picture:
        """All bundles; with `only` those that candidates have, and of the others these."""
        started = sorted(
            (self.incarnations[name].record.started_ms, name)
            for name in self.candidates
            if name in self.incarnations
        )
        incarnations = {self.incarnations[name].record.broker: name for _, name in started}
        owners, fixed = self._owners(incarnations, only)
        known = zones(self._stored(NODE_ZONES)) | domains(self._stored(FAILURE_DOMAINS))
        cluster = Cluster(
            self.now_ms,
            tuple(
                self._broker(broker, name, known) for broker, name in sorted(incarnations.items())
            ),
            joined(owners, self.reports, fixed),
        )
        return Picture(cluster, self._policies(), incarnations, self.advice())

    def _owners(
        self, candidates: Mapping[str, str], only: Collection[str] | None
    ) -> tuple[dict[str, str], set[str]]:
        """Brokers by bundle, and the bundles that stay: pinned, or changing hands."""
        owners: dict[str, str] = {}
        fixed: set[str] = set()
        for name, viewed in self.bundles.items():
            record = viewed.record
            if record.state is BundleState.DELETED:
                continue
            owner = self._owner(record)
            if only is not None and owner not in candidates:
                if name not in only:
                    continue
                owner = ""
            owners[name] = owner
            if record.state is not BundleState.OWNED or is_pinned(record, self.now_ms):
                fixed.add(name)
        return owners, fixed

    def _owner(self, record: BundleRecord) -> str:
        """The broker that has a bundle, or is about to."""
        for holder in (record.destination, record.incarnation):
            found = self.incarnations.get(holder)
            if found is not None and record.state is not BundleState.FREE:
                return found.record.broker
        return ""

    def _broker(self, broker: str, incarnation: str, known: Mapping[str, str]) -> Broker:
        """`known` are failure domains by address, host or name; zones are by name."""
        record = self.incarnations[incarnation].record
        address = record.http_url.partition("://")[2]
        host = urlsplit(record.http_url).hostname or broker
        domain = next((known[name] for name in (address, host, broker) if name in known), "")
        return Broker(broker, self.live.get(incarnation), host, domain, record.version)

    def _stored(self, group: str) -> Mapping[str, object]:
        viewed = self.documents.get(f"{group}/{CLUSTER_NAME}")
        return viewed.record.documents if viewed is not None else {}

    def _policies(self) -> Policies:
        groups = {
            name: str(group)
            for name, viewed in self.namespaces.items()
            if (group := viewed.record.policies.get(ANTI_AFFINITY))
        }
        return Policies(isolation_policies(self._stored(ISOLATION_POLICIES)), groups)
