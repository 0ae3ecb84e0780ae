"""Listeners of transaction coordinators: the builders of the brokers' ones, by the cluster's
names, without a service to begin with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.hosting.advertised import parse_bind_addresses, parse_listeners
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator.brokers.desired import Identity, desired, identity_of
from magnetar_operator.builders.coordinator_set import (
    coordinators_of,
    desired_coordinators,
    unknown_listener,
)
from magnetar_operator.builders.listeners import pending_listener
from magnetar_operator.conditions import Reason
from magnetar_operator.coordinators.state import CoordinatorsState
from magnetar_operator.coordinators.status import ObservedCoordinators, derive
from magnetar_operator.engine.planning import plan, sealed
from magnetar_operator.pods.rolling import RollPlan
from tests.support.samples import DEFAULTS, cluster, coordinators

CLUSTER = cluster(
    replicas=1,
    tls={"secretName": "tls"},
    listeners=[
        {"name": "public", "tls": True},
        {"name": "nodes", "type": "NodePort", "nodePort": 30650},
    ],
)
WAYS: list[dict[str, Any]] = [
    {"name": "nodes", "type": "NodePort", "nodePort": 30700},
    {"name": "public", "port": 6651, "sourceRanges": ["203.0.113.0/24"]},
]


def children(
    replicas: int = 2,
    observed: dict[Identity, dict[str, Any]] | None = None,
    of: BrokerCluster = CLUSTER,
    **spec: Any,
) -> dict[Identity, dict[str, Any]]:
    resource = coordinators(replicas=2, **{"listeners": WAYS, **spec})
    return {
        identity_of(made): made
        for made in desired_coordinators(resource, of, DEFAULTS, replicas, observed or {})
    }


def stored(addresses: bool = True) -> dict[Identity, dict[str, Any]]:
    """What the API server holds of them."""
    found = {identity: copy.deepcopy(sealed(manifest)) for identity, manifest in children().items()}
    for number in range(2):
        service = found["Service", f"tx-coordinator-{number}-public"]
        service["status"] = {
            "loadBalancer": {"ingress": [{"ip": f"198.51.100.{number}"}] if addresses else []}
        }
    return found


def test_each_coordinator_has_a_service_of_each_listener() -> None:
    """Clients begin with a broker, so that there is none of all coordinators; each leads to one
    pod, on the port that the process opens."""
    made = children(3)
    services = {name: one["spec"] for (kind, name), one in made.items() if kind == "Service"}
    assert set(services) == {"tx-coordinators"} | {
        f"tx-coordinator-{n}-{name}" for n in range(3) for name in ("nodes", "public")
    }
    pod = made["StatefulSet", "tx-coordinator"]["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    for number in range(3):
        one = services[f"tx-coordinator-{number}-public"]
        assert (
            one["selector"].pop("statefulset.kubernetes.io/pod-name") == f"tx-coordinator-{number}"
        )
        assert one["selector"].items() <= pod["metadata"]["labels"].items()
        assert one["ports"][0]["targetPort"] in ports
    assert services["tx-coordinator-1-nodes"]["ports"][0]["nodePort"] == 30702
    allowed = made["NetworkPolicy", "tx-coordinator"]["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in allowed} == set(ports.values())


def test_a_coordinator_gets_its_own_addresses_in_the_spelling_that_it_reads() -> None:
    """With TLS where the cluster's listener has it; one that has no address yet is left out."""
    arguments = children()["StatefulSet", "tx-coordinator"]["spec"]["template"]["spec"][
        "containers"
    ][0]["args"]
    bound = parse_bind_addresses(arguments[arguments.index("--bind-addresses") + 1])
    assert set(bound) == {"nodes", "public/tls"}
    assert arguments[arguments.index("--listeners-file") + 1].endswith("/$(POD_NAME)")
    data = children(observed=stored())["ConfigMap", "tx-coordinator-listeners"]["data"]
    known = parse_listeners(data["tx-coordinator-1"], "10.0.0.9")
    assert known["public"].service_url_tls == "pulsar+ssl://198.51.100.1:6651"
    assert known["nodes"].service_url == "pulsar://10.0.0.9:30702"
    early = children(observed=stored(addresses=False))["ConfigMap", "tx-coordinator-listeners"][
        "data"
    ]
    assert set(parse_listeners(early["tx-coordinator-1"], "10.0.0.9")) == {"nodes"}


