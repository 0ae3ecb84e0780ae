"""What became of sidecar entries.

Owns: `Destinations`, a map in both directions: from a sidecar entry to the partition's entry that
it became, or to the place where it would have been. Imports: participant_records, links,
translations. Pure. Invariant: nothing before the partition's first position is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.transactions.participant_records import (
    NOWHERE,
    Commit,
    Place,
    Span,
    TranslationState,
)
from magnetar.transactions.topic.links import Links
from magnetar.transactions.topic.translations import Translated, Translations


class Destinations:
    """Of ended transactions; `trimmed_to` is the partition's first position."""

    __slots__ = ("_translations", "links", "trimmed_to")

    def __init__(
        self, trimmed_to: Place = NOWHERE, translations: Iterable[TranslationState] = ()
    ) -> None:
        self.trimmed_to = trimmed_to
        self._translations = Translations(translations)
        self.links: Links = self._translations.links()

    def commit(self, change: Commit) -> None:
        ledger, entry = change.marker
        for span in change.spans:
            if (ledger, entry + span[2] - 1) >= self.trimmed_to:
                self._translations.add(span, (ledger, entry), committed=True)
                self.links.add((ledger, entry), span)
            entry += span[2]

    def abort(self, spans: Iterable[Span]) -> None:
        for ledger, first, count, send_point in spans:
            if send_point >= self.trimmed_to:
                self._translations.add((ledger, first, count), send_point, committed=False)

    def trim(self, first: Place) -> None:
        if first > self.trimmed_to:
            self.trimmed_to = first
            self._translations.trim(first)
            self.links.trim(first)

    def find(self, position: Place) -> Translated | None:
        return self._translations.find(position)

    def to_state(self) -> tuple[TranslationState, ...]:
        return self._translations.to_state()
