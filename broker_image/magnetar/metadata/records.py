"""Records of the metadata store.

Owns: the value of every key in `keys`, as frozen dataclasses. Imports: codec (how they are
written and read, with their invariants). Invariant: a field that is added has a default, and raises
the schema number.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.metadata.codec import FIRST_SCHEMA, Record

RESTORE_STRIDE = 1 << 36
"""The epoch of a term is restore number * RESTORE_STRIDE + revision of the record it began with.
A larger revision carries into the numbers above."""
RESTORES_MAX = 255
"""The highest restore number: message ids have room for 8 bits of it."""
INTERNAL_LISTENER = "internal"
"""The listener that every broker has."""
OVER_TLS = "/tls"
"""What the name of a listener is followed by where its addresses with TLS stand."""
BROKER_CONFIGURATION = "brokerConfiguration"
OPERATOR_CONFIGURATION = "operatorConfiguration"
"""The part of the former that the operator has written: what it may remove again."""
FAILURE_DOMAINS = "failureDomains"
ISOLATION_POLICIES = "namespaceIsolationPolicies"
RESOURCE_GROUPS = "resourcegroups"
NODE_ZONES = "nodeZones"
"""Groups of documents that brokers act on; failure domains, isolation policies and zones are followed by a slash and the
cluster. The last one is the operator's: the zone of each broker's node."""
COORDINATORS_MAX = 16
"""Transaction coordinators of one cluster."""


class BundleState(enum.StrEnum):
    """States of a bundle's record: PIP-192's, with Init meaning that there is no record, and
    Merging, which Pulsar does not have."""

    FREE = "Free"
    ASSIGNING = "Assigning"
    OWNED = "Owned"
    RELEASING = "Releasing"
    SPLITTING = "Splitting"
    MERGING = "Merging"
    DELETED = "Deleted"


class CoordinatorState(enum.StrEnum):
    """What the holder of a transaction coordinator's number does with it."""

    RECOVERING = "Recovering"
    SERVING = "Serving"
    RETIRING = "Retiring"
    RELEASED = "Released"


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A byte position in an incarnation's log: file number and offset in that file."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of one incarnation's log, [start, end); end None = still being written (its owner
    is the current one)."""

    incarnation: str
    start: LogPosition
    end: LogPosition | None


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """The bundle's newest checkpoint: object name in the volume, and the log position up to
    which it holds everything."""

    object: str
    incarnation: str
    position: LogPosition


@dataclass(frozen=True, slots=True)
class BundleRecord(Record):
    """`bundles/<bundle>`: who owns it, and how to recover it.

    `epoch` is that of the current or last Assigning record. `epochs` lists the epochs whose records
    in `chain` are valid: all terms since the checkpoint, oldest first. `incarnation` is the owner
    (Owned, Releasing, Splitting, Merging) or the destination (Assigning). `destination` is the requested
    next owner while Releasing ("" = any). `source` is the previous owner while Assigning.
    `boundaries` say where it is divided while Splitting; while Merging they are the edges of the
    two bundles that become one: low end, common edge, high end. `pinned_until_ms` (wall clock, 0 = not
    pinned): until then load balancing does not move it from `incarnation`, or while Releasing from
    `destination`.
    """

    state: BundleState
    epoch: int
    incarnation: str = ""
    source: str = ""
    destination: str = ""
    checkpoint: CheckpointPointer | None = None
    chain: tuple[LogRange, ...] = ()
    epochs: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()
    reason: str = ""
    pinned_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """Where clients of one listener reach a broker; "" means that the listener has no such
    address."""

    service_url: str
    http_url: str = ""
    service_url_tls: str = ""
    http_url_tls: str = ""


def over_tls(listener: str) -> str:
    """What connections by TLS call a listener; no listener can be named so."""
    return listener if listener.endswith(OVER_TLS) else listener + OVER_TLS


def service_url_on(
    listener: str, internal: ListenerAddress, others: Mapping[str, ListenerAddress]
) -> str | None:
    """The address on a listener, or by TLS on `over_tls(listener)`; None if there is none."""
    name = listener.removesuffix(OVER_TLS)
    address = internal if name == INTERNAL_LISTENER else others.get(name)
    if address is None:
        return None
    return (address.service_url_tls if listener.endswith(OVER_TLS) else address.service_url) or None


@dataclass(frozen=True, slots=True)
class IncarnationRecord(Record):
    """`incarnations/<id>`, bound to the broker's lease: this process serves.

    `service_url` and `http_url` are those of the internal listener, which brokers use among
    themselves (by TLS if there is no plain port); `listeners` has the others by name. The `_tls`
    ones are "" for a broker without TLS.
    """

    broker: str
    service_url: str
    http_url: str
    started_ms: int
    version: str
    draining: bool = False
    listeners: dict[str, ListenerAddress] = dataclasses.field(default_factory=dict)
    service_url_tls: str = ""
    http_url_tls: str = ""

    def service_url_on(self, listener: str) -> str | None:
        """The broker's address on a listener, or by TLS on `over_tls(listener)`; None if it has
        none."""
        internal = ListenerAddress(
            self.service_url, self.http_url, self.service_url_tls, self.http_url_tls
        )
        return service_url_on(listener, internal, self.listeners)


@dataclass(frozen=True, slots=True)
class LogFileRecord(Record):
    """`logs/<incarnation>/<n>`: a sealed log file. `length` copies the sealed length in storage."""

    length: int
    bundles: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class NamespaceRecord(Record):
    """`namespaces/<tenant>/<namespace>`. `owner` is namespace/name of the TopicNamespace that owns
    it ("" = none).

    `owned` are the fields that the owner sets, as `owned_fields` names them, sorted; any client may
    set the others. `deleting` is the incarnation that deletes the namespace ("" = none), in which
    no topic comes into being for as long as that incarnation lives. `bundles_created` is the number
    of bundles that it was created with (0 = unknown): load balancing merges it to no fewer.
    """

    SCHEMA = FIRST_SCHEMA + 1

    boundaries: tuple[int, ...]
    policies: dict[str, Any]
    owner: str = ""
    owned: tuple[str, ...] = ()
    deleting: str = ""
    bundles_created: int = 0


@dataclass(frozen=True, slots=True)
class PartitionedTopicRecord(Record):
    """`topics/...`: the entry of a topic; `partitions` 0 is a plain one, or a partition that is in
    use.

    `subscriptions` are durable ones that partitions are born with, since their topic had them when
    it grew.
    """

    partitions: int
    properties: dict[str, str]
    subscriptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPoliciesRecord(Record):
    """`policies/...`: policies of a partitioned topic (for all its partitions) or of a
    non-persistent one, under the names of `policies`."""

    policies: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaRecord(Record):
    """`schemas/<tenant>/<namespace>/<topic>/<version>`: one version of a topic's schema.

    `type` is the name that REST gives it, `data` its definition in base64. With `deleted` it ends
    the versions before it, and has no definition.
    """

    type: str
    data: str
    properties: dict[str, str]
    timestamp_ms: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class TenantRecord(Record):
    """`tenants/<tenant>`: Pulsar's TenantInfo. `owner` and `owned` as in `NamespaceRecord`."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()
    owner: str = ""
    owned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterDataRecord(Record):
    """`clusters/<cluster>`: Pulsar's ClusterData as it was given."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentsRecord(Record):
    """`documents/<group>`: what administrators stored, by name; it is returned as it came."""

    documents: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ManifestPointer(Record):
    """`manifests/<bundle>`: the bundle's current manifest object in the volume; `generation`
    grows by one per change."""

    generation: int
    object: str


@dataclass(frozen=True, slots=True)
class IntentRecord(Record):
    """`intents/<id>`: a broker or job writes files of this bundle whose names begin with the id.
    Without it they may be deleted.

    `job` and `run` name the writer: a job's run, or for a broker's own rewriting "" and its
    incarnation.
    """

    kind: str
    bundle: str
    topic: str
    job: str
    run: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class ClusterRecord(Record):
    """`cluster`: facts about the whole cluster."""

    storage_id: str
    restore: int
    format_version: int


@dataclass(frozen=True, slots=True)
class RestoreRecord(Record):
    """`restore-number`: that of the cluster's record, under a key that changes with nothing
    else."""

    number: int


@dataclass(frozen=True, slots=True)
class BackupRecord(Record):
    """`backup`: the newest copy of this store that was written, or is about to be, into storage:
    made under `restore` of `revision`."""

    restore: int
    revision: int


@dataclass(frozen=True, slots=True)
class BackupReportRecord(Record):
    """`backup-report`: the newest copy of the store in storage (`object` of `revision`, made at
    `created_ms`; "" = this leader has made none yet), when it was last found or made current
    (`current_ms`, 0 = never), and why the last try failed ("" = it did not). Milliseconds since
    the epoch."""

    object: str = ""
    revision: int = 0
    created_ms: int = 0
    current_ms: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RestoreRequestRecord(Record):
    """`restore-request`: who asked for the restore that filled this store, in the requester's
    own words."""

    request: str


@dataclass(frozen=True, slots=True)
class CordonRecord(Record):
    """`cordons/<broker>`: this broker takes no new bundles; with `drain` it transfers those it
    has."""

    drain: bool
    reason: str


@dataclass(frozen=True, slots=True)
class JobRunRecord(Record):
    """`jobs/<job>/<run>`: the durable result of a run: it decides, not the pod. `result` is
    kind-specific."""

    kind: str
    state: str
    started_ms: int
    finished_ms: int
    result: dict[str, Any]
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobProgressRecord(Record):
    """`jobs/<job>/<run>/progress`: how far a driver is. `bytes_planned` are those of the topics
    that have been planned so far; `percent` and `eta_s` are None while they cannot be estimated."""

    phase: str
    topics_done: int
    topics_total: int
    bytes_done: int
    bytes_planned: int
    percent: int | None
    bytes_per_s: int
    eta_s: int | None
    updated_ms: int


@dataclass(frozen=True, slots=True)
class CoordinatorSetRecord(Record):
    """`coordinator-set`: how many transaction coordinators there are.

    Numbers (TCIDs) below `limit` may begin transactions, the others only end theirs: the operator
    sets it ("" in `owner`: it did not). Clients see the first `announced`; number n
    announces itself when all below it are.
    """

    limit: int
    announced: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorRecord(Record):
    """`coordinators/<tcid>`: the incarnation that holds or last held this number.

    `epoch` grows with every incarnation, also across a restore. `open_transactions` is exact while
    Retiring and after Released, since nothing is begun then; while Serving it is what was last
    reported, and while Recovering what the incarnation before said. `checkpoint` and `chain` are
    how to recover the number's transactions, as in `BundleRecord`; a chain is empty while the
    number has never had a log. An incarnation puts its own log into the chain before it answers
    anything.
    """

    incarnation: str
    epoch: int
    state: CoordinatorState
    open_transactions: int = 0
    checkpoint: CheckpointPointer | None = None
    chain: tuple[LogRange, ...] = ()


@dataclass(frozen=True, slots=True)
class CoordinatorClaimRecord(Record):
    """`coordinator-claims/<tcid>`, bound to the holder's lease: where this number is served. It
    exists before anything is done under it.

    Addresses are as in `IncarnationRecord`.
    """

    incarnation: str
    epoch: int
    name: str
    service_url: str
    http_url: str
    started_ms: int
    version: str
    service_url_tls: str = ""
    http_url_tls: str = ""
    listeners: dict[str, ListenerAddress] = dataclasses.field(default_factory=dict)

    def service_url_on(self, listener: str) -> str | None:
        """The coordinator's address on a listener, or by TLS on `over_tls(listener)`; None if it
        has none."""
        internal = ListenerAddress(
            self.service_url, self.http_url, self.service_url_tls, self.http_url_tls
        )
        return service_url_on(listener, internal, self.listeners)
