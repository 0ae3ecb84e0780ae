"""Keys of the metadata store.

Owns: every key's spelling. Imports: names. Pure. No other module writes a key as a literal.
Durable: all in `DURABLE`, which is what a backup holds. Bound to a broker's lease: incarnations/,
load/, leader. Bound to a coordinator's lease: coordinator-claims/. Bound to the operator's or a
job's lease: none.
"""

from __future__ import annotations

from urllib.parse import quote

from magnetar.names import BundleName, NamespaceName, TopicName

CLUSTER = "cluster"
LEADER = "leader"
OPERATOR_TERM = "operator/term"
BUNDLES = "bundles/"
INCARNATIONS = "incarnations/"
LOAD = "load/"
NAMESPACES = "namespaces/"
CORDONS = "cordons/"
MANIFESTS = "manifests/"
LOGS = "logs/"
TOPICS = "topics/"
TOPIC_CHANGES = "topic-changes/"
INTENTS = "intents/"
JOBS = "jobs/"
POLICIES = "policies/"
SCHEMAS = "schemas/"
TENANTS = "tenants/"
CLUSTERS = "clusters/"
DOCUMENTS = "documents/"
BROKERS = "brokers/"
COORDINATORS = "coordinators/"
COORDINATOR_SET = "coordinator-set"
COORDINATOR_CLAIMS = "coordinator-claims/"
COORDINATOR_PRESENCE = "coordinator-"
"""Both: the wanted coordinators, and the present ones."""
RESTORE = "restore-number"
"""Every change that a broker makes compares it: an incarnation from before a restore changes
nothing."""
BACKUP = "backup"
"""Which of the copies in storage is the newest: a store that has learned of none as new has gone
back in time."""
RESTORE_REQUEST = "restore-request"
"""The request that the store was last filled for. Not durable: a copy must not bring an older
one back."""
BACKUP_REPORT = "backup-report"
"""How the leader's copies fare. Not durable: it speaks of copies, and is in none."""
DURABLE = (
    CLUSTER,
    RESTORE,
    BACKUP,
    OPERATOR_TERM,
    BUNDLES,
    NAMESPACES,
    TOPICS,
    TOPIC_CHANGES,
    LOGS,
    MANIFESTS,
    BROKERS,
    CORDONS,
    INTENTS,
    JOBS,
    POLICIES,
    SCHEMAS,
    TENANTS,
    CLUSTERS,
    DOCUMENTS,
    COORDINATORS,
    COORDINATOR_SET,
)


def is_durable(key: str) -> bool:
    """Whether the key outlives the processes that wrote it: it is one of `DURABLE`, or below one
    that ends in a slash."""
    return is_one_of(key, DURABLE)


def is_one_of(key: str, kinds: tuple[str, ...]) -> bool:
    """Whether `key` is one of these, or below one of them that ends in a slash."""
    return any(key.startswith(known) if known.endswith("/") else key == known for known in kinds)


def bundle(name: BundleName) -> str:
    return f"{BUNDLES}{name}"


def bundles_in(namespace: NamespaceName) -> str:
    return f"{BUNDLES}{namespace}/"


def manifest(name: BundleName) -> str:
    return f"{MANIFESTS}{name}"


def incarnation(identifier: str) -> str:
    return f"{INCARNATIONS}{identifier}"


def load(identifier: str) -> str:
    return f"{LOAD}{identifier}"


def log_file(incarnation_id: str, number: int) -> str:
    return f"{LOGS}{incarnation_id}/{number:08d}"


def logs_of(incarnation_id: str) -> str:
    return f"{LOGS}{incarnation_id}/"


def namespace(name: NamespaceName) -> str:
    return f"{NAMESPACES}{name}"


def cordon(broker: str) -> str:
    return f"{CORDONS}{broker}"


def partitioned_topic(name: TopicName) -> str:
    """The entry of a topic: of a partitioned one (it stands for its partitions), of a plain one,
    or of a partition in use."""
    return f"{TOPICS}{name.tenant}/{name.namespace}/{name.domain}/{name.local}"


def partitioned_topics_in(name: NamespaceName) -> str:
    return f"{TOPICS}{name}/"


def topic_changes(name: NamespaceName) -> str:
    """Written with every change of an entry of the namespace: its revision shows how far a
    mirror must be."""
    return f"{TOPIC_CHANGES}{name}"


def job_run(job: str, run: str) -> str:
    """Durable record of one DataJob run; `job` is namespace/name of the custom resource or a
    name given on the command line."""
    return f"{JOBS}{job}/{run}"


def job_progress(job: str, run: str) -> str:
    """How far the driver of that run is; nothing is decided by it."""
    return f"{job_run(job, run)}/progress"


def intent(identifier: str) -> str:
    return f"{INTENTS}{identifier}"


def topic_policies(name: TopicName) -> str:
    """Policies of a partitioned or non-persistent topic; those of any other persistent topic are
    its own properties."""
    return f"{POLICIES}{name.tenant}/{name.namespace}/{name.domain}/{name.local}"


def topic_policies_in(name: NamespaceName) -> str:
    return f"{POLICIES}{name}/"


def schemas_of(name: TopicName) -> str:
    """All versions of a topic's schema: partitions share those of their topic, and, as with Pulsar,
    a non-persistent topic those of a persistent one of its name."""
    return f"{SCHEMAS}{name.namespace_name}/{quote(name.base.local, safe='')}/"


def schemas_in(name: NamespaceName) -> str:
    return f"{SCHEMAS}{name}/"


def schema_version(name: TopicName, version: int) -> str:
    return f"{schemas_of(name)}{version:010d}"


def tenant(name: str) -> str:
    return f"{TENANTS}{name}"


def cluster_data(name: str) -> str:
    """What an administrator said about a cluster (Pulsar's ClusterData); `CLUSTER` is about
    this one."""
    return f"{CLUSTERS}{name}"


def documents(group: str) -> str:
    """What administrators store and only read back, by groups."""
    return f"{DOCUMENTS}{group}"


def coordinator(tcid: int) -> str:
    """What is known of a transaction coordinator's number, with any holder."""
    return f"{COORDINATORS}{tcid}"


def coordinator_claim(tcid: int) -> str:
    """Who holds a transaction coordinator's number now, and where."""
    return f"{COORDINATOR_CLAIMS}{tcid}"
