"""The incarnation of a bundle record.

Owns: which change of a `BundleRecord` is allowed, and what the record looks like after it. Imports:
errors, names, metadata.records, splits. Pure. Source: PIP-192's bundle states; how the epoch and
the recovery chain travel with them is ours.

How a term begins. The epoch of a term is restore number * 2^36 + mod_revision of its Assigning
record: a number that exists only once that record has been written. So an Assigning record still
carries the epoch of the term before it (0: there was none); its destination reads the revision of
the record it was given, fences and recovers with the epoch made of it, and `own` writes that epoch
into Owned.

A split is a term that begins without a move: the owner ends its term by RELEASE, as for a move, and
the children begin theirs, all of them with the epoch made of the revision of the Splitting record,
in the same log, in one transaction with the end of the parent.

Every function takes the current record and returns the next one; the caller commits it by
compare-and-swap on the current one's revision.

Invariants: epochs strictly increase; one epoch has one owner; `chain` and `epochs` run in parallel:
`chain[i]` holds the records of term `epochs[i]`; only the last range may be open, and it is the
owner's; ranges of one incarnation never overlap; no log range leaves the chain before a checkpoint
that covers it is pointed to; every override passes through Assigning; the children of a split
recover all that their parent would have; a pin ends with the term of the broker it names, be that
by a move or by death.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from magnetar.errors import NotAllowed
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.ownership.splits import children_of_split

# From each state (None = no record) to those that may follow; a dead owner or destination adds
# OVERRIDABLE -> Assigning.
TRANSITIONS: Mapping[BundleState | None, frozenset[BundleState]] = MappingProxyType(
    {
        None: frozenset({BundleState.ASSIGNING}),
        BundleState.FREE: frozenset({BundleState.ASSIGNING, BundleState.DELETED}),
        BundleState.ASSIGNING: frozenset({BundleState.OWNED}),
        BundleState.OWNED: frozenset({BundleState.RELEASING, BundleState.SPLITTING}),
        BundleState.RELEASING: frozenset({BundleState.ASSIGNING, BundleState.FREE}),
        BundleState.SPLITTING: frozenset({BundleState.DELETED, BundleState.FREE}),
        # its record goes; a range that becomes a bundle again begins without one
        BundleState.DELETED: frozenset(),
    }
)
OVERRIDABLE = frozenset(
    {BundleState.OWNED, BundleState.RELEASING, BundleState.ASSIGNING, BundleState.SPLITTING}
)
SERVING = frozenset({BundleState.OWNED, BundleState.RELEASING, BundleState.SPLITTING})


class TransitionRefused(NotAllowed):
    """The bundle's record does not allow this change now: read it again and decide again."""


def assign(record: BundleRecord | None, destination: str, reason: str) -> BundleRecord:
    """Give a bundle that nobody has (no record, or Free) to the incarnation `destination`.
    Raises TransitionRefused."""
    _require(record, BundleState.ASSIGNING, only=(None, BundleState.FREE))
    _require_name("destination", destination)
    if record is None:
        return BundleRecord(BundleState.ASSIGNING, epoch=0, incarnation=destination, reason=reason)
    return replace(
        record,
        state=BundleState.ASSIGNING,
        incarnation=destination,
        source="",
        destination="",
        reason=reason,
    )


def own(
    record: BundleRecord,
    incarnation: str,
    *,
    epoch: int,
    start: LogPosition,
    sealed_end: LogPosition | None = None,
) -> BundleRecord:
    """The destination begins to serve: Assigning to Owned, in the term `epoch` (see above), with
    records from `start` of its log.

    `sealed_end` is where recovery found the previous owner's log to end, as sealed; it closes that
    owner's range, and is needed exactly when the range is still open (a planned release has closed
    it at RELEASE: then it is ignored). Raises TransitionRefused.
    """
    _require(record, BundleState.OWNED, only=(BundleState.ASSIGNING,))
    if incarnation != record.incarnation:
        raise TransitionRefused(
            f"incarnation: {incarnation} is not the destination {record.incarnation}, who alone "
            "may own it"
        )
    if epoch <= record.epoch:
        raise TransitionRefused(
            f"epoch: {epoch} is not above {record.epoch}; the store went back in time: raise its "
            "restore number"
        )
    chain = record.chain
    if chain and chain[-1].end is None:
        if sealed_end is None:
            raise TransitionRefused(
                f"sealed_end: the range of {chain[-1].incarnation} is open; fence it and pass its "
                "sealed end"
            )
        chain = _close(chain, sealed_end)
    for known in chain:
        if known.incarnation == incarnation and (
            known.end is None or _place(known.end) > _place(start)
        ):
            raise TransitionRefused(
                f"start: {start} lies inside {known} of the same incarnation; pass the log's end"
            )
    return replace(
        record,
        state=BundleState.OWNED,
        epoch=epoch,
        destination="",
        chain=(*chain, LogRange(incarnation, start, None)),
        epochs=(*record.epochs, epoch),
    )


