"""Listeners: services that never mix brokers up, addresses that are announced only when they
are known, templates that do not change with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from magnetar.errors import InvalidRequest
from magnetar.hosting.advertised import parse_bind_addresses, parse_listeners
from magnetar.resources import API_VERSION, parse_manifest
from magnetar_operator.brokers.desired import Identity, desired, identity_of
from magnetar_operator.builders.listeners import (
    PATH,
    address_of,
    brokers_of,
    listener_statuses,
    pending_listener,
)
from magnetar_operator.conditions import Reason
from magnetar_operator.engine.planning import Remove, plan, sealed
from tests.support.samples import DEFAULTS, cluster

LISTENERS: list[dict[str, Any]] = [
    {
        "name": "public",
        "annotations": {"dns": "b-{ordinal}.example.com"},
        "sourceRanges": ["203.0.113.0/24"],
        "loadBalancerClass": "x",
    },
    {
        "name": "nodes",
        "type": "NodePort",
        "nodePort": 30650,
        "port": 6651,
        "externalTrafficPolicy": "Local",
    },
    {"name": "mesh", "type": "ClusterIP"},
    {"name": "named", "advertisedHost": "b-{ordinal}.example.com", "port": 7000},
]


def children(
    replicas: int = 2, addresses: bool = True, **spec: Any
) -> dict[Identity, dict[str, Any]]:
    """What the API server would hold: node ports chosen, and addresses if the load balancers
    have any."""
    found: dict[Identity, dict[str, Any]] = {}
    for number, manifest in enumerate(
        desired(cluster(listeners=LISTENERS, **spec), DEFAULTS, replicas, {})
    ):
        stored = copy.deepcopy(sealed(manifest))
        if (
            stored["kind"] == "Service"
            and stored["spec"].get("type") == "LoadBalancer"
            and addresses
        ):
            stored["status"] = {"loadBalancer": {"ingress": [{"ip": f"198.51.100.{number}"}]}}
        found[identity_of(manifest)] = stored
    return found


def data_of(observed: dict[Identity, dict[str, Any]], replicas: int = 2) -> dict[str, str]:
    (config,) = [
        manifest
        for manifest in desired(cluster(listeners=LISTENERS), DEFAULTS, replicas, observed)
        if identity_of(manifest) == ("ConfigMap", "main-broker-listeners")
    ]
    return dict(config["data"])


def test_each_broker_has_a_service_of_each_listener_and_each_listener_one_to_begin_with() -> None:
    """A client gets the addresses of single brokers: the selector names one pod; the first service
    takes any that is ready."""
    services = {
        name: item["spec"] for (kind, name), item in children(3).items() if kind == "Service"
    }
    for listener in ("public", "nodes", "mesh", "named"):
        first = services[f"main-broker-{listener}"]
        assert "statefulset.kubernetes.io/pod-name" not in first["selector"]
        assert "publishNotReadyAddresses" not in first
        for ordinal in range(3):
            one = services[f"main-broker-{ordinal}-{listener}"]
            assert one["selector"] == {
                **first["selector"],
                "statefulset.kubernetes.io/pod-name": f"main-broker-{ordinal}",
            }
            assert one["publishNotReadyAddresses"] is True, "a broker that drains still serves"
            assert one["ports"][0]["targetPort"] == f"l-{listener}"
    assert services["main-broker-nodes"]["ports"][0]["nodePort"] == 30650
    assert services["main-broker-2-nodes"]["ports"][0]["nodePort"] == 30653
    assert services["main-broker-nodes"]["externalTrafficPolicy"] == "Local"
    assert services["main-broker-public"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
    assert services["main-broker-public"]["loadBalancerClass"] == "x"
    assert "externalTrafficPolicy" not in services["main-broker-mesh"]


def test_annotations_say_which_broker() -> None:
    """External DNS gets a name per broker from one text."""
    found = children()
    assert (
        found["Service", "main-broker-1-public"]["metadata"]["annotations"]["dns"]
        == "b-1.example.com"
    )
    assert (
        found["Service", "main-broker-public"]["metadata"]["annotations"]["dns"]
        == "b-bootstrap.example.com"
    )


def test_a_broker_gets_the_addresses_that_are_known_in_its_own_spelling() -> None:
    """What is written is what a broker reads; one without an address is left out rather than
    guessed."""
    before, after = data_of(children(addresses=False)), data_of(children())
    assert set(before) == set(after) == {"main-broker-0", "main-broker-1"}
    assert set(parse_listeners(before["main-broker-1"], "10.0.0.9")) == {"nodes", "mesh", "named"}
    known = {
        name: address.service_url
        for name, address in parse_listeners(after["main-broker-1"], "10.0.0.9").items()
    }
    assert known["public"].startswith("pulsar://198.51.100.")
    assert known["nodes"] == "pulsar://10.0.0.9:30652"
    assert known["mesh"] == "pulsar://main-broker-1-mesh.shop.svc:6650"
    assert known["named"] == "pulsar://b-1.example.com:7000"
    assert data_of({})["main-broker-0"] == "", "nothing is known before there are services"


def test_an_address_changes_no_template() -> None:
    """Brokers follow the file: a load balancer that comes late, or changes, restarts nobody. A
    listener that is new does."""
    template = children()["StatefulSet", "main-broker"]["spec"]["template"]
    assert template == children(addresses=False)["StatefulSet", "main-broker"]["spec"]["template"]
    without = {identity_of(item): item for item in desired(cluster(), DEFAULTS, 2, {})}[
        "StatefulSet", "main-broker"
    ]["spec"]["template"]
    assert template != without
    container = template["spec"]["containers"][0]
    arguments = container["args"]
    bound = parse_bind_addresses(arguments[arguments.index("--bind-addresses") + 1])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {f"l-{name}": port for name, (_, port) in bound.items()}.items() <= ports.items()
    assert len(set(ports.values())) == len(ports)
    assert arguments[arguments.index("--listeners-file") + 1] == f"{PATH}/$(POD_NAME)"
    assert {"name": "listeners", "mountPath": PATH, "readOnly": True} in container["volumeMounts"]
    assert all("subPath" not in mount for mount in container["volumeMounts"]), (
        "a single file would not be followed"
    )


def test_services_of_a_broker_that_has_left_are_removed_once() -> None:
    """After a scale-down; one whose cloud still tidies up is left alone."""
    observed = children(2)
    for item in observed.values():
        item["metadata"] |= {"uid": "x", "resourceVersion": "1"}
    resource = cluster(listeners=LISTENERS)
    steps = plan(desired(resource, DEFAULTS, 1, observed), observed, "u-1")
    removed = {identity_of(step.observed)[1] for step in steps if isinstance(step, Remove)}
    assert removed == {f"main-broker-1-{listener['name']}" for listener in LISTENERS}
    observed["Service", "main-broker-1-public"]["metadata"]["deletionTimestamp"] = (
        "2026-01-01T00:00:00Z"
    )
    steps = plan(desired(resource, DEFAULTS, 1, observed), observed, "u-1")
    assert "main-broker-1-public" not in {
        identity_of(step.observed)[1] for step in steps if isinstance(step, Remove)
    }


def test_what_waits_for_an_address_is_named() -> None:
    """The condition says which service to look at; with advertisedHost nothing is waited for."""
    resource = cluster(replicas=2, listeners=LISTENERS)
    found = pending_listener(brokers_of(resource), children(addresses=False))
    assert found is not None
    assert found.reason is Reason.LISTENER_PENDING
    assert found.message.startswith("Service main-broker-public (and 2 more) has no address yet.")
    assert pending_listener(brokers_of(resource), children()) is None
    assert pending_listener(brokers_of(cluster()), {}) is None


def test_the_status_shows_the_addresses_that_clients_get() -> None:
    """Node addresses are those of the pods; a broker without a pod has none."""
    statuses = {
        status.name: status
        for status in listener_statuses(
            cluster(replicas=2, listeners=LISTENERS), children(), {1: "fd00::1"}
        )
    }
    assert [broker.address for broker in statuses["nodes"].brokers] == ["", "[fd00::1]:30652"]
    assert statuses["nodes"].service_url == "pulsar://[fd00::1]:30650"
    assert statuses["named"].service_url == "pulsar://b-bootstrap.example.com:7000"
    assert statuses["mesh"].brokers[1].address == "main-broker-1-mesh.shop.svc:6650"


def test_a_service_of_another_type_has_no_address() -> None:
    """While a change of type is on its way nobody is sent to what is about to go."""
    resource = cluster(listeners=[{"name": "public", "type": "NodePort"}])
    assert address_of(brokers_of(resource), resource.spec.listeners[0], 0, children()) is None


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        ({"name": "internal"}, "choose another name"),
        ({"name": "p", "nodePort": 30000}, "nodePort is for type NodePort"),
        (
            {"name": "p", "type": "NodePort", "sourceRanges": ["10.0.0.0/8"]},
            "are for type LoadBalancer",
        ),
        ({"name": "p", "advertisedHost": "b.example.com"}, "write {ordinal} in it"),
        ({"name": "p", "advertisedHost": "http://b-{ordinal}"}, "advertisedHost"),
        ({"name": "longer-than-eleven"}, "at most 11"),
    ],
)
def test_a_listener_that_cannot_work_is_refused(listener: dict[str, Any], said: str) -> None:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {"listeners": [listener]},
    }
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(manifest)
    assert said in str(refused.value)
