"""Conditions: their types, reasons and the way they change.

Owns: every reason (its meaning and remedy are in reasons.yaml; docs, Events and messages use them),
what the conditions say of a problem, and the merge with the previous conditions. Imports:
resources.base, outages. Pure. Invariants: a reason is declared here or does not exist;
`last_transition_time` changes exactly when `status` does; every condition carries the generation
that it speaks of.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Literal

import yaml

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


class Reason(enum.StrEnum):
    """Why a condition is as it is; reasons.yaml has its meaning and remedy."""

    # every resource
    AS_DESIRED = "AsDesired"
    PAUSED = "Paused"
    INVALID_SPEC = "InvalidSpec"
    REFUSED = "RefusedByKubernetes"
    OPERATOR_ERROR = "OperatorError"
    NAME_TAKEN = "NameTaken"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    SUSPENDED = "Suspended"
    # metadata store
    STORE_STARTING = "MetadataStoreStarting"
    STORE_UNAVAILABLE = "MetadataStoreUnavailable"
    ETCD_CREDENTIALS = "EtcdCredentialsMissing"
    ETCD_CERTIFICATE_ENDS = "EtcdCertificateEnds"
    BACKUP_FAILED = "MetadataBackupFailed"
    BACKUP_OVERDUE = "MetadataBackupOverdue"
    RESTORE_WAITS = "MetadataRestoreWaits"
    RESTORING = "MetadataRestoring"
    RESTORE_FAILED = "MetadataRestoreFailed"
    RESTORE_REFUSED = "MetadataRestoreRefused"
    # managed etcd
    ETCD_AUTHORITY_LOST = "EtcdAuthorityLost"
    ETCD_AUTHORITY_ROTATING = "EtcdAuthorityRotating"
    ETCD_ACCESS = "EtcdAccessNotSet"
    ETCD_SCALING = "EtcdScaling"
    ETCD_REPLACING = "EtcdReplacingMember"
    ETCD_ROLLING = "EtcdRolling"
    ETCD_ROLL_WAITS = "EtcdRollWaits"
    ETCD_MEMBER_DOWN = "EtcdMemberDown"
    ETCD_NO_QUORUM = "EtcdNoQuorum"
    ETCD_DATA_LOST = "EtcdDataLost"
    ETCD_NO_SPACE = "EtcdOutOfSpace"
    ETCD_CORRUPT = "EtcdCorrupt"
    ETCD_VERSION = "EtcdVersionRefused"
    ETCD_STRANGER = "EtcdUnknownMember"
    # message storage
    STORAGE_PENDING = "StorageNotBound"
    STORAGE_CLASS_MISSING = "StorageClassNotFound"
    STORAGE_NOT_EXPANDABLE = "StorageNotExpandable"
    CREDENTIALS_MISSING = "StorageCredentialsMissing"
    # BrokerCluster
    STARTING = "BrokersStarting"
    NO_BROKER = "NoBroker"
    STOPPED = "Stopped"
    SCALING_UP = "ScalingUp"
    DRAINING = "Draining"
    REMOVING = "RemovingBroker"
    DRAIN_STUCK = "DrainStuck"
    REPLACING = "ReplacingBroker"
    REPLACE_WAITS = "ReplacementWaits"
    # autoscaling
    AUTOSCALING_ACTIVE = "AutoscalingActive"
    AUTOSCALING_DRY_RUN = "AutoscalingDryRun"
    AUTOSCALING_WAITS = "AutoscalingWaits"
    LOAD_UNKNOWN = "LoadReportsMissing"
    REPLICAS_OWNED = "ReplicasOwnedElsewhere"
    # pods
    ROLLING = "Rolling"
    ROLL_WAITS = "RollWaits"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    POD_CRASHING = "PodCrashing"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    NODE_LOST = "NodeLost"
    # listeners and security
    LISTENER_PENDING = "ListenerPending"
    LISTENER_UNKNOWN = "ListenerUnknown"
    TLS_SECRET_MISSING = "TlsSecretMissing"
    TLS_SECRET_UNUSABLE = "TlsSecretUnusable"
    CLIENT_AUTHORITY_MISSING = "ClientAuthorityMissing"
    CERTIFICATE_EXPIRED = "CertificateExpired"
    CERTIFICATE_EXPIRES = "CertificateExpiresSoon"
    CERTIFICATE_NAMES = "CertificateLacksNames"
    TOKEN_KEY_MISSING = "TokenKeyMissing"
    OPEN_TO_ALL = "OpenToAll"
    NO_AUTHORIZATION = "NoAuthorization"
    # TopicNamespace
    CLUSTER_MISSING = "ClusterNotFound"
    NOT_ALLOWED = "NamespaceNotAllowed"
    CONFLICT = "Conflict"
    TENANT_CONFLICT = "TenantConflict"
    NOT_EMPTY = "NotEmpty"
    DELETING = "Deleting"
    # TransactionCoordinator
    COORDINATORS_STARTING = "CoordinatorsStarting"
    SCALING_COORDINATORS_UP = "ScalingCoordinatorsUp"
    NO_COORDINATOR = "NoCoordinator"
    COORDINATOR_RETIRING = "CoordinatorRetiring"
    TRANSACTIONS_OPEN = "TransactionsOpen"
    REMOVING_COORDINATOR = "RemovingCoordinator"
    # DataJob
    TOPIC_MISSING = "TopicNotFound"
    NAMESPACE_MISSING = "NamespaceNotFound"
    SCRIPT_MISSING = "ScriptNotFound"
    EXECUTORS_REFUSED = "ExecutorsRefused"
    SCHEDULED = "Scheduled"
    REPLACED = "Replaced"
    PENDING = "Pending"
    RUNNING = "Running"
    RETRYING = "Retrying"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def meaning(self) -> str:
        return _texts()[self]["meaning"]

    @property
    def remedy(self) -> str:
        return _texts()[self]["remedy"]


@cache
def _texts() -> dict[str, dict[str, str]]:
    """Meaning and remedy of each reason."""
    text = resources.files(__package__).joinpath("reasons.yaml").read_text()
    return {word: found for group in yaml.safe_load(text).values() for word, found in group.items()}


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
                reason=finding.reason,
                message=message[:MESSAGE_LENGTH_MAX],
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return tuple(result)
