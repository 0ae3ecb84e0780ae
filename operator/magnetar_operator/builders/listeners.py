"""Services of listeners, and the settings of brokers and transaction coordinators about them.

Owns: the services, the addresses that follow from them, the ConfigMap with each pod's own. Imports:
builders.object, resources.listeners, names. Pure. Invariants: a pod's address is announced only
when it is known, so that no client is sent nowhere; a new address changes the ConfigMap, which pods
follow, and never their template; a service finds its port by name, so that pods of an older
template are reached too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.listeners import BOOTSTRAP, ORDINAL, BrokerAddress, Listener, ListenerStatus
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object, field_variable
from magnetar_operator.conditions import Problem, Reason

FIRST_PORT = 6660
"""Pods listen here for the first listener, one above for the next."""
HOST = "{host}"
"""A pod replaces it by its node's address."""
PATH = "/etc/magnetar/listeners"
VOLUME = "listeners"
Children = Mapping[tuple[str, str], Manifest]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pods of one StatefulSet, each of which clients outside reach by every listener."""

    stateful_set: str
    namespace: str
    listeners: tuple[Listener, ...]
    pods: int
    """How many there should be."""
    selector: Mapping[str, str]
    bare: Callable[[str, str, str], Manifest]
    """An object of the fleet's owner, by API version, kind and name."""
    entrance: bool = True
    """Whether clients may begin with any of the pods, so that a service leads to all of them."""

    def services(self, pods: int) -> tuple[int | None, ...]:
        """Ordinals that have a service of each listener; None = the one to begin with."""
        return (*((None,) if self.entrance else ()), *range(pods))

    def pod(self, ordinal: int) -> str:
        return f"{self.stateful_set}-{ordinal}"


def brokers_of(cluster: BrokerCluster) -> Fleet:
    return Fleet(
        stateful_set=names.broker_set(cluster.name),
        namespace=cluster.namespace,
        listeners=cluster.spec.listeners,
        pods=cluster.spec.replicas,
        selector=names.selector(cluster.name, names.BROKER),
        bare=lambda api_version, kind, name: cluster_object(
            api_version, kind, cluster, name, names.BROKER
        ),
    )


# --- services -------------------------------------------------------------------------------------


def listener_services(fleet: Fleet, pods: int) -> list[Manifest]:
    """For each listener the service to begin with, and one for each of so many pods."""
    return [
        _service(fleet, listener, ordinal)
        for listener in fleet.listeners
        for ordinal in fleet.services(pods)
    ]


def _service(fleet: Fleet, listener: Listener, ordinal: int | None) -> Manifest:
    """The service of one pod, or the one to begin with."""
    service = fleet.bare(
        "v1", "Service", names.listener_service(fleet.stateful_set, listener.name, ordinal)
    )
    if listener.annotations:
        service["metadata"]["annotations"] = {
            key: _filled(value, ordinal) for key, value in listener.annotations.items()
        }
    port: Manifest = {
        "name": "pulsar",
        "port": listener.port,
        "targetPort": _port_name(listener),
        "protocol": "TCP",
    }
    if listener.node_port:
        port["nodePort"] = listener.node_port + (0 if ordinal is None else ordinal + 1)
    spec: Manifest = {"type": listener.type, "selector": dict(fleet.selector), "ports": [port]}
    if ordinal is not None:
        spec["selector"] |= {names.POD_NAME: fleet.pod(ordinal)}
        # A broker that drains is not ready, and still serves what it has not transferred.
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


# --- addresses ------------------------------------------------------------------------------------


def address_of(
    fleet: Fleet, listener: Listener, ordinal: int | None, children: Children
) -> tuple[str, int] | None:
    """Host and port under which clients reach a pod (None: any of them); None while that is not
    known. `{host}` is the node's address."""
    name = names.listener_service(fleet.stateful_set, listener.name, ordinal)
    service = children.get(("Service", name))
    if service is None or service["spec"].get("type", "ClusterIP") != listener.type:
        return None
    ports: list[dict[str, Any]] = service["spec"].get("ports", [])
    port = (
        int((ports[0] if ports else {}).get("nodePort", 0))
        if listener.type == "NodePort"
        else listener.port
    )
    if listener.advertised_host:
        host = _filled(listener.advertised_host, ordinal)
    elif listener.type == "LoadBalancer":
        ingress = (service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}])[0]
        host = str(ingress.get("hostname") or ingress.get("ip") or "")
    else:
        host = HOST if listener.type == "NodePort" else f"{name}.{fleet.namespace}.svc"
    return (host, port) if host and port else None


