"""The metadata store as a pure state machine.

Owns: multi-version keys, compare-and-swap transactions, leases and the bounded history of changes
that watches read from. Imports: errors, metadata.store, bisect. Pure: no I/O, no time (`now` is
passed in, seconds of `Clock.boottime`), no randomness. Used by the in-memory store, by the embedded
store (which writes each `Change` down) and by the simulation. Invariants:
- `apply` is the only method that changes keys, and the same changes in the same order always give
  the same state: a journal of `Change` values after a `Snapshot` *is* the store;
- the revision grows by one per change, and each change is one batch of the history;
- a key bound to a lease exists only while the lease does (until `orphaned_leases` of a restored
  store have been revoked).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.errors import Compacted, LeaseLost, StoreError
from magnetar.metadata.store import (
    Compare,
    Delete,
    Event,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    TxnResult,
    WatchBatch,
)

FIRST_REVISION = 1
"""The revision of an empty store (as in etcd): the first change has revision 2."""
OPERATIONS_MAX = 128
"""Compares, and operations, of one transaction: etcd's default `--max-txn-ops`."""
VALUE_BYTES_MAX = 1 << 20
"""Keys and values of one transaction together: below etcd's default `--max-request-bytes` of 1.5
MiB."""
HISTORY_REVISIONS_MAX = 10_000
HISTORY_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Write:
    """One key set (`value`, bound to `lease` if not 0) or, with value None, removed."""

    key: str
    value: bytes | None
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """All writes of one revision, in the order in which watchers see them. No key occurs twice."""

    revision: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys at one revision, in key order."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    expires_at: float


