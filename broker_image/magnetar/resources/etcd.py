"""Parts of a `BrokerCluster` about its etcd.

Owns: their fields, defaults, limits and rules. Imports: resources.base, resources.storage.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from magnetar.resources.base import BY_NAME, Model, Quantity, Rule, StatusModel, immutable
from magnetar.resources.storage import SecretReference


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


class EtcdStorage(Model):
    """Volume of one etcd member."""

    storage_class_name: str = Field(
        default="",
        max_length=253,
        description="Storage class of the member's claim; empty = the default class.",
        json_schema_extra=immutable("a claim cannot change its class"),
    )
    size: Quantity = Field(
        default="2Gi",
        description="Capacity of the member's claim.",
        json_schema_extra=immutable("make the claim larger with kubectl edit pvc"),
    )


class ManagedEtcd(Model):
    """An etcd that the operator runs beside the brokers."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.image) || !self.image.endsWith(':latest')",
            "image has the tag latest: members could then run different versions; name a fixed one",
            lambda etcd: not etcd.image.endswith(":latest"),
        ),
    )

    replicas: Literal[1, 3] = Field(
        default=1,
        description="Members: 1, or 3 to go on without a pause when one fails. May change while "
        "the cluster serves.",
    )
    quota_mib: int = Field(
        default=1024,
        ge=64,
        le=8192,
        description="Size of the database in MiB at which etcd refuses writes; keep storage.size "
        "twice as large.",
    )
    storage: EtcdStorage = Field(
        default_factory=EtcdStorage,
        description="Volume of each member; kept when the cluster is deleted.",
    )
    image: str = Field(
        default="",
        max_length=500,
        description="Image with /usr/local/bin/etcd, 3.5.13 or later; empty = as the operator is "
        "configured. Minor versions go up one by one.",
    )
    restore: MetadataRestore | None = Field(
        default=None,
        description="Have the operator restore a lost metadata store; it never does so unasked.",
    )


class ExternalEtcdTls(Model):
    """How the operator, brokers and jobs identify themselves to an external etcd, and how they
    know it."""

    secret_ref: SecretReference = Field(
        description="A secret with ca.crt, tls.crt and tls.key; a new content is used without "
        "restarts."
    )


class ExternalEtcd(Model):
    """An etcd that the operator does not run."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.tls) || self.endpoints.all(endpoint, !endpoint.startsWith('https://'))",
            "external: endpoints with https:// need tls.secretRef.name, a secret with ca.crt, "
            "tls.crt and tls.key",
            lambda external: (
                external.tls is not None
                or not any(item.startswith("https://") for item in external.endpoints)
            ),
        ),
        Rule(
            "!has(self.tls) || self.endpoints.all(endpoint, !endpoint.startsWith('http://'))",
            "external: with tls every endpoint is https://host:port (or host:port)",
            lambda external: (
                external.tls is None
                or not any(item.startswith("http://") for item in external.endpoints)
            ),
        ),
    )

    endpoints: tuple[
        Annotated[str, Field(pattern=r"^(https?://)?[^/:]+:[0-9]+$", max_length=300)], ...
    ] = Field(
        min_length=1,
        max_length=9,
        description="host:port of each member, or https://host:port with tls.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    tls: ExternalEtcdTls | None = Field(
        default=None, description="Mutual TLS; leave it out for an etcd without."
    )


class Etcd(Model):
    """The metadata store: exactly one of `managed` and `external`."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.managed) != has(self.external)",
            "etcd: set exactly one of managed and external",
            lambda etcd: (etcd.managed is None) != (etcd.external is None),
        ),
        Rule(
            "has(self.managed) == has(oldSelf.managed)",
            "etcd: a cluster stays with the kind of store it was made with; restore a snapshot "
            "into a new cluster instead",
        ),
    )

    managed: ManagedEtcd | None = Field(default=None, description="Run etcd beside the brokers.")
    external: ExternalEtcd | None = Field(default=None, description="Use an etcd that exists.")


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
        description="Identity of this etcd; another one is never begun unasked.",
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
