"""The rules of a bundle record.

Owns: what a `BundleRecord` looks like after each change that `states` allows. Imports: errors,
names, metadata.records, merges, splits, states. Pure. Source: PIP-192; epoch and recovery chain are ours.

How a term begins. The epoch of a term is restore number * 2^36 + mod_revision of its Assigning
record, which exists only once that record has been written. So an Assigning record carries the
previous term's epoch (0: there was none). Its destination reads the record's revision, fences and
recovers with the epoch made of it, and `own` writes that epoch into Owned.

A split begins a term without a transfer. The owner ends its term by RELEASE, and the children begin
theirs in the same log, in one transaction with the parent's end; their epoch is made of the
revision of the Splitting record.

So does a merge. Two neighbours of one owner become Merging in one transaction, so both records have
one revision, of which the epoch of the merged bundle is made. It begins with one checkpoint of
both, and with what both have written since.

Every function takes the current record and returns the next one; the caller commits it by
compare-and-swap on the current one's revision. All of them raise TransitionRefused.

Invariants: epochs strictly increase; one epoch has one owner; `chain[i]` holds the records of term
`epochs[i]`; only the last range may be open, and it is the owner's; ranges of one incarnation never
overlap, but for those of two bundles that were merged, whose terms ran side by side; a log range
stays in the chain until a checkpoint covers it; the children of a split recover all that their
parent would have, and a merged bundle all that its two parents would; a pin ends with the term of
its broker.
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.errors import NotAllowed
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.ownership.merges import Neighbours
from magnetar.ownership.splits import children_of_split
from magnetar.ownership.states import BUNDLES, Change, states_that_allow


class TransitionRefused(NotAllowed):
    """The bundle's record does not allow this change now: read it again and decide again."""


def assign(record: BundleRecord | None, destination: str, reason: str) -> BundleRecord:
    """Give a bundle without an owner (no record, or Free) to the incarnation `destination`."""
    state = _after(record, Change.ASSIGN)
    _require_name("destination", destination)
    if record is None:
        return BundleRecord(state, epoch=0, incarnation=destination, reason=reason)
    return replace(
        record, state=state, incarnation=destination, source="", destination="", reason=reason
    )


def own(
    record: BundleRecord,
    incarnation: str,
    *,
    epoch: int,
    start: LogPosition,
    sealed_end: LogPosition | None = None,
) -> BundleRecord:
    """The destination begins to serve in the term `epoch` (see above), with records from `start` of
    its log.

    `sealed_end` is the sealed end of the previous owner's log, as recovery found it. It closes that
    owner's range where RELEASE has not, and is ignored otherwise.
    """
    state = _after(record, Change.OWN)
    if incarnation != record.incarnation:
        raise TransitionRefused(
            f"incarnation: {incarnation} is not the destination {record.incarnation}, which alone "
            "may own it"
        )
    _require_newer(record, epoch)
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
        state=state,
        epoch=epoch,
        destination="",
        chain=(*chain, LogRange(incarnation, start, None)),
        epochs=(*record.epochs, epoch),
    )


def release(
    record: BundleRecord, destination: str, reason: str, *, pinned_until_ms: int = 0
) -> BundleRecord:
    """Ask the owner for a planned transfer to `destination` ("" = placement chooses then), with a pin
    there until `pinned_until_ms`; an older pin ends."""
    state = _after(record, Change.RELEASE)
    if destination == record.incarnation:
        raise TransitionRefused(
            f"destination: {destination} owns the bundle already; choose another broker, or none"
        )
    return replace(
        record,
        state=state,
        destination=destination,
        reason=reason,
        pinned_until_ms=pinned_until_ms if destination else 0,
    )


