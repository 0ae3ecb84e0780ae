"""`BrokerCluster`: a fleet of brokers over one storage and one metadata store.

Owns: its fields, defaults, limits and rules. Imports: resources.base, resources.etcd. Invariants:
every spec field has a default, so `spec: {}` is a working cluster of one broker; fields that cannot
change without losing data are immutable.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from magnetar.resources.base import (
    BY_NAME,
    CONDITIONS,
    NAME_LENGTH_MAX,
    TROUBLES,
    TROUBLES_DESCRIPTION,
    Condition,
    CustomResource,
    Model,
    Quantity,
    Rule,
    StatusModel,
    Trouble,
)
from magnetar.resources.broker_config import LIVE, BrokerConfig
from magnetar.resources.etcd import (
    Etcd,
    EtcdAuthorityStatus,
    EtcdStatus,
    ManagedEtcd,
    RestoreStatus,
)
from magnetar.resources.listeners import Listeners, ListenerStatus
from magnetar.resources.load_balancing import (
    ONE_PLACE,
    BalanceStatus,
    LoadBalancing,
    named_settings,
)
from magnetar.resources.network import NetworkPolicy
from magnetar.resources.pod_template import PodTemplate
from magnetar.resources.quantities import amount
from magnetar.resources.scaling import BROKERS_MAX, Autoscaling, AutoscalingStatus, ScalingStatus
from magnetar.resources.security import Auth, Tls
from magnetar.resources.storage import (
    KEEPS_SIZE,
    ClaimStatus,
    Storage,
    VolumeClaim,
)

RESERVED_SUFFIXES = ("-broker", "-brokers", "-coordinator", "-coordinators", "-etcd", "-storage")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class Image(Model):
    """Image of the brokers; empty fields mean the image that the operator was given. Jobs run
    `<repository>-spark` of the same tag."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.repository == '') == (self.tag == '')",
            "image: set repository and tag together, or neither (then the image that the operator "
            "was given is used)",
            lambda image: (image.repository == "") == (image.tag == ""),
        ),
        Rule(
            "self.tag != 'latest'",
            "image.tag is latest: two brokers of one cluster could then run different versions; "
            "set a fixed tag",
            lambda image: image.tag != "latest",
        ),
    )

    repository: str = Field(
        default="",
        max_length=400,
        description="Repository without a tag, for example registry.example/magnetar; Spark's is "
        "the same with -spark behind it.",
    )
    tag: str = Field(
        default="",
        max_length=128,
        description="A fixed tag; `latest` is refused, because two brokers of one cluster could "
        "differ.",
    )
    pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="When nodes pull the image; empty = as the operator is configured."
    )
    pull_secrets: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = Field(
        default=(),
        max_length=8,
        description="Names of secrets with which nodes pull this image and that of etcd.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


def _within_limits(resources: Resources) -> bool:
    known = resources.limits
    return all(
        (amount(value) or 0) <= (amount(known[name]) or 0)
        for name, value in resources.requests.items()
        if name in known
    )


class Resources(Model):
    """Compute resources of a container."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.requests.all(name, !(name in self.limits) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) "
            "<= 0)",
            "resources: a request is above its limit, so that no pod could be made; lower requests "
            "(which have defaults) or raise limits",
            _within_limits,
        ),
    )

    requests: dict[str, Quantity] = Field(
        default={"cpu": "250m", "memory": "512Mi"},
        max_length=16,
        description="What the scheduler reserves.",
    )
    limits: dict[str, Quantity] = Field(
        default={}, max_length=16, description="What the container may not exceed."
    )


class BrokerClusterSpec(Model):
    """What the cluster should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.auth) || !self.auth.clientCertificates || has(self.tls)",
            "auth.clientCertificates needs spec.tls, whose secret holds the authority of the "
            "clients (ca.crt)",
            lambda spec: (
                spec.auth is None or not spec.auth.client_certificates or spec.tls is not None
            ),
        ),
        Rule(
            "has(self.tls) || self.listeners.all(listener, !listener.tls)",
            "listeners: tls needs spec.tls, whose secret holds the certificate",
            lambda spec: (
                spec.tls is not None or not any(listener.tls for listener in spec.listeners)
            ),
        ),
        Rule(
            "!has(self.tls) || self.tls.plain == 'Open' || self.listeners.all(listener, "
            "listener.tls)",
            "tls.plain: a listener without tls would admit no client; set its tls to true, or plain "
            "to Open",
            lambda spec: (
                spec.tls is None
                or spec.tls.plain == "Open"
                or all(listener.tls for listener in spec.listeners)
            ),
        ),
        Rule(
            "!has(self.tls) || self.tls.plain == 'Open' || has(oldSelf.tls)",
            "tls.plain: begin with Open; once the brokers have TLS, set Internal or Closed: those "
            "that are not restarted yet know no other way",
        ),
        *ONE_PLACE,
    )

    @model_validator(mode="after")
    def _names_listeners_once(self) -> Self:
        """The API server finds it by the list's keys."""
        listeners = [listener.name for listener in self.listeners]
        if len(set(listeners)) < len(listeners):
            raise ValueError("listeners: Duplicate value: give each listener a name of its own")
        return self

    @property
    def balance_settings(self) -> dict[str, str]:
        """Settings of load balancing that are named here, by Pulsar's names."""
        return named_settings(self.config.chosen(), self.load_balancing)

    @property
    def followed_settings(self) -> dict[str, str]:
        """All that brokers follow without a restart."""
        chosen = self.config.chosen()
        live = {name: f"{value:.15g}" for name, value in chosen.items() if name in LIVE}
        return live | self.balance_settings

    replicas: int = Field(
        default=1,
        ge=0,
        le=BROKERS_MAX,
        description="Number of brokers. Lowering it drains the highest ordinal before its pod goes.",
    )
    image: Image = Field(default_factory=Image, description="Image of the brokers.")
    storage: Storage = Field(
        default=Storage(volume_claim=VolumeClaim()),
        description="Where messages are kept.",
        # Whole: the API server checks rules on a default before it fills in what is nested.
        json_schema_extra={
            "default": {"volumeClaim": VolumeClaim().model_dump(by_alias=True, mode="json")}
        },
    )
    etcd: Etcd = Field(
        default=Etcd(managed=ManagedEtcd()),
        description="The metadata store.",
        json_schema_extra={"default": {"managed": {}}},
    )
    listeners: Listeners = ()
    tls: Tls | None = Field(
        default=None,
        description="TLS for clients. Switching it on or off rolls the brokers and coordinators; a "
        "renewed certificate does not.",
    )
    auth: Auth | None = Field(
        default=None,
        description="Who clients are and what they may do; without it every client may do everything. "
        "Switching it on or off, or another "
        "secret, rolls the brokers and coordinators; other roles and another content do not.",
    )
    network_policy: NetworkPolicy = Field(
        default_factory=NetworkPolicy,
        description="Who may reach the ports of brokers and coordinators.",
    )
    resources: Resources = Field(
        default_factory=lambda: Resources(limits={"memory": "2Gi"}),
        description="Compute resources of each broker. Its caches are sized by the limit of memory.",
        json_schema_extra={
            "default": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
        },
    )
    config: BrokerConfig = Field(
        default_factory=BrokerConfig,
        description="Broker settings by their own names, as numbers. A change rolls the brokers, "
        "unless it is of load balancing (Pulsar's names): brokers follow that while they run.",
    )
    load_balancing: LoadBalancing = Field(
        default_factory=LoadBalancing, description="How bundles are spread over the brokers."
    )
    pod_template: PodTemplate = Field(
        default_factory=PodTemplate, description="Additions to the brokers' pods."
    )
    drain_timeout_seconds: int = Field(
        default=120,
        ge=1,
        le=3600,
        description="How long a stopping broker may take to transfer its bundles.",
    )
    autoscaling: Autoscaling = Field(
        default_factory=Autoscaling, description="Number of brokers by their own load reports."
    )
    allowed_namespaces: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        default=(),
        max_length=200,
        description="Other Kubernetes namespaces whose TopicNamespaces may refer to this cluster; "
        '"*" = all.',
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class Endpoints(StatusModel):
    """Where clients connect from inside the Kubernetes cluster."""

    service_url: str = Field(
        default="",
        description="For Pulsar clients; empty unless every client may use the plain ports.",
    )
    http_url: str = Field(
        default="",
        description="For REST, pulsar-admin and metrics; empty unless every client may use the plain "
        "ports.",
    )
    service_url_tls: str = Field(
        default="", description="For Pulsar clients, by TLS; empty without spec.tls."
    )
    https_url: str = Field(
        default="", description="For REST and pulsar-admin, by TLS; empty without spec.tls."
    )