def check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Refuse what any backend would refuse, with the same words. Raises StoreError."""
    if len(compares) > OPERATIONS_MAX or len(operations) > OPERATIONS_MAX:
        counts = f"{len(compares)} compares and {len(operations)} operations"
        raise StoreError(f"transaction of {counts}; use at most {OPERATIONS_MAX} of each")
    for compare in compares:
        expected = bytes if compare.target == "value" else int
        if not isinstance(compare.operand, expected):
            raise StoreError(
                f"compare of {compare.key!r}: {compare.target} needs {expected.__name__}, found "
                f"{compare.operand!r}"
            )
    written: set[str] = set()
    size = 0
    for operation in operations:
        if not operation.key and not (isinstance(operation, Delete) and operation.prefix):
            raise StoreError("key '' is not valid; name a key")
        size += len(operation.key) + (len(operation.value) if isinstance(operation, Put) else 0)
        if isinstance(operation, Delete) and operation.prefix:
            continue
        if operation.key in written:
            raise StoreError(
                f"key {operation.key!r} is written twice in one transaction; merge the operations"
            )
        written.add(operation.key)
    if size > VALUE_BYTES_MAX:
        raise StoreError(f"transaction of {size} bytes; the limit is {VALUE_BYTES_MAX}")
    prefixes = [
        operation.key
        for operation in operations
        if isinstance(operation, Delete) and operation.prefix
    ]
    for position, prefix in enumerate(prefixes):
        others = [*written, *prefixes[:position], *prefixes[position + 1 :]]
        if overlap := next((other for other in others if other.startswith(prefix)), None):
            raise StoreError(
                f"key {overlap!r} is written twice in one transaction: prefix {prefix!r} covers it"
            )


def holds(compare: Compare, item: KeyValue | None) -> bool:
    """Whether `compare` is true of its key's current value; a missing key has mod = create =
    version = 0 and value b''."""
    found: int | bytes
    if compare.target == "value":
        found = item.value if item else b""
    elif item is None:
        found = 0
    else:
        found = {"mod": item.mod_revision, "create": item.create_revision, "version": item.version}[
            compare.target
        ]
    operand = compare.operand
    assert isinstance(found, bytes) == isinstance(operand, bytes), (
        "check_transaction compares like with like"
    )
    match compare.operator:
        case "=":
            return found == operand
        case "!=":
            return found != operand
        case "<":
            return found < operand  # type: ignore[operator]  # both int or both bytes, asserted above
        case ">":
            return found > operand  # type: ignore[operator]


class StoreCore:
    """Keys, leases and history. Methods that decide something return the `Change` they have
    applied, or None if nothing changed."""

    def __init__(
        self,
        *,
        history_revisions_max: int = HISTORY_REVISIONS_MAX,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        assert history_revisions_max >= 1
        self._history_revisions_max = history_revisions_max
        self._history_bytes_max = history_bytes_max
        self._revision = FIRST_REVISION
        self._compacted = FIRST_REVISION
        self._values: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_keys: dict[int, set[str]] = {}
        self._history: list[WatchBatch] = []
        self._history_bytes = 0

    @property
    def revision(self) -> int:
        """Revision of the last change."""
        return self._revision

    @property
    def compacted(self) -> int:
        """Highest revision that is no longer in the history: watches may start above it."""
        return self._compacted

    # --- reads ------------------------------------------------------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """The key's current value, or None."""
        return self._values.get(key)

    def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Keys that start with `prefix` in key order; `limit` 0 = all."""
        keys = self._keys_of(prefix)
        return RangeResult(
            self._revision, tuple(self._values[key] for key in (keys[:limit] if limit else keys))
        )

    def _keys_of(self, prefix: str) -> list[str]:
        start = bisect.bisect_left(self._keys, prefix)
        end = bisect.bisect_left(
            self._keys, True, lo=start, key=lambda key: not key.startswith(prefix)
        )
        return self._keys[start:end]

    def batches(
        self, prefix: str, from_revision: int, to_revision: int, limit: int = 256
    ) -> tuple[list[WatchBatch], int]:
        """Changes of `prefix` with from_revision <= revision <= to_revision: up to `limit` batches
        and the revision to continue from.

        Raises Compacted if `from_revision` is no longer in the history.
        """
        if from_revision <= self._compacted:
            raise Compacted(
                f"revision {from_revision} is compacted (up to {self._compacted}); list again and "
                "watch from there"
            )
        found: list[WatchBatch] = []
        revision = from_revision
        while revision <= min(to_revision, self._revision) and len(found) < limit:
            batch = self._history[revision - self._compacted - 1]
            assert batch.revision == revision
            events = (
                tuple(event for event in batch.events if event.key.startswith(prefix))
                if prefix
                else batch.events
            )
            if events:
                found.append(WatchBatch(revision, events))
            revision += 1
        return found, revision

    # --- transactions -----------------------------------------------------------------------------

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> tuple[TxnResult, Change | None]:
        """Apply `operations` if every compare holds.

        Raises StoreError (malformed) or LeaseLost (unknown lease); then nothing changed.
        """
        check_transaction(compares, operations)
        if not all(holds(compare, self._values.get(compare.key)) for compare in compares):
            names = dict.fromkeys(compare.key for compare in compares)
            current = tuple(self._values[name] for name in names if name in self._values)
            return TxnResult(False, self._revision, current), None
        writes: list[Write] = []
        for operation in operations:
            if isinstance(operation, Put):
                if operation.lease and operation.lease not in self._leases:
                    raise LeaseLost(
                        f"lease {operation.lease:x} of key {operation.key!r} does not exist; grant "
                        "a new one"
                    )
                writes.append(Write(operation.key, operation.value, operation.lease))
            else:
                names_found = self._keys_of(operation.key) if operation.prefix else [operation.key]
                writes.extend(Write(name, None) for name in names_found if name in self._values)
        change = self._commit(writes)
        return TxnResult(True, self._revision), change

    # --- leases -----------------------------------------------------------------------------------

    def grant(self, lease: int, ttl_s: float, now: float) -> None:
        """Create `lease` (an id never used before, not 0), valid until now + ttl_s."""
        assert lease > 0, lease
        assert lease not in self._leases, lease
        if not ttl_s > 0:
            raise StoreError(f"lease time {ttl_s} s is not valid; use more than 0")
        self._leases[lease] = _Lease(ttl_s, now + ttl_s)

    def renew(self, lease: int, now: float) -> float:
        """Extend the lease to now + its full time, which is returned. Raises LeaseLost if it has
        ended, `expire` called or not."""
        held = self._leases.get(lease)
        if held is None or held.expires_at <= now:
            raise LeaseLost(f"lease {lease:x} has expired or was revoked; grant a new one")
        held.expires_at = now + held.ttl_s
        return held.ttl_s

    def revoke(self, lease: int) -> Change | None:
        """End the lease and remove its keys in one revision; unknown leases are ignored."""
        self._leases.pop(lease, None)
        return self._commit([Write(key, None) for key in sorted(self._lease_keys.get(lease, ()))])

    def expire(self, now: float) -> Change | None:
        """End expired leases up to and including the first that has keys; those vanish in the one
        revision returned.

        Call it until it returns None.
        """
        due = sorted(
            (held.expires_at, lease)
            for lease, held in self._leases.items()
            if held.expires_at <= now
        )
        for _, lease in due:
            if change := self.revoke(lease):
                return change
        return None

    def next_expiry(self) -> float | None:
        """When the first lease ends, in seconds of the clock that `now` comes from; None without
        leases."""
        return min((held.expires_at for held in self._leases.values()), default=None)

    def orphaned_leases(self) -> list[int]:
        """Leases that keys of a restored snapshot or journal are bound to but that no holder
        can renew."""
        return sorted(lease for lease in self._lease_keys if lease not in self._leases)

    # --- changes ----------------------------------------------------------------------------------

    def _commit(self, writes: Iterable[Write]) -> Change | None:
        change = Change(self._revision + 1, tuple(writes))
        if not change.writes:
            return None
        self.apply(change)
        return change

    def apply(self, change: Change) -> None:
        """Make `change`, which must be the next one: how decisions take effect and how a journal
        is replayed."""
        assert change.revision == self._revision + 1, (change.revision, self._revision)
        assert change.writes, "a change without writes has no revision"
        self._revision = change.revision
        self._remember(
            WatchBatch(change.revision, tuple(self._write(write) for write in change.writes))
        )

    def _write(self, write: Write) -> Event:
        before = self._values.get(write.key)
        if before is not None and before.lease:
            bound = self._lease_keys[before.lease]
            bound.discard(write.key)
            if not bound:
                del self._lease_keys[before.lease]
        if write.value is None:
            del self._values[write.key]
            del self._keys[bisect.bisect_left(self._keys, write.key)]
            return Event(write.key, None, self._revision)
        created, version = (
            (before.create_revision, before.version + 1) if before else (self._revision, 1)
        )
        if before is None:
            bisect.insort(self._keys, write.key)
        if write.lease:
            self._lease_keys.setdefault(write.lease, set()).add(write.key)
        self._values[write.key] = KeyValue(
            write.key, write.value, created, self._revision, version, write.lease
        )
        return Event(write.key, write.value, self._revision, created)

    def _remember(self, batch: WatchBatch) -> None:
        self._history.append(batch)
        self._history_bytes += _size(batch)
        # Trimming a list's head moves its tail: a quarter of the limit goes at once, so that each
        # change pays O(1).
        revisions_over = len(self._history) - self._history_revisions_max
        if (
            revisions_over > self._history_revisions_max // 4
            or self._history_bytes > self._history_bytes_max
        ):
            self._trim(max(revisions_over, 0))

    def _trim(self, count: int) -> None:
        """Forget `count` batches, and more until three quarters of the bytes limit are left; the
        newest stays."""
        bytes_left = self._history_bytes - sum(_size(batch) for batch in self._history[:count])
        while bytes_left > self._history_bytes_max * 3 // 4 and count < len(self._history) - 1:
            bytes_left -= _size(self._history[count])
            count += 1
        if count:
            self.compact(self._history[count - 1].revision)

    def compact(self, revision: int) -> None:
        """Forget the history up to and including `revision`; keys keep their current values."""
        if revision <= self._compacted:
            return
        assert revision <= self._revision, (revision, self._revision)
        count = revision - self._compacted
        self._history_bytes -= sum(_size(batch) for batch in self._history[:count])
        del self._history[:count]
        self._compacted = revision

    def snapshot(self) -> Snapshot:
        """All keys now. Leases are not part of it: they belong to holders that do not survive
        the store."""
        return Snapshot(self._revision, tuple(self._values[key] for key in self._keys))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the content of this empty store; history starts after the snapshot."""
        assert self._revision == FIRST_REVISION, "restore into a new store"
        assert not self._values, "restore into a new store"
        self._revision = self._compacted = snapshot.revision
        self._values = {item.key: item for item in snapshot.items}
        self._keys = sorted(self._values)
        for item in snapshot.items:
            if item.lease:
                self._lease_keys.setdefault(item.lease, set()).add(item.key)


def _size(batch: WatchBatch) -> int:
    return sum(len(event.key) + len(event.value or b"") + 100 for event in batch.events)
