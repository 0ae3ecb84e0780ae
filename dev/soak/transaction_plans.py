"""What applications in transactions do, and how their ends are distinguished.

Owns: the sources and who consumes them how, what becomes of a transaction, the counts of a run.
Imports: magnetar's errors and ids of messages, histories.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dev.histories.transactions import Fate, Place
from magnetar.client import MessageId
from magnetar.errors import InvalidTxnStatus, MagnetarError

MOVER = "mover"
SAID = re.compile(r"\bis (COMMIT|ABORT)")
"""How refusals of END_TXN name what a transaction is."""
COMMIT, ABORT, LEAVE, ASK_TWICE, REGRET = "commit", "abort", "leave", "ask twice", "regret"
PLANS = {COMMIT: 70, ABORT: 12, LEAVE: 3, ASK_TWICE: 10, REGRET: 5}
"""What becomes of a transaction: ASK_TWICE asks for its commit again after the answer, REGRET
for its abort."""


@dataclass(frozen=True, slots=True)
class Route:
    """One source and how it is consumed; outputs go to any of the targets. `ordered`: one
    consumer, cumulative acknowledgements."""

    source: str
    kind: str
    movers: int
    language: str = ""
    """Whose client moves: one mover of that language, "" for our own."""

    @property
    def ordered(self) -> bool:
        return self.kind == "Exclusive"


def routes(namespace: str, languages: Sequence[str] = ()) -> list[Route]:
    """One of each way to acknowledge, and one for each of `languages`."""
    return [
        *(
            Route(f"persistent://{namespace}/source-{language}", "Shared", 0, language)
            for language in languages
        ),
        Route(f"persistent://{namespace}/source-shared", "Shared", 3),
        Route(f"persistent://{namespace}/source-key-shared", "Key_Shared", 2),
        Route(f"persistent://{namespace}/source-exclusive", "Exclusive", 1),
    ]


@dataclass(slots=True)
class Counts:
    """What has happened so far."""

    begun: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    trouble: list[str] = field(default_factory=list)

    def end(self, how: str) -> None:
        self.ended[how] = self.ended.get(how, 0) + 1


def place_of(identifier: MessageId) -> Place:
    return identifier.ledger, identifier.entry, identifier.batch_index


def fate_of(refusal: MagnetarError | None, wish: Fate) -> Fate:
    """What the answer to an END_TXN says of the transaction."""
    if refusal is None:
        return wish
    said = SAID.search(str(refusal)) if isinstance(refusal, InvalidTxnStatus) else None
    return Fate.UNKNOWN if said is None else Fate.COMMITTED if said[1] == "COMMIT" else Fate.ABORTED