def release(
    record: BundleRecord, destination: str, reason: str, *, pinned_until_ms: int = 0
) -> BundleRecord:
    """Ask the owner for a planned move to `destination` ("" = wherever placement says then), pinned
    there if told so; an older pin ends.

    Raises TransitionRefused.
    """
    _require(record, BundleState.RELEASING, only=(BundleState.OWNED,))
    if destination == record.incarnation:
        raise TransitionRefused(
            f"destination: {destination} owns the bundle already; choose another broker, or none"
        )
    pinned_until_ms = pinned_until_ms if destination else 0
    return replace(
        record,
        state=BundleState.RELEASING,
        destination=destination,
        reason=reason,
        pinned_until_ms=pinned_until_ms,
    )


def released(
    record: BundleRecord,
    destination: str,
    *,
    end: LogPosition,
    checkpoint: CheckpointPointer | None = None,
) -> BundleRecord:
    """The owner has written RELEASE, which ends at `end`: Releasing to Assigning for `destination`,
    or to Free with "".

    `checkpoint`, if given, is the one written on the way; the chain is shortened to what it does
    not cover. A pin to another broker than `destination` ends. Raises TransitionRefused.
    """
    target = BundleState.ASSIGNING if destination else BundleState.FREE
    _require(record, target, only=(BundleState.RELEASING,))
    if destination == record.incarnation:
        raise TransitionRefused(
            f"destination: {destination} has just released the bundle; choose another broker, or "
            "none"
        )
    if checkpoint is not None:
        record = advance_checkpoint(record, checkpoint)
    return replace(
        record,
        state=target,
        incarnation=destination,
        source=record.incarnation if destination else "",
        destination="",
        chain=_closed_by_owner(record, end),
        pinned_until_ms=record.pinned_until_ms
        if destination and destination == record.destination
        else 0,
    )


def pin(record: BundleRecord, until_ms: int) -> BundleRecord:
    """Keep a bundle with its owner until `until_ms`, unless that owner drains, leaves or dies; 0
    takes a pin back. Raises TransitionRefused."""
    if record.state is not BundleState.OWNED:
        raise TransitionRefused(
            f"state: {record.state} is on its way; pin the bundle once it is Owned"
        )
    return replace(record, pinned_until_ms=until_ms)


def is_pinned(record: BundleRecord, now_ms: int) -> bool:
    """Whether load balancing leaves the bundle where it is."""
    return record.pinned_until_ms > now_ms


def split(
    record: BundleRecord, name: BundleName, boundaries: tuple[int, ...], reason: str
) -> BundleRecord:
    """The owner is about to divide its bundle `name` at `boundaries`. Raises TransitionRefused,
    and NotAllowed for boundaries outside."""
    _require(record, BundleState.SPLITTING, only=(BundleState.OWNED,))
    children_of_split(name, boundaries)
    return replace(record, state=BundleState.SPLITTING, boundaries=boundaries, reason=reason)


def divided(
    record: BundleRecord, name: BundleName, *, epoch: int, end: LogPosition
) -> tuple[BundleRecord, dict[BundleName, BundleRecord]]:
    """The owner has written RELEASE, which ends at `end`: Splitting to Deleted, and its children,
    Owned by the same incarnation.

    `epoch` is made of the revision of the Splitting record. To be committed in one transaction.
    Raises TransitionRefused.
    """
    _require(record, BundleState.DELETED, only=(BundleState.SPLITTING,))
    if epoch <= record.epoch:
        raise TransitionRefused(
            f"epoch: {epoch} is not above {record.epoch}; the store went back in time: raise its "
            "restore number"
        )
    chain = (*_closed_by_owner(record, end), LogRange(record.incarnation, end, None))
    child = BundleRecord(
        BundleState.OWNED,
        epoch,
        record.incarnation,
        checkpoint=record.checkpoint,
        chain=chain,
        epochs=(*record.epochs, epoch),
        reason=f"split from {name.range}",
        pinned_until_ms=record.pinned_until_ms,
    )
    deleted = BundleRecord(BundleState.DELETED, record.epoch, reason=record.reason)
    return deleted, dict.fromkeys(children_of_split(name, record.boundaries), child)


def split_called_off(record: BundleRecord, reason: str, *, end: LogPosition) -> BundleRecord:
    """The owner has written RELEASE, which ends at `end`, and cannot divide the bundle:
    Splitting to Free. Raises TransitionRefused."""
    _require(record, BundleState.FREE, only=(BundleState.SPLITTING,))
    chain = _closed_by_owner(record, end)
    return replace(
        record,
        state=BundleState.FREE,
        incarnation="",
        source="",
        boundaries=(),
        chain=chain,
        reason=reason,
        pinned_until_ms=0,
    )


def retire(record: BundleRecord) -> BundleRecord:
    """Nobody has the bundle, and its namespace was deleted: Free to Deleted, so that what it leaves
    in storage is known to be over.

    To be committed together with the absence of the namespace. Raises TransitionRefused.
    """
    _require(record, BundleState.DELETED, only=(BundleState.FREE,))
    return BundleRecord(BundleState.DELETED, record.epoch, reason="its namespace was deleted")


