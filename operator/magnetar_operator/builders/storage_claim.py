"""The claim that holds a cluster's messages.

Owns: the claim. Imports: builders.object, names, quantities. Pure. Invariants: it has no owner, so
that it outlives the cluster, and a cluster made again under the same name finds it; what a claim
cannot change is taken from the one that exists.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.quantities import amount
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object


def storage_claim(cluster: BrokerCluster, existing: Manifest | None) -> Manifest | None:
    """The claim, or None if the spec names one of the user's, or no claim at all."""
    wanted = cluster.spec.storage.volume_claim
    if wanted is None or wanted.existing_claim:
        return None
    claim = cluster_object(
        "v1",
        "PersistentVolumeClaim",
        cluster,
        names.storage_claim(cluster.name),
        "storage",
        owned=False,
    )
    spec: Manifest = {
        "accessModes": list(wanted.access_modes),
        "resources": {"requests": {"storage": wanted.size}},
    }
    if wanted.storage_class_name:
        spec["storageClassName"] = wanted.storage_class_name
    if existing is not None:
        _keep_what_cannot_change(spec, existing["spec"])
    return claim | {"spec": spec}


def _keep_what_cannot_change(spec: Manifest, existing: Manifest) -> None:
    """An adopted claim keeps its class and modes, and is never made smaller: it holds the data
    whatever they are."""
    spec["accessModes"] = existing["accessModes"]
    if spec.get("storageClassName") != existing.get("storageClassName"):
        spec.pop("storageClassName", None)
    size = existing["resources"]["requests"]["storage"]
    if (amount(size) or 0) > (amount(spec["resources"]["requests"]["storage"]) or 0):
        spec["resources"] = {"requests": {"storage": size}}
