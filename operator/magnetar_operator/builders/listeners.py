"""Services of listeners, and what brokers and clients are told of them.

Owns: the services, the addresses that follow from them, the ConfigMap with each broker's own. Imports: builders.object, models.listeners, names.
Pure.
Invariants: a broker's address is told only when it is known, so that no client is sent nowhere; a new address changes the ConfigMap, which brokers
follow, and never their template; a service finds its port by name, so that brokers of an older template are reached too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object, field_variable
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.models.listeners import BOOTSTRAP, ORDINAL, BrokerAddress, Listener, ListenerStatus

FIRST_PORT = 6660
"""Brokers listen here for the first listener, one above for the next."""
HOST = "{host}"
"""A broker replaces it by its node's address."""
PATH = "/etc/magnetar/listeners"
VOLUME = "listeners"
Children = Mapping[tuple[str, str], Manifest]


# --- services -----------------------------------------------------------------------------------------------------------------


def listener_services(cluster: BrokerCluster, replicas: int) -> list[Manifest]:
    """For each listener the service to begin with, and one for each broker."""
    found = []
    for listener in cluster.spec.listeners:
        found.append(_service(cluster, listener, None))
        found += [_service(cluster, listener, ordinal) for ordinal in range(replicas)]
    return found


def _service(cluster: BrokerCluster, listener: Listener, ordinal: int | None) -> Manifest:
    """The service of one broker, or the one to begin with."""
    name = names.listener_service(cluster.name, listener.name, ordinal)
    service = cluster_object("v1", "Service", cluster, name, names.BROKER)
    if listener.annotations:
        service["metadata"]["annotations"] = {key: _filled(value, ordinal) for key, value in listener.annotations.items()}
    port: Manifest = {"name": "pulsar", "port": listener.port, "targetPort": _port_name(listener), "protocol": "TCP"}
    if listener.node_port:
        port["nodePort"] = listener.node_port + (0 if ordinal is None else ordinal + 1)
    spec: Manifest = {"type": listener.type, "selector": names.selector(cluster.name, names.BROKER), "ports": [port]}
    if ordinal is not None:
        spec["selector"] |= {names.POD_NAME: names.broker_pod(cluster.name, ordinal)}
        # A broker that drains is not ready, and still serves what it has not handed over.
        spec["publishNotReadyAddresses"] = True
    if listener.type != "ClusterIP":
        spec["externalTrafficPolicy"] = listener.external_traffic_policy
    if listener.load_balancer_class:
        spec["loadBalancerClass"] = listener.load_balancer_class
    if listener.source_ranges:
        spec["loadBalancerSourceRanges"] = list(listener.source_ranges)
    return service | {"spec": spec}


def _filled(text: str, ordinal: int | None) -> str:
    return text.replace(ORDINAL, BOOTSTRAP if ordinal is None else str(ordinal))


def _scheme(listener: Listener) -> str:
    return "pulsar+ssl" if listener.tls else "pulsar"


def _port_name(listener: Listener) -> str:
    return f"l-{listener.name}"


# --- addresses ----------------------------------------------------------------------------------------------------------------


def address_of(cluster: BrokerCluster, listener: Listener, ordinal: int | None, children: Children) -> tuple[str, int] | None:
    """Host and port under which clients reach a broker (None: any of them); None while that is not known. `{host}` is the node's address."""
    name = names.listener_service(cluster.name, listener.name, ordinal)
    service = children.get(("Service", name))
    if service is None or service["spec"].get("type", "ClusterIP") != listener.type:
        return None
    ports: list[dict[str, Any]] = service["spec"].get("ports", [])
    port = int((ports[0] if ports else {}).get("nodePort", 0)) if listener.type == "NodePort" else listener.port
    if listener.advertised_host:
        host = _filled(listener.advertised_host, ordinal)
    elif listener.type == "LoadBalancer":
        ingress = (service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}])[0]
        host = str(ingress.get("hostname") or ingress.get("ip") or "")
    else:
        host = HOST if listener.type == "NodePort" else f"{name}.{cluster.namespace}.svc"
    return (host, port) if host and port else None


