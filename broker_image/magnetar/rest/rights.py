"""The right that each route needs.

Owns: the table of routes and rights, and asking the gate before a route runs. Imports: FastAPI,
names, security.authorization. Source: Pulsar's admin resources (BrokersBase, TenantsBase,
NamespacesBase, PersistentTopicsBase): clusters and brokers are for super users, what is below a
tenant for its administrators, statistics and look-ups for who produces or consumes, subscriptions
for who consumes. A peer that is not known gets 401 everywhere; a known role without the right gets
what PulsarWebResource answers it: 403 where the right is checked for a namespace or a policy, and
401 where it is checked for the cluster, a tenant or a topic. Routes of our own answer it 403.
Invariants: every route is in the table under its own path (a test walks them); one that is not is
for super users alone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from fastapi import Request
from fastapi.params import Depends

from magnetar.errors import NotAuthorized, NotAuthorizedByRole
from magnetar.names import PERSISTENT
from magnetar.rest.answers import NAMESPACE, TOPIC, topic_name
from magnetar.security.authorization import Place, Right

_CONVERTER = re.compile(r":\w+}")


@lru_cache(maxsize=1024)
def spelled(path: str) -> str:
    """A route's path without the converters of its parameters."""
    return _CONVERTER.sub("}", path)


_N, _T = NAMESPACE, spelled(TOPIC)
_S = f"{_T}/subscription/{{subscription}}"
_SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
_LIST = "/admin/v2/{domain}/{tenant}/{namespace}"
_TRANSACTIONS, _ON_TOPIC = "/admin/v3/transactions", "{tenant}/{namespace}/{topic}"
READ = "GET"
Asked = Sequence[Depends]
"""What FastAPI asks before each route of a router."""

