"""What a job reads: pieces of segments and log files, packed into groups.

Owns: `Piece` and `Group`, their travel as text, and the packing. Imports: storage formats, bounds.
Pure. Invariants: a plan is plain data that means the same on every executor; pieces are in position
order and do not overlap.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from magnetar.compaction.orders import GROUPS_MAX
from magnetar.errors import CorruptData, LimitExceeded
from magnetar.storage.log.index import Run
from magnetar_jobs.bounds import HIGHEST

Position = tuple[int, int]
Span = tuple[Position, Position]
"""First and last position, both included."""

SEGMENT, LOG = "segment", "log"
BEFORE_ALL: Position = (-1, -1)
UNBOUNDED: Position = (HIGHEST, HIGHEST)
GROUP_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of one file that holds entries of one topic: blocks [start, stop) of a segment, or runs
    [start, stop) of a log file's index.

    Only positions after `after`, up to `until` and outside of `covered` count. `first` and `last` are the first
    and last of them; `rows` and `bytes` are upper bounds. `length` is a segment's, which begins at
    `base` of its object; `epochs` (none given = all) and `to_offset` say which runs of a log file
    are valid.
    """

    kind: str
    object: str
    start: int
    stop: int
    first: Position
    last: Position
    rows: int
    bytes: int
    length: int = 0
    after: Position = BEFORE_ALL
    covered: tuple[Span, ...] = ()
    epochs: tuple[int, ...] = ()
    to_offset: int = HIGHEST
    base: int = 0
    until: Position = UNBOUNDED

    @property
    def excluded(self) -> tuple[Span, ...]:
        """What does not count of the positions after `after`."""
        if self.until == UNBOUNDED:
            return self.covered
        return (*self.covered, ((self.until[0], self.until[1] + 1), UNBOUNDED))

    def valid(self, run: Run) -> bool:
        """Whether a run belongs to this bundle's history."""
        return (not self.epochs or run.epoch in self.epochs) and run.offset < self.to_offset


@dataclass(frozen=True, slots=True)
class Group:
    """What one task reads, in position order."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


def pack(pieces: Iterable[Piece], group_bytes_max: int = GROUP_BYTES_MAX) -> tuple[Group, ...]:
    """Groups of consecutive pieces of up to `group_bytes_max` (a larger piece is a group of its
    own).

    Raises CorruptData if two pieces claim the same positions, LimitExceeded if there are more
    groups than an order can count.
    """
    ordered = sorted(pieces, key=lambda piece: piece.first)
    for before, after in itertools.pairwise(ordered):
        if before.last >= after.first:
            raise CorruptData(
                f"{before.object} ends at {before.last}, {after.object} begins at {after.first}: "
                "both claim the same positions; rebuild the manifest"
            )
    groups: list[list[Piece]] = []
    size = 0
    for piece in ordered:
        if not groups or size + piece.bytes > group_bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.bytes
    if len(groups) > GROUPS_MAX:
        raise LimitExceeded(
            f"{len(groups)} groups of input; at most {GROUPS_MAX} are counted: compact more often"
        )
    return tuple(Group(number, tuple(found)) for number, found in enumerate(groups))


def encode_plan(groups: Iterable[Group]) -> str:
    return json.dumps([asdict(group) for group in groups], separators=(",", ":"))


def decode_plan(text: str) -> tuple[Group, ...]:
    return tuple(
        Group(body["number"], tuple(_piece(piece) for piece in body["pieces"]))
        for body in json.loads(text)
    )


def _piece(body: dict[str, Any]) -> Piece:
    for name in ("first", "last", "after", "until", "epochs"):
        body[name] = tuple(body[name])
    body["covered"] = tuple((tuple(low), tuple(high)) for low, high in body["covered"])
    return Piece(**body)


# --- what counts ----------------------------------------------------------------------------------


def surviving_slices(run: Run, after: Position, covered: Iterable[Span]) -> list[tuple[int, int]]:
    """The parts [from, to) of a run's entries that lie after `after` and outside of `covered`."""
    slices = [(0, len(run.lengths))]
    for low, high in ((BEFORE_ALL, after), *covered):
        if high < (run.ledger, run.first_entry) or low > (run.ledger, run.last_entry):
            continue
        left = low[1] - run.first_entry if low[0] == run.ledger else 0
        right = high[1] - run.first_entry + 1 if high[0] == run.ledger else len(run.lengths)
        slices = [
            part
            for begin, end in slices
            for part in ((begin, min(end, left)), (max(begin, right), end))
            if part[0] < part[1]
        ]
    return slices
