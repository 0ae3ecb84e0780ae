"""What the REST routes ask of a broker.

Owns: the protocols behind the routes, one a resource, and `Resources`, which holds one of each.
Imports: names, Buffer. Invariant: every method raises errors of `magnetar.errors`, whose HTTP
status the application sends with `{"reason": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.rest.transaction_ports import TransactionPort
from magnetar.wire.checksum import Buffer

ListMode: TypeAlias = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
"""Which topics a list shows."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """An entry as REST shows it: what its metadata says, and its payload, uncompressed."""

    headers: Mapping[str, str]
    payload: Buffer


class HealthPort(Protocol):
    """The broker itself."""

    def ready(self) -> bool:
        """Whether clients should be sent here."""
        ...

    def live(self) -> bool:
        """Whether the process makes progress."""
        ...

    def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def status(self) -> dict[str, Any]:
        """What `magnetar status` shows: this broker, all brokers, bundles and their owners."""
        ...

    def version(self) -> str: ...

    async def lookup(self, topic: TopicName, listener: str) -> dict[str, str]:
        """Pulsar's LookupData: brokerUrl, httpUrl, nativeUrl, for clients of a listener ("" =
        the internal one)."""
        ...

    async def bundle_range(self, topic: TopicName) -> str:
        """The range of the bundle that a topic falls into. Raises NamespaceNotFound."""
        ...


class BrokerPort(Protocol):
    """Brokers, their health, settings and load."""

    async def check_health(self) -> None:
        """Publish and read a message. Raises ServiceNotReady saying what failed."""
        ...

    async def brokers(self, cluster: str) -> list[str]:
        """host:port of every live broker's HTTP. Raises TopicNotFound for a cluster that is not
        known."""
        ...

    async def leader_broker(self) -> dict[str, str]: ...

    async def owned_bundles(self, cluster: str, broker: str) -> dict[str, Any]:
        """Pulsar's NamespaceOwnershipStatus by bundle. Raises TopicNotFound for a broker that is
        not there."""
        ...

    async def check_backlog_quotas(self) -> None: ...

    def configuration(self) -> dict[str, str]:
        """Settings in force, as text."""
        ...

    def internal_configuration(self) -> dict[str, Any]: ...

    def metrics_json(self) -> list[dict[str, Any]]: ...

    def load_report(self) -> dict[str, Any]: ...

    async def broker_topics(self) -> dict[str, Any]:
        """TopicStats of all topics served here, by namespace, bundle and domain."""
        ...


class ClusterPort(Protocol):
    """Clusters."""

    async def clusters(self) -> list[str]: ...

    async def cluster(self, name: str) -> dict[str, Any]:
        """Pulsar's ClusterData. Raises TopicNotFound."""
        ...

    async def write_cluster(self, name: str, data: dict[str, Any], create: bool) -> None:
        """Raises TopicExists (`create`), TopicNotFound (not `create`)."""
        ...

    async def delete_cluster(self, name: str) -> None: ...


class TenantPort(Protocol):
    """Tenants."""

    async def tenants(self) -> list[str]: ...

    async def tenant(self, name: str) -> dict[str, Any]:
        """Pulsar's TenantInfo. Raises TopicNotFound."""
        ...

    async def write_tenant(self, name: str, body: dict[str, Any], create: bool) -> None:
        """Raises TopicExists (`create`), TopicNotFound (not `create`)."""
        ...

    async def delete_tenant(self, name: str, force: bool) -> None:
        """Raises NotAllowed while it has namespaces and `force` is not set."""
        ...


class DocumentPort(Protocol):
    """Stored documents."""

    async def documents(self, group: str) -> dict[str, Any]:
        """What was stored in a group, by name."""
        ...

    async def write_document(self, group: str, name: str, value: Any) -> None:
        """Store something, durably, or forget it (None)."""
        ...


class NamespacePort(Protocol):
    """Namespaces as a whole."""

    async def namespaces(self, tenant: str) -> list[str]: ...

    async def namespace(self, name: NamespaceName) -> dict[str, Any]:
        """Pulsar's Policies. Raises NamespaceNotFound."""
        ...

    async def create_namespace(
        self, name: NamespaceName, boundaries: tuple[int, ...], policies: dict[str, Any]
    ) -> None:
        """`boundaries` divide it into bundles. Raises TopicExists if it is there already,
        InvalidRequest for a policy that cannot be read."""
        ...

    async def delete_namespace(self, name: NamespaceName, force: bool) -> None:
        """Raises NotAllowed while it has topics and `force` is not set, OwnedByResource."""
        ...

    async def namespace_owner(self, name: NamespaceName) -> dict[str, Any]:
        """The custom resource that owns the namespace ("" = none), and the fields that it sets.
        Raises NamespaceNotFound."""
        ...

    def namespace_owners(self) -> dict[str, str]:
        """The custom resource of every namespace that has one."""
        ...

    async def release_namespace(self, name: NamespaceName) -> None:
        """Have its owner own neither the namespace nor its tenant any more; a custom resource
        that lives takes them (again)."""
        ...

    async def anti_affinity_namespaces(self, tenant: str, group: str) -> list[str]: ...


