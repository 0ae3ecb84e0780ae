"""Kinds of Kubernetes objects that the operator reads and writes.

Owns: their API version and path. Imports: names, resources. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.resources.base import API_VERSION, GROUP, VERSION
from magnetar.resources.definitions import NAMINGS


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind: where the API server keeps it."""

    kind: str
    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """API group; "" for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection, an object or its subresource; namespace "" = all
        namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        parts = [
            root,
            *(["namespaces", namespace] if namespace and self.namespaced else []),
            self.plural,
        ]
        return "/".join(
            [*parts, *([name] if name else []), *([subresource] if subresource else [])]
        )


POD = Resource("Pod", "v1", "pods")
NODE = Resource("Node", "v1", "nodes", namespaced=False)
STORAGE_CLASS = Resource("StorageClass", "storage.k8s.io/v1", "storageclasses", namespaced=False)
EVENT = Resource("Event", "v1", "events")
CONFIG_MAP = Resource("ConfigMap", "v1", "configmaps")
SECRET = Resource("Secret", "v1", "secrets")
LEASE = Resource("Lease", "coordination.k8s.io/v1", "leases")
STATEFUL_SET = Resource("StatefulSet", "apps/v1", "statefulsets")
PERSISTENT_VOLUME_CLAIM = Resource("PersistentVolumeClaim", "v1", "persistentvolumeclaims")
CHILDREN = (
    Resource("ServiceAccount", "v1", "serviceaccounts"),
    PERSISTENT_VOLUME_CLAIM,
    Resource("Service", "v1", "services"),
    CONFIG_MAP,
    Resource("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    Resource("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    STATEFUL_SET,
)
"""Kinds of a cluster's child objects."""
CUSTOM = {kind: Resource(kind, API_VERSION, naming.plural) for kind, naming in NAMINGS.items()}
BROKER_CLUSTER, TOPIC_NAMESPACE, DATA_JOB = (
    CUSTOM["BrokerCluster"],
    CUSTOM["TopicNamespace"],
    CUSTOM["DataJob"],
)
TRANSACTION_COORDINATOR = CUSTOM["TransactionCoordinator"]
GROUP_VERSION_PATH = f"/apis/{GROUP}/{VERSION}"

BY_KIND = {resource.kind: resource for resource in (POD, SECRET, *CHILDREN, *CUSTOM.values())}
