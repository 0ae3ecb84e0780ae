"""What every metadata store promises.

Owns: the `MetadataStore` protocol, modelled on etcd's semantics, and its value types. Imports:
nothing but typing and dataclasses. Invariants: revisions are totally ordered and grow by one per
committed change; a transaction is atomic; a watch delivers every change of its prefix from its
first revision on, in order, with all events of one revision in one batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as of one revision. `lease` is 0 for a durable key."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. A missing key has mod = create = version = 0 and value b''."""

    key: str
    target: Literal["mod", "create", "version", "value"]
    operator: Literal["=", "!=", "<", ">"]
    operand: int | bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value` under `key`, bound to `lease` if not 0."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove `key`, or every key that starts with it if `prefix`."""

    key: str
    prefix: bool = False


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Outcome of a transaction.

    `revision` is the store's revision after it; when `succeeded` and operations changed something,
    it is the mod_revision of every key written. `current` holds the compared keys (missing ones
    left out) as the transaction saw them, when it did not succeed.
    """

    succeeded: bool
    revision: int
    current: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys in key order, and the revision at which they were read."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A change: `value` is None for a deletion (expiry included); `mod_revision` is that of the
    change."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All events of one revision that match the watch: one unit, never split."""

    revision: int
    events: tuple[Event, ...]


class MetadataStore(Protocol):
    """An etcd-like store.

    Every method raises StoreUnavailable when no answer came (the change may or may not have
    happened) or the store takes no changes for now (its quota is used up), and StoreError for other
    failures.
    """

    async def get(self, key: str) -> KeyValue | None:
        """The key's current value (linearizable), or None."""
        ...

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        """All keys that start with `prefix` in key order, at one revision; `limit` 0 = all."""
        ...

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        """Apply `operations` if every compare holds; at most 128 of each. No key may be written
        twice."""
        ...

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Unconditional write; returns its revision. Raises LeaseLost for an unknown lease."""
        ...

    async def delete(self, key: str) -> bool:
        """Unconditional removal; False if it was not there."""
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Changes with mod_revision >= `from_revision`; ends only by being closed. Survives
        reconnects without loss or repetition.

        Raises Compacted if `from_revision` is no longer there.
        """
        ...

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease id (never 0); its keys vanish together, in one revision, when it is not
        renewed for `ttl_s`."""
        ...

    async def renew_lease(self, lease: int) -> float:
        """Extend the lease by its full time; returns that time in seconds. Raises LeaseLost if
        it is gone."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """End the lease and delete its keys in one revision. Unknown leases are ignored."""
        ...

    async def close(self) -> None:
        """End all watches (they raise StoreUnavailable) and connections."""
        ...
