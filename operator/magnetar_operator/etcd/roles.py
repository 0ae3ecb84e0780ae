"""Who may do what in a managed etcd.

Owns: users and roles, and what must change to reach them. Imports: names, magnetar.metadata (keys), balance.advice.
Pure. Invariants: only the operator writes its term, so no broker can end its lead; a job
writes its records, its intents and manifests, and advice on load, nothing else; a user has no password and comes only
with its certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.balance import advice
from magnetar.metadata import keys
from magnetar_operator import names

READ, WRITE = 0, 1
"""As etcd counts kinds of permission; 2 is both."""
ROOT = "root"
"""etcd's own role of administrators, and the user that it wants to exist; no client can be that
user, because it has no certificate."""
OPERATOR_KEYS = keys.OPERATOR_TERM.rpartition("/")[0] + "/"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One kind of permission on the keys from `key` up to, not including, `end` (b"\\0" = no
    end)."""

    key: bytes
    end: bytes
    kind: int


def _below(prefix: str) -> tuple[bytes, bytes]:
    first = prefix.encode()
    return first, first[:-1] + bytes([first[-1] + 1])


EVERYTHING = (b"\0", b"\0")
_OPERATORS = _below(OPERATOR_KEYS)
_READS = frozenset({Grant(*EVERYTHING, READ)})
# Copies of the store hold everything, so brokers read everything.
_SERVER = _READS | {Grant(b"\0", _OPERATORS[0], WRITE), Grant(_OPERATORS[1], b"\0", WRITE)}
_JOB = _READS | {
    Grant(*_below(prefix), WRITE)
    for prefix in (keys.JOBS, keys.INTENTS, keys.MANIFESTS, keys.documents(advice.DOCUMENT))
}

ROLES: Mapping[str, frozenset[Grant]] = {
    names.BROKER_USER: _SERVER,
    names.COORDINATOR_USER: _SERVER,
    names.JOB_USER: _JOB,
}
USERS: Mapping[str, str] = {
    ROOT: ROOT,
    # Members, snapshots, alarms and users can be dealt with by administrators alone.
    names.OPERATOR_USER: ROOT,
    names.BROKER_USER: names.BROKER_USER,
    names.COORDINATOR_USER: names.COORDINATOR_USER,
    names.JOB_USER: names.JOB_USER,
}
"""The one role of every user."""


@dataclass(frozen=True, slots=True)
class Access:
    """What etcd knows: permissions by role, roles by user."""

    roles: Mapping[str, frozenset[Grant]]
    users: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Change:
    """One request: `what` is add_role, grant, revoke, add_user, add_user_role or
    remove_user_role; `grant` for the two in the middle."""

    what: str
    name: str
    grant: Grant | None = None
    role: str = ""


def plan_access(known: Access) -> list[Change]:
    """What makes `known` what it should be: first what is missing, then what is too much. Other
    users and roles stay as they are."""
    missing = [Change("add_role", role) for role in ROLES if role not in known.roles]
    excess: list[Change] = []
    for role, wanted in ROLES.items():
        have = known.roles.get(role, frozenset())
        missing += [Change("grant", role, grant) for grant in sorted(wanted - have)]
        # etcd keeps one permission per range: what is granted again replaces another kind on the
        # same range.
        replaced = {(grant.key, grant.end) for grant in wanted}
        excess += [
            Change("revoke", role, grant)
            for grant in sorted(have - wanted)
            if (grant.key, grant.end) not in replaced
        ]
    for user, role in USERS.items():
        held = known.users.get(user)
        if held is None:
            missing.append(Change("add_user", user))
        if role not in (held or ()):
            missing.append(Change("add_user_role", user, role=role))
        excess += [
            Change("remove_user_role", user, role=other)
            for other in sorted((held or frozenset()) - {role})
        ]
    return missing + excess
