"""Replacing the key by which a cluster's processes know each other, while they serve.

Owns: the key with what is beside it during a rotation, and the step from one phase to the next.
Imports: etcd.rotation's phases. Pure. Invariants: a key is accepted by every process before it
signs anything, and the former one for a while after it has signed its last; so two processes whose
files are a phase apart always know each other. All that is known is in the secret: an operator may
end at any point, and another goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar_operator.etcd.rotation import SETTLE_MS, Phase


@dataclass(frozen=True, slots=True)
class InternalKeys:
    """`keys`: the first one signs, all are believed; `since_ms`: when the phase began."""

    keys: tuple[bytes, ...] = field(repr=False)
    phase: Phase = Phase.NONE
    since_ms: int = 0

    @property
    def id(self) -> str:
        """Names the key that signs; public."""
        return hashlib.sha256(b"magnetar internal key" + self.keys[0]).hexdigest()[:16]


def advanced(
    found: InternalKeys, requested: str, now_ms: int, draw: Callable[[], bytes]
) -> tuple[InternalKeys, str]:
    """The next phase and what it is, or `found` and "". `requested` is the `id` of the key that
    is to go; `draw` makes one."""
    if found.phase is Phase.NONE:
        if requested != found.id:
            return found, ""
        return InternalKeys(
            (found.keys[0], draw()), Phase.TRUSTING, now_ms
        ), "another key is believed from now on, and signs nothing yet"
    if now_ms - found.since_ms < SETTLE_MS:
        return found, ""
    signing, *rest = found.keys
    if found.phase is Phase.TRUSTING and rest:
        keys = (rest[0], signing)
        return InternalKeys(
            keys, Phase.ISSUING, now_ms
        ), "the new key signs from now on, and the former one is still believed"
    return InternalKeys((signing,)), "the former key is not believed any more"
