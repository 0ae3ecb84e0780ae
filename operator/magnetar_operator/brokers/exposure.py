"""Who may administer a cluster.

Owns: the condition Protected. Imports: conditions, builders.client_tls, resources. Pure. Invariant:
it speaks of the spec alone; whether a network plugin enforces policies is not known here, and is
said.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.client_tls import ports_of
from magnetar_operator.builders.network_policy import REST_PORTS
from magnetar_operator.conditions import Finding, Reason, Type


def protection(cluster: BrokerCluster) -> Finding:
    """Whether roles decide who may do what, and who may do everything otherwise."""
    auth, tls = cluster.spec.auth, cluster.spec.tls
    ports = " and ".join(str(number) for _, number in ports_of(cluster) if number in REST_PORTS)
    reach = f"REST on port {ports} is open to {_who(cluster)}"
    if auth is None:
        return _not(
            Reason.OPEN_TO_ALL, f"no spec.auth: anybody there may administer this cluster. {reach}"
        )
    if not auth.authorization:
        return _not(
            Reason.NO_AUTHORIZATION,
            f"every client with a known role may administer this cluster. {reach}",
        )
    super_users = (
        ", ".join(auth.super_user_roles) or "no role, as spec.auth.superUserRoles is empty"
    )
    said = [
        "roles with the right may administer parts of this cluster, and everything: "
        f"{super_users}. {reach}"
    ]
    if auth.anonymous_role:
        said.append(f"who shows nothing has the role {auth.anonymous_role}")
    shown = {"tokens": auth.tokens, "passwords": auth.users}
    readable = " and ".join(what for what, used in shown.items() if used is not None)
    if readable and (tls is None or tls.plain == "Open"):
        said.append(f"{readable} cross plain ports readable: see spec.tls.plain")
    return Finding(Type.PROTECTED, True, Reason.AS_DESIRED, "; ".join(said))


def _not(reason: Reason, text: str) -> Finding:
    return Finding(Type.PROTECTED, False, reason, f"{text}. {reason.remedy}")


def _who(cluster: BrokerCluster) -> str:
    policy, tls = cluster.spec.network_policy, cluster.spec.tls
    chosen = "restFrom" if policy.rest_from else "clientsFrom"
    if policy.enabled and (policy.rest_from or policy.clients_from):
        return (
            f"whom spec.networkPolicy.{chosen} admits, where the network plugin enforces policies"
        )
    if tls is not None and tls.plain == "Internal":
        return f"every pod, on {names.HTTP_PORT} for metrics only"
    return (
        "every pod of this Kubernetes cluster, and to every host that is routed to pods or services"
    )