def released(
    record: BundleRecord,
    destination: str,
    *,
    end: LogPosition,
    checkpoint: CheckpointPointer | None = None,
) -> BundleRecord:
    """The owner has written RELEASE, which ends at `end`: the bundle goes to `destination`, or is
    free with "".

    `checkpoint`, if given, is a newer one; it shortens the chain. A pin to another broker than
    `destination` ends.
    """
    state = _after(record, Change.TRANSFER if destination else Change.FREE)
    if destination == record.incarnation:
        raise TransitionRefused(
            f"destination: {destination} has just released the bundle; choose another broker, or "
            "none"
        )
    if checkpoint is not None:
        record = advance_checkpoint(record, checkpoint)
    return replace(
        record,
        state=state,
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
    removes a pin."""
    return replace(record, state=_after(record, Change.PIN), pinned_until_ms=until_ms)


def is_pinned(record: BundleRecord, now_ms: int) -> bool:
    """Whether load balancing leaves the bundle where it is."""
    return record.pinned_until_ms > now_ms


def split(
    record: BundleRecord, name: BundleName, boundaries: tuple[int, ...], reason: str
) -> BundleRecord:
    """The owner is about to divide its bundle `name` at `boundaries`. Raises NotAllowed for
    boundaries outside."""
    state = _after(record, Change.SPLIT)
    children_of_split(name, boundaries)
    return replace(record, state=state, boundaries=boundaries, reason=reason)


def divided(
    record: BundleRecord, name: BundleName, *, epoch: int, end: LogPosition
) -> tuple[BundleRecord, dict[BundleName, BundleRecord]]:
    """The owner has written RELEASE, which ends at `end`: the deleted parent, and its children, all
    owned by the same incarnation. To be committed in one transaction.

    `epoch` is made of the revision of the Splitting record.
    """
    state = _after(record, Change.DIVIDE)
    _require_newer(record, epoch)
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
    deleted = BundleRecord(state, record.epoch, reason=record.reason)
    return deleted, dict.fromkeys(children_of_split(name, record.boundaries), child)


def called_off(record: BundleRecord, reason: str, *, end: LogPosition) -> BundleRecord:
    """The owner has written RELEASE, which ends at `end`, and can neither divide nor merge the
    bundle: it is free."""
    return replace(
        record,
        state=_after(record, Change.CALL_OFF),
        incarnation="",
        source="",
        boundaries=(),
        chain=_closed_by_owner(record, end),
        reason=reason,
        pinned_until_ms=0,
    )


def merge(
    left: BundleRecord, right: BundleRecord, pair: Neighbours, reason: str
) -> tuple[BundleRecord, BundleRecord]:
    """The owner of two neighbours is about to make one bundle of them. To be committed in one
    transaction: the epoch of the merged bundle is made of its revision."""
    states = _after(left, Change.MERGE), _after(right, Change.MERGE)
    if left.incarnation != right.incarnation:
        raise TransitionRefused(
            f"owner: {pair.left} is served by {left.incarnation} and {pair.right} by "
            f"{right.incarnation}; move one of them first"
        )
    return (
        replace(left, state=states[0], boundaries=pair.edges, reason=reason),
        replace(right, state=states[1], boundaries=pair.edges, reason=reason),
    )


def merged(
    left: BundleRecord,
    right: BundleRecord,
    pair: Neighbours,
    *,
    epoch: int,
    end: LogPosition,
    checkpoint: CheckpointPointer,
) -> tuple[tuple[BundleRecord, BundleRecord], BundleRecord]:
    """The owner has written RELEASE of both, the later of which ends at `end`: the deleted parents,
    and the bundle that replaces them at the same incarnation. To be committed in one transaction.

    `epoch` is made of the revision of the Merging records. `checkpoint` holds everything of both
    before its position. The range of the older term comes first; parents of one term have one.
    """
    states = _after(left, Change.UNITE), _after(right, Change.UNITE)
    for record in (left, right):
        _require_newer(record, epoch)
        _require_own(record, checkpoint)
        _closed_by_owner(record, end)
    owner, terms = left.incarnation, sorted({left.epoch, right.epoch})
    stop = max(end, checkpoint.position, key=_place)
    written = LogRange(owner, checkpoint.position, stop)
    whole = BundleRecord(
        BundleState.OWNED,
        epoch,
        owner,
        checkpoint=checkpoint,
        chain=(*(written for _ in terms), LogRange(owner, stop, None)),
        epochs=(*terms, epoch),
        reason=f"merged from {pair.left.range} and {pair.right.range}",
        pinned_until_ms=max(left.pinned_until_ms, right.pinned_until_ms),
    )
    deleted = (
        BundleRecord(states[0], left.epoch, reason=left.reason),
        BundleRecord(states[1], right.epoch, reason=right.reason),
    )
    return deleted, whole


def merge_kept_apart(record: BundleRecord) -> BundleRecord:
    """The owner does not merge the bundle after all, and has written no RELEASE: it serves on."""
    return replace(record, state=_after(record, Change.KEEP), boundaries=())


def retire(record: BundleRecord) -> BundleRecord:
    """The namespace of a free bundle was deleted. To be committed together with the absence of the
    namespace; garbage collection then knows that the bundle's data is over."""
    state = _after(record, Change.RETIRE)
    return BundleRecord(state, record.epoch, reason="its namespace was deleted")


def override(
    record: BundleRecord, destination: str, *, owner_is_dead: bool, reason: str
) -> BundleRecord:
    """Take a bundle from an incarnation that is gone.

    An unfinished split or merge has not happened: only records in transition know of it. `owner_is_dead` is the
    caller's statement that `incarnations/<record.incarnation>` (owner or destination) is absent.
    The open range stays open: the new owner fences that incarnation and closes it by `own`.
    """
    state = _after(record, Change.OVERRIDE)
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
    return replace(
        record,
        state=state,
        incarnation=destination,
        source=source,
        destination="",
        reason=reason,
        boundaries=(),
        pinned_until_ms=0,
    )


def reassign(record: BundleRecord, destination: str, reason: str) -> BundleRecord:
    """Give a bundle to another destination than the one it waits for, alive or not.

    The former destination cannot begin its term any more: its commit compares with the record that
    this one replaces. The chain stays as it is, an open range included.
    """
    state = _after(record, Change.REASSIGN)
    _require_name("destination", destination)
    if destination in former_owners(record):
        raise TransitionRefused(
            f"destination: {destination} had its turn, or is to be fenced; choose another broker"
        )
    return replace(record, state=state, incarnation=destination, reason=reason, pinned_until_ms=0)


def former_owners(record: BundleRecord | None) -> frozenset[str]:
    """Incarnations that must not get an orphan: the one that is gone, and the one whose open range
    the next owner has to fence."""
    if record is None or record.state is BundleState.FREE:
        return frozenset()
    return frozenset(
        {
            record.incarnation,
            *(known.incarnation for known in record.chain[-1:] if known.end is None),
        }
    )


def advance_checkpoint(record: BundleRecord, checkpoint: CheckpointPointer) -> BundleRecord:
    """Point to a newer checkpoint of the owner; ranges that it covers leave the chain.

    It is durable and holds everything before `checkpoint.position` of the owner's log, earlier
    owners' ranges included.
    """
    state = _after(record, Change.ADVANCE_CHECKPOINT)
    _require_own(record, checkpoint)
    current = record.chain[-1]
    remaining = LogRange(current.incarnation, checkpoint.position, current.end)
    return replace(
        record,
        state=state,
        checkpoint=checkpoint,
        chain=(remaining,),
        epochs=record.epochs[-1:],
    )


def _require_own(record: BundleRecord, checkpoint: CheckpointPointer) -> None:
    """A checkpoint of the owner's term."""
    if checkpoint.incarnation != record.incarnation:
        raise TransitionRefused(
            f"checkpoint.incarnation: {checkpoint.incarnation} is not the owner "
            f"{record.incarnation}"
        )
    start = record.chain[-1].start
    if _place(checkpoint.position) < _place(start):
        raise TransitionRefused(
            f"checkpoint.position: {checkpoint.position} lies before {start}; it may only advance"
        )


def _closed_by_owner(record: BundleRecord, end: LogPosition) -> tuple[LogRange, ...]:
    """The chain with the owner's range ended behind its RELEASE."""
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


def _after(record: BundleRecord | None, change: Change) -> BundleState:
    """The state after the change, which the record's state must allow."""
    state = record.state if record is not None else None
    after = BUNDLES.after(state, change)
    if after is None:
        allowed = " or ".join(known or "no record" for known in states_that_allow(change))
        raise TransitionRefused(
            f"state: {state or 'no record'} does not allow {change.value!r}; it must be {allowed}"
        )
    return after


def _require_newer(record: BundleRecord, epoch: int) -> None:
    if epoch <= record.epoch:
        raise TransitionRefused(
            f"epoch: {epoch} is not above {record.epoch}; the store went back in time: raise its "
            "restore number"
        )


def _require_name(field: str, incarnation: str) -> None:
    if not incarnation:
        raise TransitionRefused(f"{field}: name the incarnation that takes the bundle")


def _place(position: LogPosition) -> tuple[int, int]:
    return position.file, position.offset
