"""Which way a managed etcd is spoken to, and how one that was made without TLS comes to it.

Owns: that decision. Imports: names, builders. Pure. Invariants: a new etcd knows TLS alone; one
that listens in plain is first made to listen for both on the same port, then its clients change
over one by one, and only when none is left that speaks plain does the plain listener go: no step
needs a pause, and each follows from what is observed; clients that were told to use TLS are never
told otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest


class Security(enum.StrEnum):
    """How a managed etcd is spoken to, as status.etcdSecurity says. Plain: clients must not use
    TLS yet. Mixed: some do not use it yet."""

    PLAIN = "Plain"
    MIXED = "Mixed"
    TLS = "TLS"


def plan_security(
    etcd: Manifest | None, brokers: Manifest | None, pods: Iterable[Manifest]
) -> Security:
    """The next step. `etcd` and `brokers` are the StatefulSets, `pods` all of the cluster. The
    members listen for both until it is TLS."""
    now = listening(etcd)
    if now is not Security.MIXED:
        return now
    told = brokers is not None and uses_tls(brokers["spec"]["template"])
    if not told:
        return Security.MIXED if _settled(etcd) else Security.PLAIN
    return (
        Security.MIXED
        if any(_is_client(pod) and not uses_tls(pod) for pod in pods)
        else Security.TLS
    )


def listening(etcd: Manifest | None) -> Security:
    """What the StatefulSet's members listen for; one that is still to be made, for TLS."""
    if etcd is None:
        return Security.TLS
    command: list[str] = etcd["spec"]["template"]["spec"]["containers"][0].get("command", [])
    flag = next((part for part in command if part.startswith("--listen-client-urls=")), "")
    schemes = {url.partition("://")[0] for url in flag.partition("=")[2].split(",")}
    if schemes == {"https"}:
        return Security.TLS
    return Security.MIXED if "https" in schemes else Security.PLAIN


def uses_tls(pod: Manifest) -> bool:
    """Whether a pod, or a template, has a client certificate for etcd."""
    return any(volume["name"] == names.ETCD_TLS_VOLUME for volume in pod["spec"].get("volumes", []))


def _settled(etcd: Manifest | None) -> bool:
    """Whether all members run with the newest template."""
    if etcd is None:
        return False
    status, wanted = etcd.get("status", {}), etcd["spec"]["replicas"]
    seen = status.get("observedGeneration") == etcd["metadata"].get("generation")
    return bool(
        seen and status.get("updatedReplicas", 0) == status.get("readyReplicas", 0) == wanted
    )


def _is_client(pod: Manifest) -> bool:
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return pod["metadata"].get("labels", {}).get(names.COMPONENT) in names.ETCD_CLIENTS and not over