def override(
    record: BundleRecord, destination: str, *, owner_is_dead: bool, reason: str
) -> BundleRecord:
    """Take a bundle from an incarnation that is gone: Owned, Releasing, Assigning or Splitting to
    Assigning for `destination`.

    A split that its owner did not finish has not happened: nothing but this record knows of it.
    `owner_is_dead` is the caller's statement that `incarnations/<record.incarnation>` (owner or
    destination) is absent. The open range stays open: whoever becomes the owner fences that
    incarnation and closes it by `own`. Raises TransitionRefused.
    """
    if record.state not in OVERRIDABLE:
        raise TransitionRefused(
            f"state: {record.state} cannot be overridden; only Owned, Releasing, Assigning and "
            "Splitting can"
        )
    if not owner_is_dead:
        raise TransitionRefused(
            f"owner: {record.incarnation} may be alive; release the bundle, or wait until its "
            "lease ends"
        )
    _require_name("destination", destination)
    if destination == record.incarnation:
        raise TransitionRefused(
            f"destination: {destination} is the incarnation that is gone; choose another broker"
        )
    # An Assigning record that is overridden never began a term: the source stays the last owner.
    source = record.source if record.state is BundleState.ASSIGNING else record.incarnation
    assigned = replace(
        record,
        state=BundleState.ASSIGNING,
        incarnation=destination,
        source=source,
        destination="",
        reason=reason,
    )
    return replace(assigned, boundaries=(), pinned_until_ms=0)


def reassign(record: BundleRecord, destination: str, reason: str) -> BundleRecord:
    """Give a bundle that waits for its destination to another one, alive or not: Assigning to
    Assigning. Raises TransitionRefused.

    The destination has not begun its term, and cannot any more: its commit compares with the record
    that this one replaces. What it has to recover stays as it is, an open range included.
    """
    if record.state is not BundleState.ASSIGNING:
        raise TransitionRefused(
            f"state: {record.state} has begun its term; only the destination of an Assigning "
            "record is replaced"
        )
    _require_name("destination", destination)
    if destination in former_owners(record):
        raise TransitionRefused(
            f"destination: {destination} had its turn, or is to be fenced; choose another broker"
        )
    return replace(record, incarnation=destination, reason=reason, pinned_until_ms=0)


def former_owners(record: BundleRecord | None) -> frozenset[str]:
    """Who must not be given an orphan: the incarnation that is gone, and the one whose open
    range the next owner has to fence."""
    if record is None or record.state is BundleState.FREE:
        return frozenset()
    return frozenset(
        {
            record.incarnation,
            *(known.incarnation for known in record.chain[-1:] if known.end is None),
        }
    )


def advance_checkpoint(record: BundleRecord, checkpoint: CheckpointPointer) -> BundleRecord:
    """Point to a newer checkpoint; what it covers leaves the chain.

    It is durable and holds everything before `checkpoint.position` of the owner's log, earlier
    owners' ranges included. Only the owner does this; the state stays as it is. Raises
    TransitionRefused.
    """
    if record.state not in SERVING:
        raise TransitionRefused(
            f"state: {record.state} has no owner; only an owner may advance the checkpoint"
        )
    current = record.chain[-1]
    if checkpoint.incarnation != record.incarnation:
        raise TransitionRefused(
            f"checkpoint.incarnation: {checkpoint.incarnation} is not the owner "
            f"{record.incarnation}"
        )
    if _place(checkpoint.position) < _place(current.start):
        raise TransitionRefused(
            f"checkpoint.position: {checkpoint.position} lies before {current.start}; it may only "
            "advance"
        )
    remaining = LogRange(current.incarnation, checkpoint.position, current.end)
    return replace(record, checkpoint=checkpoint, chain=(remaining,), epochs=record.epochs[-1:])


def _closed_by_owner(record: BundleRecord, end: LogPosition) -> tuple[LogRange, ...]:
    """The chain with the owner's range ended behind its RELEASE. Raises TransitionRefused."""
    if _place(end) < _place(record.chain[-1].start):
        raise TransitionRefused(
            f"end: {end} lies before the start of the owner's range, {record.chain[-1].start}"
        )
    return _close(record.chain, end)


def _close(chain: tuple[LogRange, ...], end: LogPosition) -> tuple[LogRange, ...]:
    """The chain with its last, open range ended at `end`.

    A log may be sealed before the start of a range: its owner died before anything of the term was
    flushed. The range is empty then.
    """
    last = chain[-1]
    assert last.end is None, last
    return (*chain[:-1], LogRange(last.incarnation, last.start, max(last.start, end, key=_place)))


def _require(
    record: BundleRecord | None, target: BundleState, only: tuple[BundleState | None, ...]
) -> None:
    """Refuse unless the table allows the change and this function is the one for it."""
    state = record.state if record is not None else None
    if target not in TRANSITIONS[state] or state not in only:
        allowed = " or ".join("no record" if known is None else known for known in only)
        raise TransitionRefused(
            f"state: {state or 'no record'} cannot become {target}; it must be {allowed}"
        )


def _require_name(field: str, incarnation: str) -> None:
    if not incarnation:
        raise TransitionRefused(f"{field}: name the incarnation that takes the bundle")


def _place(position: LogPosition) -> tuple[int, int]:
    return position.file, position.offset
