"""Who may reach a cluster, by its network policies, and in words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.brokers.exposure import protection
from magnetar_operator.builders.coordinator_set import desired_coordinators
from magnetar_operator.builders.network_policy import OPERATOR_LABELS
from magnetar_operator.conditions import Reason
from tests.support.samples import DEFAULTS, cluster, coordinators

SHOP = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
OFFICE = {"ipBlock": {"cidr": "10.0.0.0/8"}}
TLS = {"secretName": "pair"}
TOKENS = {"tokens": {"secretKey": {"name": "keys", "key": "secret"}}}


def rules(**spec: Any) -> list[dict[str, Any]]:
    """The rules of the brokers' policy; none without one."""
    found = {
        identity_of(manifest): manifest for manifest in desired(cluster(**spec), DEFAULTS, 1, {})
    }
    policy = found.get(("NetworkPolicy", "main-broker"), {"spec": {"ingress": []}})
    ingress: list[dict[str, Any]] = policy["spec"]["ingress"]
    return ingress


def ports(rule: dict[str, Any]) -> list[int]:
    return [port["port"] for port in rule["ports"]]


def test_clients_may_be_anywhere_and_other_ports_are_closed() -> None:
    """The cluster's own pods and the operator are admitted whatever the spec says of others."""
    own, clients, rest = rules()
    assert (ports(own), ports(clients), ports(rest)) == ([6650, 8080], [6650], [8080])
    assert "from" not in clients
    assert "from" not in rest
    assert own["from"][0]["podSelector"]["matchLabels"] == {"magnetar.io/cluster": "main"}
    assert own["from"][1]["podSelector"]["matchLabels"] == OPERATOR_LABELS


def test_the_spec_says_who_clients_and_administrators_are() -> None:
    """Where the spec does not mention REST, it is for the clients."""
    _, clients, rest = rules(networkPolicy={"clientsFrom": [SHOP, OFFICE]})
    assert clients["from"] == rest["from"] == [SHOP, OFFICE]
    _, clients, rest = rules(
        networkPolicy={"restFrom": [{"podSelector": {}, "namespaceSelector": {}}]}
    )
    assert "from" not in clients
    assert rest["from"] == [{"podSelector": {}, "namespaceSelector": {}}]
    assert rules(networkPolicy={"enabled": False}) == []


def test_ports_for_the_clusters_own_processes_are_closed_to_others() -> None:
    own, clients, rest = rules(
        tls=TLS | {"plain": "Internal"}, listeners=[{"name": "external", "port": 6660, "tls": True}]
    )
    assert 6650 in ports(own)
    assert 6650 not in ports(clients)
    assert 6651 in ports(clients)
    assert ports(rest) == [8080, 8443]
    assert set(ports(own)) == set(ports(clients)) | set(ports(rest)) | {6650}


def test_who_reaches_the_brokers_reaches_the_coordinators() -> None:
    def policies(**spec: Any) -> list[dict[str, Any]]:
        made = desired_coordinators(coordinators(), cluster(**spec), DEFAULTS, 1, {})
        return [
            manifest["spec"]["ingress"] for manifest in made if manifest["kind"] == "NetworkPolicy"
        ]

    assert policies(networkPolicy={"clientsFrom": [SHOP]}) == [
        rules(networkPolicy={"clientsFrom": [SHOP]})
    ]
    assert policies(networkPolicy={"enabled": False}) == []


@pytest.mark.parametrize("peer", [{}, SHOP | OFFICE])
def test_a_peer_is_pods_or_addresses(peer: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="each entry has either ipBlock"):
        cluster(networkPolicy={"clientsFrom": [peer]})


def test_without_auth_the_status_says_who_may_administer() -> None:
    finding = protection(cluster())
    assert (finding.holds, finding.reason) == (False, Reason.OPEN_TO_ALL)
    assert finding.message.startswith(
        "no spec.auth: anybody there may administer this cluster. REST on port 8080 is open to "
        "every pod"
    )
    restricted = protection(cluster(networkPolicy={"clientsFrom": [SHOP]})).message
    assert (
        "whom spec.networkPolicy.clientsFrom admits, where the network plugin enforces policies"
        in restricted
    )
    unchecked = protection(cluster(auth=TOKENS | {"authorization": False}))
    assert (unchecked.holds, unchecked.reason) == (False, Reason.NO_AUTHORIZATION)


def test_with_auth_it_names_the_super_users_and_what_weakens_it() -> None:
    finding = protection(
        cluster(auth=TOKENS | {"superUserRoles": ["admin"], "anonymousRole": "guest"})
    )
    assert (finding.holds, finding.reason) == (True, Reason.AS_DESIRED)
    for words in (
        "everything: admin",
        "who shows nothing has the role guest",
        "tokens cross plain ports readable",
    ):
        assert words in finding.message
    assert "readable" not in protection(cluster(auth=TOKENS, tls=TLS | {"plain": "Closed"})).message