def test_an_address_restarts_nobody_and_what_was_just_applied_needs_no_write() -> None:
    observed = stored()
    assert plan(children(observed=observed).values(), observed | _updated(observed), "tc-1") == []
    template = children(observed=observed)["StatefulSet", "tx-coordinator"]
    assert template == children(observed=stored(addresses=False))["StatefulSet", "tx-coordinator"]


def _updated(observed: dict[Identity, dict[str, Any]]) -> dict[Identity, dict[str, Any]]:
    """The addresses, as they were applied."""
    identity = "ConfigMap", "tx-coordinator-listeners"
    return {identity: copy.deepcopy(sealed(children(observed=observed)[identity]))}


def test_without_listeners_of_their_own_coordinators_are_as_before() -> None:
    """Whatever listeners the brokers have: nobody is restarted by an upgrade."""
    assert children(listeners=[]) == children(
        of=cluster(replicas=1, tls={"secretName": "tls"}), listeners=[]
    )
    assert not any("listener" in name for _, name in children(listeners=[]))


def test_a_listener_that_the_cluster_does_not_have_is_named_and_not_made() -> None:
    resource = coordinators(listeners=[*WAYS, {"name": "privat"}])
    problem = unknown_listener(resource, CLUSTER)
    assert problem is not None
    assert problem.reason is Reason.LISTENER_UNKNOWN
    assert "has no listener privat." in problem.message
    assert unknown_listener(coordinators(listeners=WAYS), CLUSTER) is None
    assert [listener.name for listener in coordinators_of(resource, CLUSTER).listeners] == [
        "nodes",
        "public",
    ]


def test_an_address_that_is_missing_is_a_problem_that_names_the_service() -> None:
    fleet = coordinators_of(coordinators(replicas=2, listeners=WAYS), CLUSTER)
    missing = pending_listener(fleet, stored(addresses=False))
    assert missing is not None
    assert missing.reason is Reason.LISTENER_PENDING
    assert missing.message.startswith(
        "Service tx-coordinator-0-public (and 1 more) has no address yet"
    )
    assert pending_listener(fleet, stored()) is None


def test_the_status_says_where_each_coordinator_is_reached() -> None:
    """A node's address is known once the pod has a node."""
    conditions = [{"type": "Ready", "status": "True"}]
    pod = {"metadata": {"name": "tx-coordinator-1", "labels": {}}, "spec": {"containers": []}}
    for node, nodes in (("10.0.0.9", ["nodes=pulsar://10.0.0.9:30702"]), ("", [])):
        status = {"phase": "Running", "conditions": conditions, "hostIP": node}
        observed = ObservedCoordinators(
            stored(), ({**pod, "status": status},), CoordinatorsState(None, 0, {}, {})
        )
        resource = coordinators(replicas=2, listeners=WAYS)
        (row,) = derive(resource, CLUSTER, observed, RollPlan(), ()).coordinators
        found = [f"{address.listener}={address.url}" for address in row.addresses]
        assert found == [*nodes, "public=pulsar+ssl://198.51.100.1:6651"]


def test_names_of_services_fit() -> None:
    """63 characters with the highest number and the longest name of a listener."""
    name, ways = "t" * 36, [{"name": "l" * 11}]
    long = cluster(replicas=1, listeners=ways)
    made = desired_coordinators(coordinators(name, listeners=ways), long, DEFAULTS, 16, {})
    assert max(len(one["metadata"]["name"]) for one in made if one["kind"] == "Service") == 63
    with pytest.raises(ValidationError, match="may have at most 36 characters"):
        coordinators(f"{name}t", listeners=ways)


def test_brokers_and_coordinators_of_one_name_share_no_object() -> None:
    theirs = {identity_of(made) for made in desired(CLUSTER, DEFAULTS, 2, {})}
    mine = desired_coordinators(coordinators("main", listeners=WAYS), CLUSTER, DEFAULTS, 2, {})
    assert not theirs & {identity_of(made) for made in mine}