OPEN = (
    "/live",
    "/ready",
    "/status.html",
    "/docs",
    "/openapi.json",
    "/admin/v2/brokers/ready",
    "/admin/v2/brokers/version",
)
METRICS = ("/metrics", "/metrics/")
ANYBODY = (
    "/admin/v2/clusters",
    "/admin/v3/transactions/transactionMetadata/{most}/{least}",  # of their own transactions
)
SUPER = (
    "/magnetar/v1/status",
    "/magnetar/v1/damage",
    "/magnetar/v1/brokers/{broker}/cordon",
    "/magnetar/v1/namespaces/owners",
    "/magnetar/v1/explain",
    "/magnetar/v1/explain/owned",
    "/magnetar/v1/balance",
    "/magnetar/v1/balance/history",
    "/magnetar/v1/balance/decisions/{decision}",
    "/magnetar/v1/balance/plan",
    "/magnetar/v1/load-analytics",
    "/magnetar/v1/load-analytics/reports",
    "/magnetar/v1/load-analytics/reports/{report}",
    "/magnetar/v1/transactions",
    "/magnetar/v1/transactions/abort",
    "/magnetar/v1/transactions/{most}/{least}",
    "/admin/v3/transactions/coordinators",
    "/admin/v3/transactions/coordinatorStats",
    "/admin/v3/transactions/coordinatorInternalStats/{tcid}",
    "/admin/v3/transactions/transactionCoordinator/replicas",
    "/admin/v3/transactions/slowTransactions/{timeout}",
    "/admin/v3/transactions/abortTransaction/{most}/{least}",
    "/admin/v2/brokers",
    "/admin/v2/brokers/health",
    "/admin/v2/brokers/leaderBroker",
    "/admin/v2/brokers/backlog-quota-check",
    "/admin/v2/brokers/configuration",
    "/admin/v2/brokers/configuration/values",
    "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/brokers/configuration/{name}/{value}",
    "/admin/v2/brokers/configuration/{name}",
    "/admin/v2/brokers/internal-configuration",
    "/admin/v2/brokers/{cluster}",
    "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
    "/admin/v2/broker-stats/metrics",
    "/admin/v2/broker-stats/mbeans",
    "/admin/v2/broker-stats/destinations",
    "/admin/v2/broker-stats/topics",
    "/admin/v2/broker-stats/load-report",
    "/admin/v2/broker-stats/allocator-stats/{allocator}",
    "/admin/v2/clusters/{cluster}",
    "/admin/v2/clusters/{cluster}/peers",
    "/admin/v2/clusters/{cluster}/migrate",
    "/admin/v2/clusters/{cluster}/failureDomains",
    "/admin/v2/clusters/{cluster}/failureDomains/{name}",
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies",
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers",
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}",
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{name}",
    "/admin/v2/resourcegroups",
    "/admin/v2/resourcegroups/{name}",
    "/admin/v2/resource-quotas",
    "/admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}",
    "/admin/v2/bookies/all",
    "/admin/v2/bookies/racks-info",
    "/admin/v2/tenants",
    "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
    "/admin/namespaces/{cluster}/antiAffinity/{group}",
    "/internal/v1/store/get",
    "/internal/v1/store/range",
    "/internal/v1/store/transact",
)
_REFUSED_ANYWAY = (
    "/admin/v3/functions",
    "/admin/v3/functions/{rest}",
    "/admin/v3/function",
    "/admin/v3/function/{rest}",
    "/admin/v3/sinks",
    "/admin/v3/sinks/{rest}",
    "/admin/v3/sink",
    "/admin/v3/sink/{rest}",
    "/admin/v3/sources",
    "/admin/v3/sources/{rest}",
    "/admin/v3/source",
    "/admin/v3/source/{rest}",
    "/admin/v3/packages",
    "/admin/v3/packages/{rest}",
    "/admin/v2/worker/{rest}",
    "/admin/v2/worker-stats/{rest}",
)
"""Known and not offered: every known role learns so."""
ADMINISTER = (
    "/magnetar/v1/namespaces/{tenant}/{namespace}/policies",
    "/magnetar/v1/namespaces/{tenant}/{namespace}/owner",
    "/magnetar/v1/namespaces/{tenant}/{namespace}/{bundle}/pin",
    "/magnetar/v1/namespaces/{tenant}/{namespace}/{bundle}/merge",
    "/admin/v2/namespaces/{tenant}",
    _N,
    f"{_N}/bundles",
    f"{_N}/{{bundle}}/topicHashPositions",
    f"{_N}/unload",
    f"{_N}/{{bundle}}/unload",
    f"{_N}/{{bundle}}/split",
    f"{_N}/permissions",
    f"{_N}/permissions/{{role}}",
    f"{_N}/permissions/subscription",
    f"{_N}/permissions/subscription/{{subscription}}",
    f"{_N}/permissions/{{subscription}}/{{role}}",
    f"{_N}/{{policy}}",
    f"{_N}/clearBacklog",
    f"{_N}/{{bundle}}/clearBacklog",
    f"{_N}/resourcegroup/{{group}}",
    f"{_N}/backlogQuotaMap",
    f"{_N}/backlogQuota",
    f"{_N}/properties",
    f"{_N}/property/{{key}}",
    f"{_N}/property/{{key}}/{{value}}",
    f"{_N}/removeOffloadPolicies",
    _T,
    f"{_T}/unload",
    f"{_T}/roll",
    f"{_T}/terminate",
    f"{_T}/terminate/partitions",
    f"{_T}/trim",
    f"{_T}/truncate",
    f"{_T}/createMissedPartitions",
    f"{_T}/internal-info",
    f"{_T}/compaction",
    f"{_T}/permissions",
    f"{_T}/permissions/{{role}}",
    f"{_T}/{{policy}}",
    f"{_T}/policies",
    f"{_T}/backlogQuotaMap",
    f"{_T}/backlogQuota",
    f"{_T}/properties",
    f"{_T}/offload",
    f"{_T}/shadowTopics",
    f"{_T}/ledger/{{ledger}}/entry/{{entry}}",
    f"{_T}/all_subscription/expireMessages/{{seconds}}",
    f"{_SCHEMAS}/compatibility",
)
USE = (
    _LOOKUP,
    f"{_LOOKUP}/bundle",
    f"{_N}/topics",
    _LIST,
    f"{_LIST}/partitioned",
    f"{_T}/stats",
    f"{_T}/internalStats",
    f"{_T}/partitioned-stats",
    f"{_T}/partitioned-internalStats",
    f"{_T}/lastMessageId",
    f"{_SCHEMAS}/schema/{{version}}",
    f"{_SCHEMAS}/schemas",
    f"{_SCHEMAS}/version",
    f"{_SCHEMAS}/metadata",
    f"{_TRANSACTIONS}/transactionBufferStats/{_ON_TOPIC}",
    f"{_TRANSACTIONS}/transactionInBufferStats/{_ON_TOPIC}/{{most}}/{{least}}",
    f"{_TRANSACTIONS}/transactionBufferInternalStats/{_ON_TOPIC}",
    f"/magnetar/v1/watermarks/{_ON_TOPIC}",
)
CONSUME = (
    _S,
    f"{_S}/position/{{number}}",
    f"{_S}/analyzeBacklog",
    f"{_S}/properties",
    f"{_S}/resetcursor",
    f"{_S}/resetcursor/{{timestamp}}",
    f"{_S}/skip/{{count}}",
    f"{_S}/skip_all",
    f"{_S}/expireMessages",
    f"{_S}/expireMessages/{{seconds}}",
    f"{_S}/replicatedSubscriptionStatus",
    f"{_S}/watermark",
    f"{_T}/replicatedSubscriptionStatus",
    f"{_T}/subscriptions",
    f"{_T}/examinemessage",
    f"{_T}/messageid/{{timestamp}}",
    f"{_T}/backlogSize",
    f"{_N}/clearBacklog/{{subscription}}",
    f"{_N}/{{bundle}}/clearBacklog/{{subscription}}",
    f"{_N}/unsubscribe/{{subscription}}",
    f"{_N}/{{bundle}}/unsubscribe/{{subscription}}",
    f"{_TRANSACTIONS}/pendingAckStats/{_ON_TOPIC}/{{subscription}}",
    f"{_TRANSACTIONS}/transactionInPendingAckStats/{_ON_TOPIC}/{{subscription}}/{{most}}/{{least}}",
    f"{_TRANSACTIONS}/positionStatsInPendingAck/{_ON_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}",
    f"{_TRANSACTIONS}/pendingAckInternalStats/{_ON_TOPIC}/{{subscription}}",
)
RIGHTS: Mapping[str, Right] = {
    **dict.fromkeys((*OPEN, *METRICS), Right.OPEN),
    **dict.fromkeys((*ANYBODY, *_REFUSED_ANYWAY), Right.ANYBODY),
    **dict.fromkeys(SUPER, Right.SUPER),
    **dict.fromkeys(ADMINISTER, Right.ADMINISTER),
    **dict.fromkeys(USE, Right.USE),
    **dict.fromkeys(CONSUME, Right.CONSUME),
}
READ_RIGHTS: Mapping[str, Right] = {
    "/admin/v2/tenants/{tenant}": Right.ADMINISTER,
    f"{_T}/partitions": Right.USE,
    f"{_SCHEMAS}/schema": Right.USE,
}
"""Where GET needs less than the other methods do."""
OTHER_RIGHTS: Mapping[str, Right] = {
    "/admin/v2/tenants/{tenant}": Right.SUPER,
    f"{_T}/partitions": Right.ADMINISTER,
    f"{_SCHEMAS}/schema": Right.ADMINISTER,
}