def broker_listeners(cluster: BrokerCluster, replicas: int, children: Children) -> list[Manifest]:
    """The ConfigMap with a key per broker, as `magnetar broker --listeners-file` reads it; none without listeners."""
    if not cluster.spec.listeners:
        return []
    data = {}
    for ordinal in range(replicas):
        known = ((listener, address_of(cluster, listener, ordinal, children)) for listener in cluster.spec.listeners)
        lines = [
            f"{listener.name}:{_scheme(listener)}://{_joined(address)}\n" for listener, address in known if address is not None
        ]
        data[names.broker_pod(cluster.name, ordinal)] = "".join(lines)
    config = cluster_object("v1", "ConfigMap", cluster, names.broker_listeners(cluster.name), names.BROKER)
    return [config | {"data": data}]


def _joined(address: tuple[str, int], node: str = HOST) -> str:
    host = address[0].replace(HOST, node)
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


def pending_listener(cluster: BrokerCluster, children: Children) -> Problem | None:
    """What keeps clients of a listener from all brokers."""
    missing = [
        names.listener_service(cluster.name, listener.name, ordinal)
        for listener in cluster.spec.listeners
        for ordinal in (None, *range(cluster.spec.replicas))
        if address_of(cluster, listener, ordinal, children) is None
    ]
    if not missing:
        return None
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return Problem(Reason.LISTENER_PENDING, f"Service {missing[0]}{more} has no address yet. {Reason.LISTENER_PENDING.remedy}")


def listener_statuses(cluster: BrokerCluster, children: Children, hosts: Mapping[int, str]) -> tuple[ListenerStatus, ...]:
    """What the status says. `hosts` gives the node's address of each broker that has one."""
    found = []
    for listener in cluster.spec.listeners:
        brokers = []
        for ordinal in range(cluster.spec.replicas):
            address = address_of(cluster, listener, ordinal, children)
            node = hosts.get(ordinal, "")
            known = address is not None and (address[0] != HOST or node)
            text = _joined(address, node) if address is not None and known else ""
            brokers.append(BrokerAddress(name=names.broker_pod(cluster.name, ordinal), address=text))
        first, node = address_of(cluster, listener, None, children), next(iter(hosts.values()), "")
        url = f"{_scheme(listener)}://{_joined(first, node)}" if first is not None and (first[0] != HOST or node) else ""
        found.append(ListenerStatus(name=listener.name, service_url=url, brokers=tuple(brokers)))
    return tuple(found)


# --- pods ---------------------------------------------------------------------------------------------------------------------


def listener_arguments(cluster: BrokerCluster) -> tuple[str, ...]:
    """What a broker gets: a port of its own for each listener, and where its addresses are."""
    if not cluster.spec.listeners:
        return ()
    ports = (
        f"{listener.name}:{_scheme(listener)}://0.0.0.0:{FIRST_PORT + index}"
        for index, listener in enumerate(cluster.spec.listeners)
    )
    return ("--bind-addresses", ",".join(ports), "--listeners-file", f"{PATH}/$(POD_NAME)", "--host-address", "$(HOST_IP)")


def listener_ports(cluster: BrokerCluster) -> tuple[tuple[str, int], ...]:
    return tuple((_port_name(listener), FIRST_PORT + index) for index, listener in enumerate(cluster.spec.listeners))


def listener_environment(cluster: BrokerCluster) -> tuple[Manifest, ...]:
    return (field_variable("HOST_IP", "status.hostIP"),) if cluster.spec.listeners else ()


def listener_volumes(cluster: BrokerCluster) -> tuple[Manifest, ...]:
    """Mounted as a directory: single files of a ConfigMap would not follow it."""
    if not cluster.spec.listeners:
        return ()
    return ({"name": VOLUME, "configMap": {"name": names.broker_listeners(cluster.name), "optional": True}},)


def listener_mounts(cluster: BrokerCluster) -> tuple[Manifest, ...]:
    return ({"name": VOLUME, "mountPath": PATH, "readOnly": True},) if cluster.spec.listeners else ()