class BrokerStatus(StatusModel):
    """One broker."""

    name: str = Field(description="Its pod.")
    incarnation: str = Field(
        default="", description="Its current incarnation; empty while it is not registered."
    )
    bundles: int = Field(default=0, description="Bundles that it owns or is about to own.")
    phase: str = Field(
        default="", description="Pending, Starting, Ready, Draining, Terminating or Failed."
    )


class PendingRestart(StatusModel):
    """A pod that the operator is going to restart."""

    name: str = Field(description="Its pod.")
    reason: str = Field(default="", description="What differs: Image, Config or Template.")


class MetadataCopyStatus(StatusModel):
    """The newest copy of the metadata store in storage."""

    object: str = Field(
        default="",
        description="Its name in the cluster's storage; `magnetar metadata restore` takes it.",
    )
    revision: int = Field(default=0, description="The store's revision that it is a copy of.")
    time: str = Field(
        default="",
        description="When it was made. A later one is made only when something durable has changed.",
    )
    problem: str = Field(default="", description="Why the last try failed; empty = it did not.")


class BrokerClusterStatus(StatusModel):
    """What the cluster is."""

    observed_generation: int = Field(
        default=0, description="Generation of the spec that this status speaks of."
    )
    replicas: int = Field(default=0, description="Broker pods that exist.")
    ready_replicas: int = Field(default=0, description="Broker pods that take traffic.")
    selector: str = Field(
        default="", description="Label selector of the broker pods, for autoscalers."
    )
    etcd_security: str = Field(
        default="",
        description="How clients connect to etcd: TLS, or Plain (external etcd only).",
    )
    etcd_authority: EtcdAuthorityStatus = Field(
        default_factory=EtcdAuthorityStatus,
        description="The certificate authority of the managed etcd.",
    )
    etcd: EtcdStatus = Field(default_factory=EtcdStatus, description="The managed etcd.")
    storage_id: str = Field(
        default="", description="Identity of the storage; brokers refuse to start on another one."
    )
    storage: ClaimStatus = Field(
        default_factory=ClaimStatus,
        description="The claim that the operator made for the messages.",
    )
    restore: RestoreStatus = Field(
        default_factory=RestoreStatus,
        description="The restore of the metadata store that was last asked for.",
    )
    metadata_copy: MetadataCopyStatus = Field(
        default_factory=MetadataCopyStatus,
        description="The newest of the copies of the metadata store that brokers make every "
        "spec.config.metadata_backup_interval_s.",
    )
    endpoints: Endpoints = Field(default_factory=Endpoints, description="Where clients connect.")
    listeners: tuple[ListenerStatus, ...] = Field(
        default=(),
        description="Where clients outside connect.",
        json_schema_extra=BY_NAME,
    )
    brokers: tuple[BrokerStatus, ...] = Field(
        default=(),
        description="Every broker.",
        json_schema_extra=BY_NAME,
    )
    pending_restarts: tuple[PendingRestart, ...] = Field(
        default=(),
        description="Pods to be restarted, and why.",
        json_schema_extra=BY_NAME,
    )
    scaling: ScalingStatus = Field(
        default_factory=ScalingStatus,
        description="The change of the number of brokers, or the replacement, that is under way.",
    )
    autoscaling: AutoscalingStatus = Field(
        default_factory=AutoscalingStatus, description="What the autoscaler decided last, and why."
    )
    balance: BalanceStatus = Field(
        default_factory=BalanceStatus, description="How even the load of the brokers is."
    )
    troubles: tuple[Trouble, ...] = Field(
        default=(), description=TROUBLES_DESCRIPTION, json_schema_extra=TROUBLES
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Available, Progressing, Degraded, Ready, Protected; Autoscaling if it is "
        "enabled, Certificate with spec.tls.",
        json_schema_extra=CONDITIONS,
    )


class BrokerCluster(CustomResource):
    """A fleet of brokers over one storage and one metadata store."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {NAME_LENGTH_MAX} && "
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name: use at most {NAME_LENGTH_MAX} lower-case letters, digits and -, "
            "beginning with a letter",
            lambda cluster: (
                len(cluster.name) <= NAME_LENGTH_MAX and _NAME.fullmatch(cluster.name) is not None
            ),
        ),
        Rule(
            " && ".join(
                f"!self.metadata.name.endsWith('{suffix}')" for suffix in RESERVED_SUFFIXES
            ),
            f"metadata.name: the endings {', '.join(RESERVED_SUFFIXES)} are taken by the parts of "
            "other clusters",
            lambda cluster: not cluster.name.endswith(RESERVED_SUFFIXES),
        ),
        KEEPS_SIZE,
    )

    spec: BrokerClusterSpec = BrokerClusterSpec()
    status: BrokerClusterStatus = BrokerClusterStatus()