class BundlePort(Protocol):
    """Bundles of namespaces, and work on all topics in them."""

    async def unload_namespace(self, name: NamespaceName, destination: str) -> None:
        """Hand over all bundles of a namespace, whoever serves them."""
        ...

    async def split_bundle(
        self,
        name: NamespaceName,
        bundle: str,
        algorithm: str,
        positions: Sequence[int],
        *,
        unload: bool,
    ) -> None:
        """Divide one bundle (by its range) as `algorithm` ("" = the default) says; `unload`: its
        children are then placed again."""
        ...

    async def unload_bundle(self, name: NamespaceName, bundle: str, destination: str) -> None:
        """Hand over one bundle (by its range). Raises NotOwner, TopicNotFound."""
        ...

    async def pin_bundle(self, name: NamespaceName, bundle: str, seconds: float | None) -> None:
        """Have load balancing leave a bundle where it is, for so long (None = the default, 0 =
        no longer). Raises NotOwner, TopicNotFound."""
        ...

    async def clear_backlog(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Skip everything, for one subscription or ("") all, on all topics of a bundle or ("")
        of the namespace."""
        ...

    async def unsubscribe_all(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Delete one subscription from all topics of a bundle or ("") of the namespace."""
        ...

    def topics_of_bundle(
        self, name: NamespaceName, bundle: str, topics: Sequence[str]
    ) -> list[str]:
        """Those of `topics` that fall into a bundle."""
        ...

    def hash_positions(self, topics: Sequence[str]) -> dict[str, int]: ...


class PolicyPort(Protocol):
    """Policies and properties of namespaces and topics."""

    async def policies(self, target: NamespaceName | TopicName, applied: bool) -> dict[str, Any]:
        """Policies as they were set, by key; of a topic, with `applied`, those of its namespace
        where it has none."""
        ...

    async def edit_policies(
        self, target: NamespaceName | TopicName, edit: Callable[[dict[str, Any]], None]
    ) -> None:
        """Apply `edit` to a copy, check it (InvalidRequest, OwnedByResource) and make it
        durable. `edit` may run more than once."""
        ...

    async def properties(self, target: NamespaceName | TopicName) -> dict[str, str]: ...

    async def edit_properties(
        self, target: NamespaceName | TopicName, put: Mapping[str, str], remove: Sequence[str]
    ) -> None: ...


class TopicPort(Protocol):
    """Topics as a whole."""

    async def topics(self, name: NamespaceName, mode: ListMode = "PERSISTENT") -> list[str]:
        """Full names of the topics of a namespace, partitions included."""
        ...

    async def partitioned_topics(self, name: NamespaceName) -> list[str]: ...

    async def create_topic(self, topic: TopicName, properties: dict[str, str]) -> None:
        """Raises TopicExists."""
        ...

    async def delete_topic(self, topic: TopicName, force: bool) -> None:
        """Raises InUse while it has clients and `force` is not set."""
        ...

    async def partitions(self, topic: TopicName, may_create: bool) -> int:
        """Number of partitions; 0 for a topic that is not partitioned, or that using it will
        create. Raises TopicNotFound."""
        ...

    async def create_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raises TopicExists, InvalidRequest."""
        ...

    async def grow_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raises TopicNotFound, InvalidRequest."""
        ...

    async def delete_partitions(self, topic: TopicName, force: bool) -> None:
        """Delete a partitioned topic. Raises TopicNotFound, InUse."""
        ...

    async def stats(self, topic: TopicName) -> dict[str, Any]:
        """Statistics of a topic served here. Raises NotOwner or TopicNotFound."""
        ...

    async def internal_stats(self, topic: TopicName) -> dict[str, Any]: ...

    async def partitioned_stats(self, topic: TopicName, per_partition: bool) -> dict[str, Any]: ...

    async def partitioned_internal_stats(self, topic: TopicName) -> dict[str, Any]: ...

    async def last_message_id(self, topic: TopicName) -> dict[str, Any]: ...

    async def compaction_status(self, topic: TopicName) -> dict[str, Any]:
        """Pulsar's LongRunningProcessStatus."""
        ...

    async def compact(self, topic: TopicName) -> None:
        """Raises UnsupportedCommand saying how it is done."""
        ...

    async def terminate(self, topic: TopicName) -> dict[str, Any]:
        """Let nothing more be published; the last message id."""
        ...

    async def terminate_partitions(self, topic: TopicName) -> dict[str, Any]:
        """Last message ids by number of partition."""
        ...

    async def trim(self, topic: TopicName) -> None:
        """Drop what retention lets go."""
        ...

    async def truncate(self, topic: TopicName) -> None:
        """Drop everything."""
        ...

    async def roll(self, topic: TopicName) -> tuple[int, int]:
        """Make everything acknowledged so far readable from sealed, manifest-listed files; the
        last (ledger, entry)."""
        ...

    async def unload_topic(self, topic: TopicName, destination: str) -> None:
        """Hand the topic's bundle to another broker ("" = any)."""
        ...


class SubscriptionPort(Protocol):
    """Subscriptions. Positions are (ledger, entry), signed."""

    async def subscriptions(self, topic: TopicName) -> list[str]: ...

    async def create_subscription(
        self,
        topic: TopicName,
        subscription: str,
        position: tuple[int, int] | None,
        properties: dict[str, str],
    ) -> None:
        """Begins at `position`, or (None) behind the last message. Raises TopicExists."""
        ...

    async def subscription_properties(
        self, topic: TopicName, subscription: str
    ) -> dict[str, str]: ...

    async def replace_subscription_properties(
        self, topic: TopicName, subscription: str, properties: dict[str, str]
    ) -> None: ...

    async def delete_subscription(self, topic: TopicName, subscription: str, force: bool) -> None:
        """Raises InUse while it has consumers and `force` is not set."""
        ...

    async def skip(self, topic: TopicName, subscription: str, count: int | None) -> None:
        """Skip `count` entries, or all (None)."""
        ...

    async def expire(self, topic: TopicName, subscription: str | None, seconds: int) -> None:
        """Skip what is older than `seconds`, for one subscription or (None) all."""
        ...

    async def expire_to(
        self, topic: TopicName, subscription: str, position: tuple[int, int]
    ) -> None: ...

    async def reset_to_position(
        self, topic: TopicName, subscription: str, position: tuple[int, int], excluded: bool
    ) -> None: ...

    async def reset_to_time(
        self, topic: TopicName, subscription: str, timestamp_ms: int
    ) -> None: ...


class MessagePort(Protocol):
    """Single messages. Positions are (ledger, entry), signed."""

    async def peek(self, topic: TopicName, subscription: str, number: int) -> FoundMessage:
        """The `number`-th entry (from 1) that is not acknowledged. Raises TopicNotFound if there
        are fewer."""
        ...

    async def examine(self, topic: TopicName, origin: str, number: int) -> FoundMessage:
        """The `number`-th entry (from 1) from the "earliest" or the "latest"."""
        ...

    async def message(self, topic: TopicName, position: tuple[int, int]) -> FoundMessage: ...

    async def message_id_at(self, topic: TopicName, timestamp_ms: int) -> dict[str, Any]: ...

    async def analyze_backlog(self, topic: TopicName, subscription: str) -> dict[str, Any]:
        """Pulsar's AnalyzeSubscriptionBacklogResult."""
        ...

    async def backlog_size(self, topic: TopicName, position: tuple[int, int]) -> int: ...


class OperationPort(Protocol):
    """Operating the cluster's brokers."""

    def damage(self) -> list[dict[str, Any]]:
        """What is wrong with the storage of this broker right now: file, offset, topic, entries,
        error, since when."""
        ...

    def short_of_space(self) -> str:
        """Why this broker publishes nothing for want of space; "" while it has enough."""
        ...

    async def cordon(self, broker: str, *, drain: bool, reason: str, force: bool) -> None:
        """No new bundles for a broker; with `drain` it transfers those it has. Raises
        TopicNotFound, NotAllowed."""
        ...

    async def uncordon(self, broker: str) -> None:
        """Raises TopicNotFound."""
        ...

    async def cluster_damage(self) -> dict[str, Any]:
        """`damage` of every broker that answers, `short_of_space` by broker, and the names of
        those that do not, as `unreachable`."""
        ...


class ExplainPort(Protocol):
    """Why things are as they are."""

    async def explain(self, topic: TopicName | None, bundle: BundleName | None) -> dict[str, Any]:
        """Facts and sentences about a topic or (exactly one of both) a bundle. Raises
        NamespaceNotFound, InvalidRequest."""
        ...

    def explain_owned(self, topic: TopicName | None, bundle: BundleName) -> dict[str, Any]:
        """What only the bundle's owner knows; `serving` tells whether this broker is it."""
        ...


class Resources(Protocol):
    """The broker's side of the routes: one port a resource."""

    @property
    def health(self) -> HealthPort: ...

    @property
    def brokers(self) -> BrokerPort: ...

    @property
    def clusters(self) -> ClusterPort: ...

    @property
    def tenants(self) -> TenantPort: ...

    @property
    def documents(self) -> DocumentPort: ...

    @property
    def namespaces(self) -> NamespacePort: ...

    @property
    def bundles(self) -> BundlePort: ...

    @property
    def policies(self) -> PolicyPort: ...

    @property
    def topics(self) -> TopicPort: ...

    @property
    def subscriptions(self) -> SubscriptionPort: ...

    @property
    def messages(self) -> MessagePort: ...

    @property
    def operations(self) -> OperationPort: ...

    @property
    def explanations(self) -> ExplainPort: ...

    @property
    def transactions(self) -> TransactionPort: ...
