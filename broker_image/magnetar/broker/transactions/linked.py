"""Entries of a sidecar in sealed files.

Owns: which of them are alive, which entries of the partition they became, and up to which position
segments have all of these. Imports: topic_host, storage formats. Invariants: a run is of one
transaction, so it is wholly waiting, committed or void; what was committed has the ids behind its
marker, and lives as long as the partition has these; it goes into segments only after everything
that was published without a transaction before its marker: so a job, which reads files without the
log, finds no entry whose predecessors are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.reading.entry_index import ELSEWHERE
from magnetar.storage.log.index import Run
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.level_one import outside
from magnetar.topics.ledger_ids import epoch_of

if TYPE_CHECKING:
    from magnetar.broker.topics.topic_host import TopicHost


class SidecarShare(NamedTuple):
    """What files have of a topic's sidecar: bytes of the entries for which they are needed, and
    whether some of these cannot be rewritten yet."""

    live_bytes: int
    pinned: bool


def listed_end(host: TopicHost, covered: tuple[int, int] | None) -> int:
    """The ordinal below which everything that was published plainly is in files that the
    manifest has taken in (`covered`)."""
    ledgers, used = host.core.ledgers, host.transactions
    if covered is None:
        return ledgers.first
    for run in host.index.runs:
        if run.end <= ledgers.first or run.incarnation == ELSEWHERE:
            continue
        position = ledgers.position(max(run.first, ledgers.first))
        if (epoch_of(position.ledger), run.file) >= covered and (
            used is None or used.buffer.links.find(position) is None
        ):
            return run.first
    return ledgers.end


def committed_runs(host: TopicHost, runs: Iterable[Run], below: int) -> list[Run]:
    """Those runs of a topic's sidecar that are the partition's by now, with ordinals smaller
    than `below`, as entries of the topic."""
    used = host.transactions
    found = []
    for run in runs if used is not None else ():
        target = (
            used.buffer.committed_to((run.ledger, run.first_entry)) if used is not None else None
        )
        if target is not None and not _is_behind(host, target, below):
            found.append(run._replace(ledger=target[0], first_entry=target[1]))
    return found


def sidecar_share(
    host: TopicHost, runs: Sequence[Run], below: int, segments: Sequence[SegmentReference]
) -> SidecarShare:
    """What is alive of these runs of a topic's sidecar; they are pinned if any waits for the end
    of its transaction, or is behind `below`."""
    used = host.transactions
    if used is None:
        return SidecarShare(0, False)
    live, pinned = 0, False
    for run in runs:
        target = used.buffer.committed_to((run.ledger, run.first_entry))
        if target is not None:
            loose = run._replace(ledger=target[0], first_entry=target[1])
            live += sum(existing_bytes(host, part) for part in outside(loose, segments))
            pinned = pinned or _is_behind(host, target, below)
        elif used.buffer.waits((run.ledger, run.first_entry)):
            live += sum(run.lengths)
            pinned = True
    return SidecarShare(live, pinned)


def is_wanted(host: TopicHost, runs: Iterable[Run], segments: Sequence[SegmentReference]) -> bool:
    """Whether a compaction waits for any of these runs of a topic's sidecar to be in segments."""
    wanted = host.transactions.wanted_below if host.transactions is not None else 0
    committed = committed_runs(host, runs, wanted) if wanted > host.core.ledgers.first else []
    return any(existing_bytes(host, part) for run in committed for part in outside(run, segments))


def complete_to(
    host: TopicHost, segments: Sequence[SegmentReference], known: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The last position up to which these segments have all that transactions have published; it
    was `known` before. None if they never did."""
    used, ledgers = host.transactions, host.core.ledgers
    if used is None:
        return None
    before = ledgers.position_before(ledgers.first)
    spans = [(segment.first, segment.last) for segment in segments]
    missing = used.buffer.links.first_outside(spans, max(known or before, before))
    if missing is None:
        return host.core.last_confirmed.ledger, host.core.last_confirmed.entry
    return missing[0], missing[1] - 1


def existing_bytes(host: TopicHost, run: Run) -> int:
    """Bytes of those entries of a run of the partition that were not trimmed."""
    ledgers = host.core.ledgers
    start, end = ledgers.span(run.ledger, run.first_entry, run.last_entry)
    if start >= end:
        return 0
    low = ledgers.position(start).entry - run.first_entry
    return sum(run.lengths[low : low + end - start])


def _is_behind(host: TopicHost, position: tuple[int, int], below: int) -> bool:
    ordinal = host.core.ledgers.find(position)
    return ordinal is not None and ordinal >= below
