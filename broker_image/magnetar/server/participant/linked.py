"""Entries of a sidecar in sealed files.

Owns: which of them are alive, and which entries of the partition they are. Imports: topic_host, storage formats.
Source: DESIGN 8 (sidecar log; rule: ids). Invariants: a run is of one transaction, so it is wholly waiting, committed or void; what was committed has
the ids behind its marker, and lives as long as the partition has these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from magnetar.storage.index import Run

if TYPE_CHECKING:
    from magnetar.server.topic_host import TopicHost


def committed_runs(host: TopicHost, runs: Iterable[Run]) -> list[Run]:
    """Those runs of a topic's sidecar whose transactions have committed, as entries of the topic."""
    used = host.transactions
    found = []
    for run in runs if used is not None else ():
        target = used.buffer.committed_to((run.ledger, run.first_entry)) if used is not None else None
        if target is not None:
            found.append(run._replace(ledger=target[0], first_entry=target[1]))
    return found


def sidecar_state(host: TopicHost, runs: Sequence[Run]) -> tuple[int, bool]:
    """Bytes of what is alive of these runs of a topic's sidecar, and whether any of them waits for the end of its transaction."""
    used = host.transactions
    if used is None:
        return 0, False
    spans = used.buffer.open_spans()
    waiting = [run for run in runs if _is_in(spans, (run.ledger, run.first_entry))]
    live = sum(sum(run.lengths) for run in waiting)
    ledgers = host.core.ledgers
    for run in committed_runs(host, runs):
        start, end = ledgers.span(run.ledger, run.first_entry, run.last_entry)
        if start < end:
            low = ledgers.position(start).entry - run.first_entry
            live += sum(run.lengths[low : low + end - start])
    return live, bool(waiting)


def _is_in(spans: Sequence[tuple[int, int, int]], position: tuple[int, int]) -> bool:
    at = bisect_right(spans, (*position, 1 << 62)) - 1
    return at >= 0 and spans[at][0] == position[0] and position[1] < spans[at][1] + spans[at][2]