def addresses_of(
    fleet: Fleet, ordinal: int, children: Children, node: str = HOST
) -> dict[str, str]:
    """URL by listener under which clients reach a pod on a node of that address ("" = it is not
    known), of listeners whose address is known."""
    found = (
        (listener, address_of(fleet, listener, ordinal, children)) for listener in fleet.listeners
    )
    return {
        listener.name: f"{_scheme(listener)}://{_joined(address, node)}"
        for listener, address in found
        if address is not None and (address[0] != HOST or node)
    }


def listener_addresses(fleet: Fleet, pods: int, children: Children) -> list[Manifest]:
    """The ConfigMap with a key per pod, as `--listeners-file` reads it; none without listeners."""
    if not fleet.listeners:
        return []
    data = {}
    for ordinal in range(pods):
        known = addresses_of(fleet, ordinal, children)
        data[fleet.pod(ordinal)] = "".join(f"{name}:{url}\n" for name, url in known.items())
    return [
        fleet.bare("v1", "ConfigMap", names.listener_addresses(fleet.stateful_set)) | {"data": data}
    ]


def _joined(address: tuple[str, int], node: str = HOST) -> str:
    host = address[0].replace(HOST, node)
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


def pending_listener(fleet: Fleet, children: Children) -> Problem | None:
    """What keeps clients of a listener from all pods."""
    missing = [
        names.listener_service(fleet.stateful_set, listener.name, ordinal)
        for listener in fleet.listeners
        for ordinal in fleet.services(fleet.pods)
        if address_of(fleet, listener, ordinal, children) is None
    ]
    if not missing:
        return None
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return Problem(
        Reason.LISTENER_PENDING,
        f"Service {missing[0]}{more} has no address yet. {Reason.LISTENER_PENDING.remedy}",
    )


def listener_statuses(
    cluster: BrokerCluster, children: Children, hosts: Mapping[int, str]
) -> tuple[ListenerStatus, ...]:
    """What the status says. `hosts` gives the node's address of each broker that has one."""
    fleet, found = brokers_of(cluster), []
    known = {
        ordinal: addresses_of(fleet, ordinal, children, hosts.get(ordinal, ""))
        for ordinal in range(fleet.pods)
    }
    for listener in fleet.listeners:
        brokers = tuple(
            BrokerAddress(
                name=fleet.pod(ordinal), address=urls.get(listener.name, "").partition("://")[2]
            )
            for ordinal, urls in known.items()
        )
        first, node = address_of(fleet, listener, None, children), next(iter(hosts.values()), "")
        url = (
            f"{_scheme(listener)}://{_joined(first, node)}"
            if first is not None and (first[0] != HOST or node)
            else ""
        )
        found.append(ListenerStatus(name=listener.name, service_url=url, brokers=brokers))
    return tuple(found)


# --- pods -----------------------------------------------------------------------------------------


def listener_arguments(fleet: Fleet) -> tuple[str, ...]:
    """What a pod's process gets: a port of its own for each listener, and where its addresses
    are."""
    if not fleet.listeners:
        return ()
    ports = (
        f"{listener.name}:{_scheme(listener)}://0.0.0.0:{FIRST_PORT + index}"
        for index, listener in enumerate(fleet.listeners)
    )
    return (
        "--bind-addresses",
        ",".join(ports),
        "--listeners-file",
        f"{PATH}/$(POD_NAME)",
        "--host-address",
        "$(HOST_IP)",
    )


def listener_ports(fleet: Fleet) -> tuple[tuple[str, int], ...]:
    return tuple(
        (_port_name(listener), FIRST_PORT + index) for index, listener in enumerate(fleet.listeners)
    )


def listener_environment(fleet: Fleet) -> tuple[Manifest, ...]:
    return (field_variable("HOST_IP", "status.hostIP"),) if fleet.listeners else ()


def listener_volumes(fleet: Fleet) -> tuple[Manifest, ...]:
    """Mounted as a directory: single files of a ConfigMap would not follow it."""
    if not fleet.listeners:
        return ()
    return (
        {
            "name": VOLUME,
            "configMap": {"name": names.listener_addresses(fleet.stateful_set), "optional": True},
        },
    )


def listener_mounts(fleet: Fleet) -> tuple[Manifest, ...]:
    return ({"name": VOLUME, "mountPath": PATH, "readOnly": True},) if fleet.listeners else ()
