"""Where the entries of ended transactions went.

Owns: the map from sidecar positions, which receipts named, to positions of the partition. Imports:
participant_records, links. Pure. SEEK, SUBSCRIBE start and ACK translate what a receipt named: a
committed entry is its id behind the marker, an aborted one lies behind its send point. Invariants:
a run is kept until the partition has trimmed past its target; runs that continue each other on both
sides are merged; a run costs 24 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import compress
from typing import NamedTuple

from magnetar.transactions.participant_records import Place, TranslationState
from magnetar.transactions.topic.links import LinkColumns, Links

_COUNT_MAX = (1 << 32) - 1


class Translated(NamedTuple):
    """A position of the partition: the entry itself if `exact`, else the last one before the
    place where nothing is or will be."""

    position: Place
    exact: bool


class _Runs:
    """Runs of one sidecar ledger, in order: see `TranslationState`."""

    __slots__ = ("codes", "counts", "entries", "firsts")

    def __init__(
        self,
        firsts: Iterable[int] = (),
        counts: Iterable[int] = (),
        codes: Iterable[int] = (),
        entries: Iterable[int] = (),
    ) -> None:
        self.firsts, self.counts = array("Q", firsts), array("I", counts)
        self.codes, self.entries = array("I", codes), array("q", entries)

    def insert(self, first: int, count: int, code: int, entry: int) -> None:
        """Add a run that overlaps none; it is joined with those it goes on from, or that go on
        from it."""
        if not self.firsts or first > self.firsts[-1]:  # what is usual
            self._append(first, count, code, entry)
            return
        index = bisect_right(self.firsts, first)
        assert not index or self.firsts[index - 1] + self.counts[index - 1] <= first, (first, count)
        self.firsts.insert(index, first)
        self.counts.insert(index, count)
        self.codes.insert(index, code)
        self.entries.insert(index, entry)
        self._join(index)
        if index:
            self._join(index - 1)

    def _append(self, first: int, count: int, code: int, entry: int) -> None:
        """`insert` behind the last run."""
        if self.firsts:
            last = self.counts[-1]
            end = self.firsts[-1] + last
            assert end <= first, (first, count)
            step = last if code & 1 else 0
            if (end, self.codes[-1], self.entries[-1] + step) == (
                first,
                code,
                entry,
            ) and last + count <= _COUNT_MAX:
                self.counts[-1] = last + count
                return
        self.firsts.append(first)
        self.counts.append(count)
        self.codes.append(code)
        self.entries.append(entry)

    def _join(self, index: int) -> None:
        """Make the run at `index` and the next one a single one, if they are one on both sides."""
        after = index + 1
        if after >= len(self.firsts):
            return
        count, code = self.counts[index], self.codes[index]
        step = count if code & 1 else 0
        if (
            self.firsts[index] + count == self.firsts[after]
            and code == self.codes[after]
            and self.entries[index] + step == self.entries[after]
            and count + self.counts[after] <= _COUNT_MAX
        ):
            self.counts[index] = count + self.counts[after]
            for column in (self.firsts, self.counts, self.codes, self.entries):
                del column[after]

    def only(self, code: int) -> _Runs:
        """Those with this code."""
        if self.codes.count(code) == len(self.codes):
            return self
        chosen = [found == code for found in self.codes]
        return _Runs(
            *(
                compress(column, chosen)
                for column in (self.firsts, self.counts, self.codes, self.entries)
            )
        )

    def drop(self, count: int) -> None:
        """Forget the first runs."""
        for column in (self.firsts, self.counts, self.codes, self.entries):
            del column[:count]


class Translations:
    """All translations of one topic."""

    __slots__ = ("_index_of", "_ledgers", "_targets")

    def __init__(self, states: Iterable[TranslationState] = ()) -> None:
        self._targets: list[int] = []
        self._index_of: dict[int, int] = {}
        self._ledgers: dict[int, _Runs] = {}
        for state in states:
            indices = [self._target(target) for target in state.targets]
            unchanged = indices == list(range(len(indices)))
            codes = (
                state.codes
                if unchanged
                else [2 * indices[code >> 1] + (code & 1) for code in state.codes]
            )
            self._ledgers[state.ledger] = _Runs(state.firsts, state.counts, codes, state.entries)

    def links(self) -> Links:
        """All that has committed, by its place in the partition."""
        links, into = Links(), dict[int, list[tuple[int, _Runs]]]()
        for ledger, runs in self._ledgers.items():
            for code in set(runs.codes):
                if code & 1:
                    into.setdefault(self._targets[code >> 1], []).append((ledger, runs.only(code)))
        for target in sorted(into):
            merged = LinkColumns()
            for ledger, runs in into[target]:
                merged.extend(runs.entries, ledger, runs.firsts, runs.counts)
            links.extend(target, merged)
        return links

    def _target(self, ledger: int) -> int:
        index = self._index_of.get(ledger)
        if index is None:
            index = self._index_of[ledger] = len(self._targets)
            self._targets.append(ledger)
        return index

    def add(self, span: tuple[int, int, int], target: Place, *, committed: bool) -> None:
        """`span` (ledger, first, count) of the sidecar is what begins at `target`, or nothing
        that would have come after `target`."""
        ledger, first, count = span
        runs = self._ledgers.get(ledger)
        if runs is None:
            runs = self._ledgers[ledger] = _Runs()
        runs.insert(first, count, 2 * self._target(target[0]) + committed, target[1])

    def find(self, position: Place) -> Translated | None:
        """What became of a sidecar entry; None if it is not known here (any more)."""
        runs = self._ledgers.get(position[0])
        if runs is None:
            return None
        index = bisect_right(runs.firsts, position[1]) - 1
        if index < 0 or position[1] >= runs.firsts[index] + runs.counts[index]:
            return None
        code, entry = runs.codes[index], runs.entries[index]
        exact = bool(code & 1)
        return Translated(
            (self._targets[code >> 1], entry + (position[1] - runs.firsts[index] if exact else 0)),
            exact,
        )

    def trim(self, first: Place) -> None:
        """The partition begins with `first`: what points wholly before it would be clamped to it,
        and is forgotten, the oldest first.

        A run that is younger than one that is still needed stays as long as that: the cost is that
        of what is dropped.
        """
        for ledger, runs in list(self._ledgers.items()):
            gone = 0
            while gone < len(runs.firsts) and self._last_target(runs, gone) < first:
                gone += 1
            if gone == len(runs.firsts):
                del self._ledgers[ledger]
            elif gone:
                runs.drop(gone)

    def _last_target(self, runs: _Runs, index: int) -> Place:
        code = runs.codes[index]
        return self._targets[code >> 1], runs.entries[index] + (
            runs.counts[index] - 1 if code & 1 else 0
        )

    def to_state(self) -> tuple[TranslationState, ...]:
        """For a checkpoint, by sidecar ledger; equal contents give equal states."""
        return tuple(self._state(ledger, runs) for ledger, runs in sorted(self._ledgers.items()))

    def _state(self, ledger: int, runs: _Runs) -> TranslationState:
        used = sorted({code >> 1 for code in set(runs.codes)}, key=self._targets.__getitem__)
        place = {index: place for place, index in enumerate(used)}
        same = all(index == place for index, place in place.items())
        codes = (
            runs.codes[:]
            if same
            else array("I", [2 * place[code >> 1] + (code & 1) for code in runs.codes])
        )
        targets = tuple(self._targets[index] for index in used)
        return TranslationState(
            ledger, targets, runs.firsts[:], runs.counts[:], codes, runs.entries[:]
        )
