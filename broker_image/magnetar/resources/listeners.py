"""`spec.listeners`: listeners for clients outside the Kubernetes cluster.

Owns: their fields, limits and rules, and what the status says of them. Imports: resources.base.
Invariant: every listener gives each pod an address of its own, because a client must reach the very
broker that serves its topic, and the very coordinator that holds its transaction.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from magnetar.resources.base import BY_NAME, Model, Rule, StatusModel

LISTENERS_MAX = 4
ORDINAL = "{ordinal}"
BOOTSTRAP = "bootstrap"
"""What stands for `{ordinal}` in the service that clients connect to first."""
_CLUSTER_IP, _NODE_PORT, _LOAD_BALANCER = "ClusterIP", "NodePort", "LoadBalancer"


class WayIn(Model):
    """How each pod of a fleet is reached from outside: by a service of its own."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'internal'",
            "listeners: internal is the brokers' own listener, which needs no entry; choose "
            "another name",
            lambda listener: listener.name != "internal",
        ),
        Rule(
            "self.nodePort == 0 || self.type == 'NodePort'",
            "listeners: nodePort is for type NodePort; leave it out, or change the type",
            lambda listener: listener.node_port == 0 or listener.type == _NODE_PORT,
        ),
        Rule(
            "self.type == 'LoadBalancer' || (size(self.sourceRanges) == 0 && "
            "self.loadBalancerClass == '')",
            "listeners: sourceRanges and loadBalancerClass are for type LoadBalancer; leave them "
            "out, or change the type",
            lambda listener: (
                listener.type == _LOAD_BALANCER
                or not (listener.source_ranges or listener.load_balancer_class)
            ),
        ),
        Rule(
            "self.advertisedHost == '' || self.type == 'NodePort' || "
            "self.advertisedHost.contains('{ordinal}')",
            "listeners: advertisedHost must distinguish brokers; write {ordinal} in it, as in "
            "broker-{ordinal}.example.com",
            lambda listener: (
                not listener.advertised_host
                or listener.type == _NODE_PORT
                or ORDINAL in listener.advertised_host
            ),
        ),
    )

    name: str = Field(
        min_length=1,
        max_length=11,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="What clients may call it (listenerName); it ends the names of its services.",
    )
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="LoadBalancer",
        description="Type of its services. ClusterIP is for a gateway or mesh that you run.",
    )
    port: int = Field(
        default=6650, ge=1, le=65535, description="Port of its services, with tls or without."
    )
    node_port: int = Field(
        default=0,
        ge=0,
        le=65334,
        description="Node port of the brokers' first service; broker or coordinator n has the one "
        "n + 1 above. 0 = Kubernetes chooses.",
    )
    advertised_host: str = Field(
        default="",
        max_length=253,
        pattern=r"^([A-Za-z0-9.:_-]|\{ordinal\})*$",
        description="Host that clients get, {ordinal} being the pod's number. Empty = the "
        "load balancer's address, the node's "
        "(NodePort) or the service's name (ClusterIP).",
    )
    annotations: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default={},
        max_length=32,
        description="Annotations of its services, {ordinal} being the pod's number, or bootstrap.",
    )
    load_balancer_class: str = Field(
        default="",
        max_length=253,
        description="Implementation of the load balancer; empty = default.",
    )
    source_ranges: tuple[
        Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$", max_length=64)], ...
    ] = Field(
        default=(),
        max_length=64,
        description="Networks that load balancers admit, as 203.0.113.0/24; empty = all.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    external_traffic_policy: Literal["Cluster", "Local"] = Field(
        default="Cluster",
        description="Local keeps clients' addresses and saves a hop; Cluster lets every node "
        "answer.",
    )


class Listener(WayIn):
    """One way in to the brokers: a service per broker, and one to begin with."""

    tls: bool = Field(
        default=False,
        description="Its clients use pulsar+ssl; needs spec.tls, whose certificate is for the "
        "hosts that they get, too.",
    )


Listeners = Annotated[
    tuple[Listener, ...],
    Field(
        default=(),
        max_length=LISTENERS_MAX,
        description="Listeners for clients outside. One more, less, renamed, in another place or "
        "with another tls rolls the brokers; nothing else "
        "does.",
        json_schema_extra=BY_NAME,
    ),
]


CoordinatorListeners = Annotated[
    tuple[WayIn, ...],
    Field(
        default=(),
        max_length=LISTENERS_MAX,
        description="Listeners for clients outside, by the names of the cluster's listeners, which "
        "also say whether they use tls: clients of a "
        "listener that is not here find no coordinator. One more, less, renamed or in another "
        "place rolls the coordinators.",
        json_schema_extra=BY_NAME,
    ),
]


class CoordinatorAddress(StatusModel):
    """Where clients of one listener reach a coordinator."""

    listener: str = Field(description="Name of the listener.")
    url: str = Field(description="The URL that its clients get.")


class BrokerAddress(StatusModel):
    """Where clients of a listener reach one broker."""

    name: str = Field(description="Its pod.")
    address: str = Field(default="", description="host:port; empty while it is not known.")


class ListenerStatus(StatusModel):
    """One listener."""

    name: str = Field(description="Its name.")
    service_url: str = Field(
        default="", description="Where its clients connect first; empty while it is not known."
    )
    brokers: tuple[BrokerAddress, ...] = Field(
        default=(),
        description="Addresses that its clients get.",
        json_schema_extra=BY_NAME,
    )
