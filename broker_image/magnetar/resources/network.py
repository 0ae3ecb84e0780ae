"""`spec.networkPolicy`: who may reach the ports of brokers and coordinators.

Owns: its fields and limits, in the shape that they have in a NetworkPolicy. Imports:
resources.base, resources.pod_template. Invariant: the cluster's own pods and the operator are
always admitted; what is said here is about all other clients.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from magnetar.resources.base import Model, Rule
from magnetar.resources.pod_template import LabelSelector

PEERS_MAX = 16
ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}


class IpBlock(Model):
    """Addresses."""

    cidr: str = Field(
        max_length=43,
        pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$",
        description="Such as 10.0.0.0/8 or fd00::/8.",
    )


class NetworkPeer(Model):
    """Some who are admitted, as in `from` of a NetworkPolicy."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "networkPolicy: each entry has either ipBlock, or podSelector, namespaceSelector or "
            "both",
            lambda peer: (
                (peer.ip_block is None)
                == (peer.pod_selector is not None or peer.namespace_selector is not None)
            ),
        ),
    )

    pod_selector: LabelSelector | None = Field(
        default=None,
        description="Pods of the namespaces that namespaceSelector chooses, or of the cluster's "
        "own; {} = all.",
    )
    namespace_selector: LabelSelector | None = Field(
        default=None, description="Kubernetes namespaces by their labels; {} = all."
    )
    ip_block: IpBlock | None = Field(
        default=None, description="Addresses outside; of a NodePort's clients often the nodes'."
    )


Peers = Annotated[tuple[NetworkPeer, ...], Field(max_length=PEERS_MAX)]


class NetworkPolicy(Model):
    """Who may reach brokers and coordinators, beside the cluster's own pods and the operator.
    Ports that are for these alone are closed to all others. It takes a network plugin that
    enforces NetworkPolicies."""

    enabled: bool = Field(
        default=True, description="Make NetworkPolicies for brokers and coordinators."
    )
    clients_from: Peers = Field(
        default=(),
        description="Who may reach the ports of the Pulsar protocol, those of listeners among "
        "them; empty = every client.",
        json_schema_extra=ATOMIC,
    )
    rest_from: Peers = Field(
        default=(),
        description="Who may reach the ports of REST and metrics (8080, 8443), scrapers among "
        "them; empty = as clientsFrom.",
        json_schema_extra=ATOMIC,
    )
