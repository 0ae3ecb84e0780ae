"""Conditions: their types, reasons and the way they change.

Owns: every reason with its meaning and remedy (docs, events and messages use these), what the
conditions say of a problem, and the merge with the previous conditions. Imports: models.base,
outages. Pure. Invariants: a reason is declared here or does not exist; `last_transition_time`
changes exactly when `status` does; every condition carries the generation that it speaks of.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from magnetar.errors import MagnetarError, StoreError
from magnetar.resources.base import Condition
from magnetar_operator.stores.outages import LOOK_AGAIN_MIN_S, StoreOutage

MESSAGE_LENGTH_MAX = 1000


class Type(enum.StrEnum):
    """Aspects of an object."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    READY = "Ready"
    AUTOSCALING = "Autoscaling"
    CERTIFICATE = "Certificate"
    PROTECTED = "Protected"


class Reason(enum.Enum):
    """Why a condition is as it is: (word, meaning, what to do)."""

    AS_DESIRED = "AsDesired", "Everything is as the spec says.", "Nothing."
    PAUSED = (
        "Paused",
        "The annotation magnetar.io/paused stops the operator here.",
        "Remove the annotation to go on.",
    )
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec contradicts itself or is newer than the operator.",
        "Correct the field named, or upgrade the operator.",
    )
    REFUSED = (
        "RefusedByKubernetes",
        "The API server refused an object.",
        "The message names object and field; quotas and admission count too.",
    )
    OPERATOR_ERROR = (
        "OperatorError",
        "The operator failed on this object by an error of its own; others are not touched by that.",
        "Report it with the operator's log of that moment; it tries again with growing pauses.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object of that name belongs to somebody else.",
        "Rename one of the two, or delete the other object.",
    )
    STORE_STARTING = (
        "MetadataStoreStarting",
        "The managed etcd is not up yet.",
        "Wait; if it lasts, look at the etcd pod's events.",
    )
    STORE_UNAVAILABLE = (
        "MetadataStoreUnavailable",
        "etcd does not answer.",
        "Look at the etcd pods, or at the external endpoints.",
    )
    ETCD_CREDENTIALS = (
        "EtcdCredentialsMissing",
        "The secret with the TLS files for the external etcd is missing or malformed.",
        "Make it with ca.crt, tls.crt and tls.key as PEM, and name it in "
        "spec.etcd.external.tls.secretRef.",
    )
    ETCD_AUTHORITY_LOST = (
        "EtcdAuthorityLost",
        "The certificate authority of the managed etcd is missing or damaged; certificates in use "
        "go on until they end.",
        "Restore its secret, or delete the secrets named and then the pods of etcd and its "
        "clients, to begin with a new one.",
    )
    ETCD_ACCESS = (
        "EtcdAccessNotSet",
        "Users and roles of the managed etcd could not be brought in order.",
        "The message says what etcd answered; it is tried again.",
    )
    BACKUP_FAILED = (
        "MetadataBackupFailed",
        "The brokers cannot copy the metadata store into the cluster's storage; three intervals "
        "have passed without a copy.",
        "The message says why; give the storage space or repair it. Concurrently take one with "
        "magnetar metadata backup (docs/restore.md).",
    )
    BACKUP_OVERDUE = (
        "MetadataBackupOverdue",
        "For three intervals no broker has copied the metadata store into the cluster's storage, "
        "or found its copy current.",
        "Look for metadata.backup and maintenance.delayed in the leading broker's log; "
        "docs/restore.md has how to take a copy by hand.",
    )
    ETCD_AUTHORITY_ROTATING = (
        "EtcdAuthorityRotating",
        "The certificate authority of the managed etcd is replaced; its members are restarted one "
        "by one, twice.",
        "Wait, about half an hour; if it lasts, look at the reasons about etcd's members.",
    )
    ETCD_CERTIFICATE_ENDS = (
        "EtcdCertificateEnds",
        "A certificate for etcd ends within three weeks, or has ended, and nobody has renewed it.",
        "Of an external etcd: renew the secret of spec.etcd.external.tls. Of a managed one: other "
        "conditions say what keeps the operator from it.",
    )
    RESTORE_WAITS = (
        "MetadataRestoreWaits",
        "A restore of the metadata store was asked for, but etcd may come back: it has lost its "
        "quorum, and not all volumes are known to be empty.",
        "Bring the volumes back; or delete the claims and pods of members that will not come back; "
        "or set restore.force.",
    )
    RESTORING = (
        "MetadataRestoring",
        "The metadata store is restored, as spec.etcd.managed.restore asks; brokers serve until it "
        "is filled, and pause for some seconds then.",
        "Wait; if it lasts, status.restore says for what. Nothing is scaled or restarted concurrently.",
    )
    RESTORE_FAILED = (
        "MetadataRestoreFailed",
        "The restore of the metadata store failed. Brokers that it has fenced wait; nothing is "
        "scaled or restarted.",
        "The log of the pod named says why. Correct it and write another token into "
        "restore.request; or remove restore.",
    )
    RESTORE_REFUSED = (
        "MetadataRestoreRefused",
        "A restore was asked for while the metadata store is intact; nothing was done.",
        "Remove restore. To replace what is in the store, write another word into restore.request "
        "and set restore.force.",
    )
    STORAGE_PENDING = (
        "StorageNotBound",
        "The volume claim is not bound.",
        "Check the claim's events, its class and its access mode.",
    )
    STORAGE_CLASS_MISSING = (
        "StorageClassNotFound",
        "A volume claim waits for a StorageClass that does not exist.",
        "Make the StorageClass, or delete the claim, which holds nothing yet, and the cluster, and "
        "make it with a class that exists.",
    )
    STORAGE_NOT_EXPANDABLE = (
        "StorageNotExpandable",
        "spec.storage.volumeClaim.size is more than the claim has, and its StorageClass cannot "
        "expand it; the claim stays as it is.",
        "Set size back to what status.storage.capacity says; or set allowVolumeExpansion of the "
        "StorageClass, if its provisioner can expand.",
    )
    STARTING = (
        "BrokersStarting",
        "Brokers are being made or are not ready yet.",
        "Wait; if it lasts, look at the pods named.",
    )
    NO_BROKER = "NoBroker", "No broker takes traffic.", "Look at the pods' events and logs."
    STOPPED = "Stopped", "spec.replicas is 0.", "Raise spec.replicas to serve again."
    SCALING_UP = "ScalingUp", "Brokers are being added.", "Wait."
    DRAINING = (
        "Draining",
        "The highest broker hands its bundles over before it goes.",
        "Wait; other brokers must have room.",
    )
    REMOVING = "RemovingBroker", "A drained broker's pod is going.", "Wait."
    DRAIN_STUCK = (
        "DrainStuck",
        "A drain has lasted longer than spec.drainTimeoutSeconds; nothing is removed before it "
        "ends.",
        "Give the bundles a new owner: start a broker or lift a cordon (magnetar drain BROKER --undo); "
        "magnetar explain BUNDLE tells "
        "what holds one up. To keep the broker, set spec.replicas back, or magnetar drain "
        "--replace POD --undo.",
    )
    REPLACING = (
        "ReplacingBroker",
        "A broker is drained, deleted and comes back, as the annotation magnetar.io/replace asks.",
        "Wait.",
    )
    REPLACE_WAITS = (
        "ReplacementWaits",
        "A replacement waits until the other brokers are ready.",
        "Repair the pod named, or take the request back: magnetar drain --replace POD --undo.",
    )
    ROLLING = (
        "Rolling",
        "Pods are restarted one at a time, because their template changed.",
        "Wait.",
    )
    ROLL_WAITS = (
        "RollWaits",
        "A restart waits until the other pods are ready and etcd answers.",
        "Repair the pod named, or etcd; a sick outdated pod is restarted first.",
    )
    IMAGE_UNAVAILABLE = (
        "ImageUnavailable",
        "The image of a pod cannot be pulled; pods that run are not touched.",
        "Correct spec.image, or name the registry's secret in spec.image.pullSecrets; the kubelet "
        "tries again by itself.",
    )
    POD_CRASHING = (
        "PodCrashing",
        "A pod's process ends by itself and is not ready again; the message has its exit code and "
        "last words.",
        "kubectl logs --previous shows why; undo the last change of spec.config or the image, or "
        "give more memory if it was OOMKilled.",
    )
    POD_UNSCHEDULABLE = (
        "PodUnschedulable",
        "No node takes a pod.",
        "Free or add a node, or correct resources, podTemplate (nodeSelector, tolerations, "
        "affinity) or the volume's access mode.",
    )
    CONTAINER_NOT_STARTED = (
        "ContainerNotStarted",
        "The kubelet cannot start a pod's container.",
        "The message names what is missing, such as a secret or a volume; kubectl describe the pod.",
    )
    NAMESPACE_TERMINATING = (
        "NamespaceTerminating",
        "The Kubernetes namespace is being deleted, so that the operator makes nothing in it any "
        "more.",
        "Wait; a namespace that does not finish holds finalizers: kubectl get namespace -o yaml "
        "names them.",
    )
    NODE_LOST = (
        "NodeLost",
        "A broker's node has not answered for a while; its pod is deleted by force.",
        "Repair or remove the node.",
    )
    CREDENTIALS_MISSING = (
        "StorageCredentialsMissing",
        "The secret with the credentials of spec.storage.s3 is missing or incomplete; running pods "
        "keep what they have.",
        "Make the secret, or correct spec.storage.s3.credentials.",
    )
    STORAGE_UNSUPPORTED = (
        "StorageNotSupported",
        "DataJobs do not run on clusters that keep their messages on S3 yet.",
        "Delete the DataJob; brokers delete and rewrite on S3 by themselves, only topic compaction "
        "waits.",
    )
    LISTENER_PENDING = (
        "ListenerPending",
        "A listener's service has no address yet; clients inside are served, and brokers need no "
        "restart when it comes.",
        "kubectl describe the service: it wants a load balancer that the cluster can make, or set "
        "advertisedHost.",
    )
    LISTENER_UNKNOWN = (
        "ListenerUnknown",
        "The coordinators have a listener that the cluster does not have, so that no client comes "
        "by it.",
        "Give the BrokerCluster a listener of that name, or correct the coordinators' "
        "spec.listeners.",
    )
    TLS_SECRET_MISSING = (
        "TlsSecretMissing",
        "The secret of spec.tls does not exist; running pods go on with the certificate that they "
        "have, and none is restarted.",
        "Make it with type kubernetes.io/tls, by cert-manager or kubectl create secret tls, or "
        "correct spec.tls.secretName.",
    )
    TLS_SECRET_UNUSABLE = (
        "TlsSecretUnusable",
        "The secret of spec.tls is of another type, lacks tls.crt or tls.key, or its key belongs "
        "to another certificate; running pods go on "
        "with the certificate that they have, and none is restarted.",
        "Put the matching tls.crt and tls.key into it, as PEM.",
    )
    CLIENT_AUTHORITY_MISSING = (
        "ClientAuthorityMissing",
        "spec.auth.clientCertificates is true, and the secret of spec.tls has no ca.crt to check "
        "them by; no pod is restarted.",
        "Add ca.crt, the authority that signs the clients' certificates, or set "
        "spec.auth.clientCertificates to false.",
    )
    CERTIFICATE_EXPIRED = (
        "CertificateExpired",
        "The certificate of spec.tls has ended, or is not valid yet; clients refuse new "
        "connections.",
        "Put a valid one into the secret (with cert-manager: look at its Certificate); no restart "
        "is needed.",
    )
    CERTIFICATE_EXPIRES = (
        "CertificateExpiresSoon",
        "The certificate of spec.tls ends within two weeks, or a quarter of its life; whoever "
        "renews it seems not to.",
        "Put a new one into the secret (with cert-manager: look at its Certificate); no restart is "
        "needed.",
    )
    CERTIFICATE_NAMES = (
        "CertificateLacksNames",
        "The certificate of spec.tls is not for a name under which clients inside reach brokers or "
        "coordinators; those that check "
        "names refuse it.",
        "Add <cluster>.<namespace>.svc, *.<cluster>-brokers.<namespace>.svc and "
        "*.<coordinators>-coordinators.<namespace>.svc to its names.",
    )
    TOKEN_KEY_MISSING = (
        "TokenKeyMissing",
        "The secret with the key of spec.auth.tokens is missing, or what it holds is no such key; "
        "running pods go on with the one that they "
        "have, and none is restarted.",
        "Make the secret with the entry named, or correct spec.auth.tokens.",
    )
    OPEN_TO_ALL = (
        "OpenToAll",
        "There is no spec.auth: every client that reaches a port may publish, consume and, by "
        "REST, change and delete everything.",
        "Set spec.auth (docs/security.md), or keep the ports to those you trust by "
        "spec.networkPolicy.",
    )
    NO_AUTHORIZATION = (
        "NoAuthorization",
        "spec.auth.authorization is false: every client with a known role may do everything.",
        "Set spec.auth.authorization to true, and name spec.auth.superUserRoles.",
    )
    CLUSTER_MISSING = (
        "ClusterNotFound",
        "The cluster that clusterRef names does not exist.",
        "Make it, or correct clusterRef.",
    )
    TOPIC_MISSING = (
        "TopicNotFound",
        "The topic of a DataJob does not exist in its cluster, so that no driver is started.",
        "Correct compaction.topic, or create the topic or publish to it; the run begins then.",
    )
    NAMESPACE_MISSING = (
        "NamespaceNotFound",
        "The Pulsar namespace of a DataJob's topic does not exist in its cluster, so that no "
        "driver is started.",
        "Correct compaction.topic or clusterRef, or create the namespace and the topic; the run "
        "begins then.",
    )
    EXECUTORS_REFUSED = (
        "ExecutorsRefused",
        "Kubernetes refuses the executors of a DataJob, so that its driver waits for them.",
        "The message names the quota, limit or policy: make room there, or lower spec.executors; "
        "the run goes on by itself.",
    )
    NOT_ALLOWED = (
        "NamespaceNotAllowed",
        "The cluster does not admit this Kubernetes namespace.",
        "Add it to the cluster's spec.allowedNamespaces.",
    )
    CONFLICT = (
        "Conflict",
        "An older resource of this kind owns the same tenant and namespace, or serves the same "
        "cluster.",
        "Delete one of the two; if the older one goes, this one takes over.",
    )
    TENANT_CONFLICT = (
        "TenantConflict",
        "An older TopicNamespace gives this tenant another configuration.",
        "Write the same tenantConfig in both, or take it out of one.",
    )
    NOT_EMPTY = (
        "NotEmpty",
        "deletionPolicy Delete met a namespace that holds topics, or may; the deletion waits two "
        "minutes for them to go.",
        "Its data stays; delete the topics first, or set the annotation magnetar.io/skip-finalizer "
        "to true to keep them.",
    )
    DELETING = "Deleting", "The namespace is empty and about to be deleted.", "Wait."
    COORDINATORS_STARTING = (
        "CoordinatorsStarting",
        "Coordinators are being made or are not ready yet.",
        "Wait; if it lasts, look at the pods named.",
    )
    SCALING_COORDINATORS_UP = "ScalingCoordinatorsUp", "Coordinators are being added.", "Wait."
    NO_COORDINATOR = (
        "NoCoordinator",
        "No coordinator answers.",
        "Look at the pods' events and logs.",
    )
    COORDINATOR_RETIRING = (
        "CoordinatorRetiring",
        "The highest coordinator is told to begin no more transactions before it goes.",
        "Wait; if it lasts, look at the pod named.",
    )
    TRANSACTIONS_OPEN = (
        "TransactionsOpen",
        "A coordinator that should go still has open transactions.",
        "Wait until they end or time out; raising spec.replicas keeps the coordinator.",
    )
    REMOVING_COORDINATOR = (
        "RemovingCoordinator",
        "A coordinator without open transactions is going.",
        "Wait.",
    )
    PENDING = (
        "Pending",
        "The run has not begun yet.",
        "Wait; if it lasts, look at the driver pod's events.",
    )
    RUNNING = "Running", "The driver is at work.", "kubectl logs shows its progress."
    RETRYING = (
        "Retrying",
        "An attempt failed and another one follows.",
        "The message says why it failed.",
    )
    SUCCEEDED = "Succeeded", "The run's durable record says that it succeeded.", "Nothing."
    FAILED = (
        "Failed",
        "The run failed and is not tried again.",
        "Correct the cause, then set a new spec.runRequest.",
    )
    AUTOSCALING_ACTIVE = (
        "AutoscalingActive",
        "The number of brokers follows their load.",
        "Nothing.",
    )
    AUTOSCALING_DRY_RUN = (
        "AutoscalingDryRun",
        "spec.autoscaling.dryRun is true: what would be done is only told.",
        "Set it to false to have it done.",
    )
    AUTOSCALING_WAITS = (
        "AutoscalingWaits",
        "Load says little while brokers start, stop, move or are in trouble.",
        "Wait; if it lasts, look at the other conditions.",
    )
    LOAD_UNKNOWN = (
        "LoadReportsMissing",
        "A broker's load report is missing or too old, so that nothing is decided.",
        "Look at the broker named; if the nodes' clocks differ by seconds, set them right.",
    )
    REPLICAS_OWNED = (
        "ReplicasOwnedElsewhere",
        "Somebody else writes spec.replicas, so that the autoscaler has stepped back.",
        "Remove spec.replicas from the manifest or delete the other autoscaler, then say a number "
        "once with kubectl scale; or set "
        "spec.autoscaling.enabled to false.",
    )
    SUSPENDED = "Suspended", "spec.suspend is true.", "Set it to false to go on."
    ETCD_SCALING = (
        "EtcdScaling",
        "Members are added to the managed etcd or removed from it, one at a time.",
        "Wait.",
    )
    ETCD_REPLACING = (
        "EtcdReplacingMember",
        "A member of the managed etcd has lost its data and is replaced by a new one.",
        "Wait; then find out why the volume was lost.",
    )
    ETCD_ROLLING = (
        "EtcdRolling",
        "etcd's pods are restarted one at a time, because their template changed.",
        "Wait.",
    )
    ETCD_ROLL_WAITS = (
        "EtcdRollWaits",
        "A restart of an etcd pod waits until the other members are healthy.",
        "Repair the pod named; a sick outdated pod is restarted first.",
    )
    ETCD_MEMBER_DOWN = (
        "EtcdMemberDown",
        "A member of the managed etcd does not answer or is behind; the others go on.",
        "Look at the pod's events. If its volume is lost for good, delete its claim and the pod: "
        "it is replaced.",
    )
    ETCD_NO_QUORUM = (
        "EtcdNoQuorum",
        "Too few members of the managed etcd are healthy for it to change anything.",
        "Bring the pods named back; do not delete their claims. If their volumes are lost, restore "
        "(docs/restore.md).",
    )
    ETCD_DATA_LOST = (
        "EtcdDataLost",
        "The volumes of so many etcd members are empty that the metadata store is lost; no message "
        "is.",
        "Brokers go on serving. Bring the volumes back, or ask for a restore with "
        "spec.etcd.managed.restore, which pauses topics for some seconds "
        "(magnetar plan says how long): docs/restore.md, A managed etcd that is lost.",
    )
    ETCD_NO_SPACE = (
        "EtcdOutOfSpace",
        "The managed etcd has reached its quota and refuses writes; the operator compacts and "
        "defragments it.",
        "If it lasts, raise spec.etcd.managed.quotaMib, or delete topics and namespaces that "
        "nobody needs.",
    )
    ETCD_CORRUPT = (
        "EtcdCorrupt",
        "The data of a member of the managed etcd differs from that of the others.",
        "Delete the claim and the pod of the member named: it is replaced. With one member, "
        "restore (docs/restore.md).",
    )
    ETCD_VERSION = (
        "EtcdVersionRefused",
        "The etcd image wanted is older than the one that runs, or skips a minor version; the "
        "members keep theirs.",
        "Set spec.etcd.managed.image to the next minor version, or back to what runs.",
    )
    ETCD_STRANGER = (
        "EtcdUnknownMember",
        "etcd has a member that is none of the cluster's pods, so that the operator changes no "
        "members.",
        "Remove it with etcdctl member remove.",
    )

    @property
    def word(self) -> str:
        return str(self.value[0])

    @property
    def meaning(self) -> str:
        return str(self.value[1])

    @property
    def remedy(self) -> str:
        return str(self.value[2])


