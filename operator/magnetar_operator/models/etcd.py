"""Parts of a `BrokerCluster` about its managed etcd.

Owns: their fields. Imports: models.base.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from magnetar_operator.models.base import StatusModel

BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class EtcdMemberStatus(StatusModel):
    """One member of the managed etcd."""

    name: str = Field(description="Its pod.")
    id: str = Field(default="", description="Its member id, as etcdctl shows it; empty while it is not a member.")
    role: str = Field(default="", description="Leader, Follower or Learner; empty while it does not answer.")
    version: str = Field(default="", description="The version of etcd that it runs.")


class EtcdAuthorityStatus(StatusModel):
    """The certificate authority of the managed etcd."""

    id: str = Field(
        default="",
        description="Its fingerprint; as the value of the annotation magnetar.io/rotate-etcd-authority it asks for another one.",
    )
    end: str = Field(default="", description="When it ends; it is rotated two years before.")
    rotation: str = Field(
        default="",
        description="Trusting: the next authority is trusted and issues nothing yet; Issuing: it issues everything, the former one is still "
        "trusted; empty = nothing is under way.",
    )
    trust: str = Field(default="", description="Names the authorities that members trust; empty until the first rotation.")


class EtcdStatus(StatusModel):
    """What the managed etcd is."""

    cluster_id: str = Field(default="", description="Identity of this etcd; another one is never begun in its place unasked.")
    members: tuple[EtcdMemberStatus, ...] = Field(default=(), description="Every member.", json_schema_extra=BY_NAME)
    database_mib: int = Field(default=0, description="Size of the largest member's database, in MiB, roughly.")
    used_mib: int = Field(default=0, description="How much of it is in use, in MiB, roughly.")
    quota_mib: int = Field(default=0, description="The size at which etcd refuses writes, in MiB.")
    pending_restarts: tuple[str, ...] = Field(
        default=(), description="Pods to be restarted, and why.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
