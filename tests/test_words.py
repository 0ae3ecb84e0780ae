"""The project writes as its field writes: words that only this project used in their sense.

Owns: the table of such words and what to say instead. Checked over product code (identifiers,
texts, docstrings and comments), tools, tests, custom resource definitions, the chart, examples and
documents.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = (
    "broker_image/magnetar",
    "operator/magnetar_operator",
    "spark_jobs/magnetar_jobs",
    "dev",
    "tests",
    "crds",
    "charts",
    "docs",
    "examples",
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
)
KINDS = frozenset({".py", ".yaml", ".yml", ".json", ".md", ".tpl", ".txt"})
INSTEAD = {
    r"told|tells": "notified, reported; notifies, reports, shows",
    r"hears|heard": "learns; learned, received",
    r"without a word": "silently",
    r"whoever|whomever|somebody": "the actor: the new owner, callers, another process",
    r"(?:is|are|was|were|be) away": "unavailable; reachable again",
    r"anew": "again",
    r"for ever": "permanently",
    r"meanwhile": "concurrently",
    r"in (?:its|their) place": "the condition, or `instead`",
    r"hand(?:s|ed|ing)? over|hand overs?|handover": "transfer, unload",
    r"takers?": "the new owner, candidates",
    r"put(?:s|ting)? out": "fence, remove",
    r"tidier|shortener": "manifest compaction, checkpointer",
    r"parked|withheld|held back": "buffered, deferred",
    r"doors?|ways in": "listeners",
    r"grave(?:ly)?": "irreversible",
    r"even(?:s|ing) out": "rebalancing",
    r"lives on|(?:former|current|earlier|next|one|own|whichever) li(?:fe|ves)|life after": (
        "session; incarnation, previous incarnation"
    ),
    r"words? of yours": "restore token",
}
"""By pattern. Of an identifier each word counts: `_told` and `PARTICIPANTS_TOLD` are `told`."""
_BANNED = re.compile("|".join(rf"(?<![a-z])(?:{pattern})(?![a-z])" for pattern in INSTEAD))


def _files() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*"))
    return [
        path
        for path in found
        if path.suffix in KINDS and "_pb2" not in path.name and path != Path(__file__)
    ]


def _plain(text: str) -> str:
    """Words of identifiers apart, line breaks and the marks of comments as blanks, lower case."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    return re.sub(r"\s*\n[ \t]*(?:#:? ?|> ?)?", "\n", apart).lower()


def findings(text: str) -> list[str]:
    """What to change in a text, by line."""
    plain = _plain(text)
    found = []
    for match in _BANNED.finditer(plain.replace("\n", " ")):
        line = plain.count("\n", 0, match.start()) + 1
        instead = next(say for pattern, say in INSTEAD.items() if re.fullmatch(pattern, match[0]))
        found.append(f"about line {line}: {match[0]!r}: say {instead}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "clients are told",
        "PARTICIPANTS_TOLD = 1",
        "def _putOut(self): ...",
        "# a store that is\n    # away",
    ],
)
def test_words_are_found_in_prose_identifiers_and_across_lines(text: str) -> None:
    assert len(findings(text)) == 1


def test_ordinary_words_are_left_alone() -> None:
    assert findings("hand the toldness a lifetime; outdoors, retold, life cycle, indoors") == []


def test_nothing_is_said_in_words_of_our_own() -> None:
    offenders = {
        str(path.relative_to(ROOT)): found
        for path in _files()
        if (found := findings(path.read_text()))
    }
    assert offenders == {}
