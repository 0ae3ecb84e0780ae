"""What must be done about the secrets of a managed etcd.

Owns: that decision. Imports: builders, certificates, planning, names. Pure but for the keys that it
makes. Invariants: steady input gives no step; an authority is made only where no certificate of an
earlier one is in use, because members that know different authorities cannot talk to each other; no
step's text holds key material.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.names import AUTHORITY_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import (
    authorities_of,
    authority_secret,
    content,
    leaf_secret,
    pair_of,
    subjects,
)
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine.planning import Taken, differences, taken
from magnetar_operator.etcd.certificates import (
    authority_problem,
    issue,
    leaf_problem,
    make_authority,
    material_problem,
)
from magnetar_operator.etcd.rotation import Authorities, Phase, advanced, touched, understood

Found = Mapping[str, Manifest | None]
"""Secrets by name; None = it does not exist."""
_IDENTITY = ("metadata", "type")


@dataclass(frozen=True, slots=True)
class Write:
    """Make the secret (`why` is empty), or correct it; `renews`: its certificate has come of
    age, it is due; `rotates`: it is part of a rotation."""

    manifest: Manifest
    why: str = ""
    renews: bool = False
    rotates: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """Certificates are in use, but their authority cannot issue others."""

    message: str


def secret_names(cluster: BrokerCluster) -> list[str]:
    """All secrets of the cluster's managed etcd, the authority's first."""
    return [
        names.etcd_authority(cluster.name),
        *(names.etcd_secret(cluster.name, part) for part in subjects(cluster)),
    ]


def plan_secrets(
    cluster: BrokerCluster, found: Found, now_ms: int, trusted: str | None = None
) -> list[Write | Taken | Lost]:
    """The steps, in order. `now_ms`: milliseconds since the epoch; `trusted`: the bundle of
    authorities that all members run with (None = not known, so that no rotation begins or goes
    on)."""
    authorities, step = _authorities(cluster, found, now_ms)
    if authorities is None:
        return [step] if step is not None else []
    leaves = _leaves(
        cluster, found, authorities, now_ms, rotates=authorities.phase is not Phase.NONE
    )
    if leaves and authorities.phase is not Phase.NONE:
        touching = authority_secret(cluster, touched(authorities, now_ms))
        return [Write(touching, "files of its rotation are written now", rotates=True), *leaves]
    if step is not None or leaves:
        return [*([step] if step is not None else []), *leaves]
    requested = cluster.metadata.annotations.get(names.ROTATE_ETCD, "")
    after, why = advanced(authorities, requested, trusted, authority_name(cluster), now_ms)
    if not why:
        return []
    return [
        Write(authority_secret(cluster, after), why, rotates=True),
        *_leaves(cluster, found, after, now_ms, rotates=True),
    ]


def authority_name(cluster: BrokerCluster) -> str:
    """Common name of its authorities."""
    return f"{cluster.namespace}/{cluster.name} etcd"


def _leaves(
    cluster: BrokerCluster, found: Found, authorities: Authorities, now_ms: int, *, rotates: bool
) -> list[Write | Taken | Lost]:
    """What must be done about the certificates, and about whom their holders trust."""
    steps: list[Write | Taken | Lost] = []
    issuer = authorities.current
    for component, subject in subjects(cluster).items():
        observed = found.get(names.etcd_secret(cluster.name, component))
        if observed is None:
            steps.append(
                Write(
                    leaf_secret(
                        cluster, component, authorities.bundle, issue(issuer, subject, now_ms)
                    )
                )
            )
            continue
        leaf = pair_of(observed)
        why = leaf_problem(leaf, issuer, subject, now_ms)
        if why:
            wanted = leaf_secret(
                cluster, component, authorities.bundle, issue(issuer, subject, now_ms)
            )
        else:
            wanted = leaf_secret(cluster, component, authorities.bundle, leaf)
            why = _difference(wanted, observed)
            why = "it names whom to trust from now on" if why and rotates else why
        name_taken = taken(wanted, observed, cluster.metadata.uid)
        if name_taken is not None:
            steps.append(name_taken)
        elif why:
            steps.append(Write(wanted, why, renews=why.startswith("two thirds"), rotates=rotates))
    return steps


def _authorities(
    cluster: BrokerCluster, found: Found, now_ms: int
) -> tuple[Authorities | None, Write | Taken | Lost | None]:
    """What to issue with and whom to trust, if it is known, and what must be done about it."""
    name = names.etcd_authority(cluster.name)
    observed = found.get(name)
    problem = (
        authority_problem(pair_of(observed), now_ms)
        if observed is not None
        else "it does not exist"
    )
    if observed is not None and not problem:
        authorities = understood(authorities_of(observed), now_ms)
        wanted = authority_secret(cluster, authorities)
        name_taken = taken(wanted, observed, cluster.metadata.uid)
        why = _difference(wanted, observed)
        return (
            (None, name_taken)
            if name_taken is not None
            else (authorities, Write(wanted, why) if why else None)
        )
    in_use = [leaf for leaf in secret_names(cluster)[1:] if _is_usable(found.get(leaf))]
    if in_use:
        state = "does not exist" if observed is None else f"cannot issue certificates: {problem}"
        return None, Lost(
            f"secret {name} {state}; those in use go on until they end. Restore the secret from a "
            "backup, or delete the secrets "
            f"{', '.join(in_use)} and then all pods of etcd and its clients at once, to begin with "
            "a new authority"
        )
    authorities = Authorities(make_authority(authority_name(cluster), now_ms))
    wanted = authority_secret(cluster, authorities)
    name_taken = taken(wanted, observed, cluster.metadata.uid) if observed is not None else None
    if name_taken is not None:
        return None, name_taken
    return authorities, Write(wanted, problem if observed is not None else "")


def _is_usable(secret: Manifest | None) -> bool:
    if secret is None:
        return False
    pair = pair_of(secret)
    return not material_problem(content(secret, AUTHORITY_FILE), pair.certificate, pair.key)


def _difference(wanted: Manifest, observed: Manifest) -> str:
    """What differs, by field; the values of data are secret."""
    changes = [
        change.path
        for field in _IDENTITY
        for change in differences(wanted[field], observed.get(field), field)
    ]
    changes += [
        f"data.{file}"
        for file, value in wanted["data"].items()
        if observed.get("data", {}).get(file) != value
    ]
    return f"{', '.join(changes)} had been changed" if changes else ""
