"""How etcd's pods start.

Owns: the ConfigMap that becomes their environment. Imports: builders.object, etcd.membership,
etcd.start, names. Pure. Invariants: it is read when a container starts, so that it changes without
restarting pods; a pod with data ignores it; it stays the same while no member joins.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.membership import Admission


def start_variables(
    set_name: str, peers: Mapping[int, str], wanted: int, admission: Admission, token: str
) -> dict[str, str]:
    """Environment of all pods. `peers`: URLs by ordinal; etcd compares those of the members that
    there are with its own list."""
    listed = admission.ordinals if admission.ordinal is not None else range(wanted)
    return {
        "ETCD_INITIAL_CLUSTER": ",".join(
            f"{set_name}-{ordinal}={peers[ordinal]}" for ordinal in listed
        ),
        "ETCD_INITIAL_CLUSTER_STATE": "new" if admission.bootstrap else "existing",
        "ETCD_INITIAL_CLUSTER_TOKEN": token,
        etcd_start.OPEN: f"{set_name}-{admission.ordinal}" if admission.ordinal is not None else "",
        etcd_start.MEMBER: f"{admission.member:x}" if admission.member else "",
    }


def etcd_config(
    cluster: BrokerCluster, peers: Mapping[int, str], wanted: int, admission: Admission
) -> Manifest:
    """The token carries the resource's uid, and what permitted to begin again: members of an
    earlier incarnation of the same name never take a new one for theirs."""
    name = names.etcd_set(cluster.name)
    lost = cluster.metadata.annotations.get(names.BEGIN_ETCD, "")
    parts = (
        cluster.namespace,
        cluster.name,
        cluster.metadata.uid,
        lost,
        cluster.status.restore.replaces,
    )
    token = "-".join(part for part in parts if part)
    config = cluster_object("v1", "ConfigMap", cluster, name, names.ETCD)
    return config | {"data": start_variables(name, peers, wanted, admission, token)}