class Blocked(MagnetarError):
    """A resource cannot act now; `reason` says why, `retry_s` when to look again."""

    def __init__(self, reason: Reason, message: str, retry_s: float = 2.0) -> None:
        super().__init__(message)
        self.reason, self.retry_s = reason, retry_s

    @classmethod
    def by_store(cls, error: StoreError | TimeoutError) -> Blocked:
        """The cluster's metadata store did not answer as it should."""
        retry_s = error.retry_s if isinstance(error, StoreOutage) else LOOK_AGAIN_MIN_S
        return cls(
            Reason.STORE_UNAVAILABLE,
            f"the cluster's etcd does not answer: {str(error) or 'no answer in time'}",
            retry_s,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What one condition should say now."""

    type: Type
    holds: bool
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps an object from being as desired; `about` names which of several parts
    ("" = the whole)."""

    reason: Reason
    message: str
    about: str = ""


def counted(number: int, one: str, many: str) -> str:
    """A number with its words, as people write them."""
    return f"{number} {one if number == 1 else many}"


def timestamp(wall_ms: int) -> str:
    """RFC 3339 in seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_ms_of(text: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 time."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def merged(
    previous: Iterable[Condition], findings: Iterable[Finding], generation: int, wall_ms: int
) -> tuple[Condition, ...]:
    """Conditions for `findings`, with the transition times of `previous` where the status did
    not change."""
    known = {condition.type: condition for condition in previous}
    result = []
    for finding in findings:
        status: Literal["True", "False"] = "True" if finding.holds else "False"
        old = known.get(finding.type.value)
        since = (
            old.last_transition_time
            if old is not None and old.status == status
            else timestamp(wall_ms)
        )
        message = finding.message or finding.reason.meaning
        result.append(
            Condition(
                type=finding.type.value,
                status=status,
                reason=finding.reason.word,
                message=message[:MESSAGE_LENGTH_MAX],
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return tuple(result)
