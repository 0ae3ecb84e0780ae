"""Parts of a `BrokerCluster` about its managed etcd.

Owns: their fields. Imports: models.base.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from magnetar.resources.base import Model, StatusModel

BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class MetadataRestore(Model):
    """A request to fill the metadata store again, from a copy and from storage."""

    request: str = Field(
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$",
        description="A restore token of yours, such as a date. Each one is carried out once; "
        "another one asks again. Brokers serve until "
        "the store is filled, and pause for some seconds then.",
    )
    source: str = Field(
        default="",
        max_length=100,
        pattern=r"^(|Storage|backups/[0-9]+-[0-9]+)$",
        description="A copy in storage by its name; empty = the newest, or storage alone if there "
        "is none; Storage = storage alone.",
    )
    force: bool = Field(
        default=False,
        description="Replace the contents of an etcd that is intact, begin although members may "
        "come back, and go on without files that "
        "are missing. Without it an intact store is left alone.",
    )


class RestoreStatus(StatusModel):
    """How a restore of the metadata store fares."""

    request: str = Field(default="", description="The request that this speaks of.")
    phase: str = Field(
        default="",
        description="Waiting: for etcd, or until it is known to be lost; Beginning: an etcd that "
        "answers is awaited; Filling: a pod fills it; "
        "Restored, Failed or Refused: the end.",
    )
    replaces: str = Field(
        default="",
        description="The lost etcd, by its clusterId, in whose place an empty one was begun.",
    )
    pause_seconds: int = Field(
        default=0,
        description="How long topics are not served, about, from the moment at which the pod "
        "fences the brokers.",
    )
    message: str = Field(default="", description="What is awaited, was done, or went wrong.")


class EtcdMemberStatus(StatusModel):
    """One member of the managed etcd."""

    name: str = Field(description="Its pod.")
    id: str = Field(
        default="",
        description="Its member id, as etcdctl shows it; empty while it is not a member.",
    )
    role: str = Field(
        default="", description="Leader, Follower or Learner; empty while it does not answer."
    )
    version: str = Field(default="", description="The version of etcd that it runs.")


class EtcdAuthorityStatus(StatusModel):
    """The certificate authority of the managed etcd."""

    id: str = Field(
        default="",
        description="Its fingerprint; as the value of the annotation "
        "magnetar.io/rotate-etcd-authority it asks for another one.",
    )
    end: str = Field(default="", description="When it ends; it is rotated two years before.")
    rotation: str = Field(
        default="",
        description="Trusting: the next authority is trusted and issues nothing yet; Issuing: it "
        "issues everything, the former one is still "
        "trusted; empty = nothing is under way.",
    )
    trust: str = Field(
        default="",
        description="Names the authorities that members trust; empty until the first rotation.",
    )


class EtcdStatus(StatusModel):
    """What the managed etcd is."""

    cluster_id: str = Field(
        default="",
        description="Identity of this etcd; another one is never begun in its place unasked.",
    )
    members: tuple[EtcdMemberStatus, ...] = Field(
        default=(), description="Every member.", json_schema_extra=BY_NAME
    )
    endpoints: tuple[str, ...] = Field(
        default=(),
        description="The host:port by which brokers and coordinators reach it. Another number of "
        "members changes them, and restarts their pods once, "
        "when all members that are wanted vote and are healthy.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    database_mib: int = Field(
        default=0, description="Size of the largest member's database, in MiB, roughly."
    )
    used_mib: int = Field(default=0, description="How much of it is in use, in MiB, roughly.")
    quota_mib: int = Field(default=0, description="The size at which etcd refuses writes, in MiB.")
    pending_restarts: tuple[str, ...] = Field(
        default=(),
        description="Pods to be restarted, and why.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