_OURS = ("/magnetar/", "/internal/", "/metrics")
_TENANTS_WORK = (f"{_N}/unload", f"{_N}/{{bundle}}/unload", f"{_N}/{{bundle}}/split")
"""Below the path of a namespace, but Pulsar asks for a right of the tenant or of the cluster."""
_NAMESPACES_WORK = frozenset(
    {
        _LIST,
        f"{_LIST}/partitioned",
        _T,
        f"{_T}/{{policy}}",
        f"{_T}/policies",
        f"{_T}/backlogQuota",
        f"{_T}/backlogQuotaMap",
    }
)
"""Below the path of a topic, but Pulsar asks for a right of the namespace, or for one on a
policy."""


def answers_401(method: str, path: str) -> bool:
    """Whether a known role without the right gets 401 from this route, by the path it was
    declared with, and not 403."""
    path = spelled(path)
    if path.startswith(_OURS):
        return False
    if path == _N:  # created and deleted by the tenant's administrators, read by the namespace's
        return method not in (READ, "HEAD")
    if path == f"{_T}/partitions":
        return method in (READ, "HEAD")
    if path.startswith(_N):
        return path in _TENANTS_WORK
    return path not in _NAMESPACES_WORK


def right_of(method: str, path: str) -> Right | None:
    """What a route needs, by the path it was declared with; None if it is not in the table."""
    by_method = READ_RIGHTS if method in (READ, "HEAD") else OTHER_RIGHTS
    return by_method.get(spelled(path)) or RIGHTS.get(spelled(path))


class Gate(Protocol):
    """Decides who may have a request answered."""

    async def admit(
        self, request: Request, right: Right, place: Callable[[], tuple[str, Place]]
    ) -> None:
        """`place`: the namespace ("" = none, or a tenant alone) and topic that the request names;
        looked at once it is known who asks.

        Raises AuthenticationFailed, NotAuthorized, and what `place` does.
        """
        ...

    def metrics_are_open(self) -> bool:
        """Whether /metrics is answered to everybody."""
        ...


def gate_of(gate: Gate) -> Callable[[Request], Awaitable[None]]:
    """What FastAPI runs before each route."""

    async def admit(request: Request) -> None:
        path = request.scope["route"].path
        right = right_of(request.method, path) or Right.SUPER
        if path in METRICS and not gate.metrics_are_open():
            right = Right.ANYBODY
        if right is Right.OPEN:
            return
        try:
            await gate.admit(request, right, lambda: _place(request.path_params))
        except NotAuthorized as error:
            if answers_401(request.method, path):
                raise NotAuthorizedByRole(str(error)) from error
            raise

    return admit


def _place(names: Mapping[str, str]) -> tuple[str, Place]:
    """The namespace ("" = none, or a tenant alone) and topic that a path names. Raises
    InvalidTopicName."""
    tenant, namespace = names.get("tenant", ""), names.get("namespace", "")
    if not namespace:
        return tenant, Place()
    topic = names.get("topic")
    named = topic_name(names.get("domain", PERSISTENT), tenant, namespace, topic) if topic else None
    return f"{tenant}/{namespace}", Place(named, names.get("subscription", ""))
