"""Replacing the certificate authority of a managed etcd while it serves.

Owns: what the authority's secret says of a rotation, and the step from one phase to the next.
Imports: certificates. Pure but for the keys that are made. Invariants: every process trusts an
authority for a while before it issues anything, and the former one for a while after it has issued
its last; so two parties whose files are a phase apart always trust each other. A phase ends only
when every member runs with its files and every process has had time to see them. All that is known
is in the secret: an operator may end at any point, and another one goes on.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, replace

from magnetar_operator.etcd.certificates import (
    Pair,
    authority_problem,
    fingerprint,
    is_old,
    make_authority,
    material_problem,
)

SETTLE_MS = 10 * 60_000
"""A kubelet brings a changed secret to its pods within about two minutes."""


class Phase(enum.StrEnum):
    """How far a rotation is. Trusting: the next authority is trusted and issues nothing yet.
    Issuing: it issues everything; the former one is still trusted."""

    NONE = ""
    TRUSTING = "Trusting"
    ISSUING = "Issuing"


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authority that issues certificates, and what there is beside it.

    `number` counts the rotations that were begun, `since_ms` is when anybody's files last changed
    because of one. `upcoming` is trusted and issues nothing yet; `former` is the certificate of one
    that is still trusted and issues nothing any more (b"" = none).
    """

    current: Pair
    number: int = 0
    since_ms: int = 0
    upcoming: Pair | None = None
    former: bytes = b""

    @property
    def phase(self) -> Phase:
        if self.upcoming is not None:
            return Phase.TRUSTING
        return Phase.ISSUING if self.former else Phase.NONE

    @property
    def bundle(self) -> bytes:
        """The certificates that every process trusts, as PEM; in an order of their own, so that it
        stays when the second begins to issue."""
        upcoming = self.upcoming.certificate if self.upcoming is not None else b""
        return b"".join(sorted((self.current.certificate, upcoming, self.former)))

    @property
    def trust(self) -> str:
        """Names the bundle; "" while there was no rotation. etcd reads its authorities only when
        it starts, so members carry it."""
        return self.name_of(self.bundle)

    def name_of(self, bundle: bytes) -> str:
        """The name of what members' files hold, which may not be what they should yet."""
        return hashlib.sha256(bundle).hexdigest()[:16] if self.number else ""


def understood(found: Authorities, now_ms: int) -> Authorities:
    """Without what cannot be used, as in a secret that was edited."""
    if found.upcoming is not None and authority_problem(found.upcoming, now_ms):
        found = replace(found, upcoming=None)
    if found.former and material_problem(
        found.former, found.current.certificate, found.current.key
    ):
        found = replace(found, former=b"")
    return found


def touched(found: Authorities, now_ms: int) -> Authorities:
    """Files of this phase are written now: every process gets time to see them, counted from
    here."""
    return replace(found, since_ms=now_ms)


def is_due(found: Authorities, requested: str, now_ms: int) -> bool:
    """Whether there is a rotation to begin or to go on with. `requested` is the fingerprint of
    the authority that is to be replaced."""
    return (
        found.phase is not Phase.NONE
        or requested == fingerprint(found.current.certificate)
        or is_old(found.current, now_ms)
    )


def advanced(
    found: Authorities, requested: str, trusted: str | None, name: str, now_ms: int
) -> tuple[Authorities, str]:
    """The next phase and what it is, or `found` and "". Every secret is of the present phase;
    `trusted` is the bundle that all members run with (None = they differ, or not all are ready)."""
    if trusted != found.trust or not is_due(found, requested, now_ms):
        return found, ""
    if found.phase is Phase.NONE:
        begun = replace(
            found, number=found.number + 1, since_ms=now_ms, upcoming=make_authority(name, now_ms)
        )
        return begun, "another authority is trusted from now on, and issues nothing yet"
    if now_ms - found.since_ms < SETTLE_MS:
        return found, ""
    if found.upcoming is not None:
        former = found.current.certificate
        return (
            replace(found, current=found.upcoming, since_ms=now_ms, upcoming=None, former=former),
            "the new authority issues all certificates from now on; the former one is still trusted",
        )
    return replace(
        found, since_ms=now_ms, former=b""
    ), "the former authority is not trusted any more"
