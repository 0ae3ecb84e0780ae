"""Two runs of a scenario compared, and which of their differences are meant.

Owns: `Difference`, `Rule`, `differences`, and the rules, which are read from the table in
docs/differences.md. Imports: the standard library. Pure but for reading that file. Invariants: every
rule has a reason; a rule applies to what its patterns say and to nothing else (`*` is any text); a
rule that says `stop` ends the comparison of its scenario, because later steps follow from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dev.differential.play import Observation, Step

DOCUMENT = Path(__file__).parents[2] / "docs" / "differences.md"
NAME, STEP, PULSAR, MAGNETAR, THEN, REASON = range(6)
COLUMNS = 6


@dataclass(frozen=True)
class Difference:
    """Where two runs show different things: in a step's answer, or in what a receiver got."""

    index: int
    step: str
    where: str
    pulsar: str
    magnetar: str

    @property
    def signature(self) -> str:
        """The same for the same difference with other messages and consumers."""
        text = f"{self.step} | {self.where} | {self.pulsar} | {self.magnetar}"
        text = re.sub(r"\bm\d+(:\d+)?", "m#", text)
        text = re.sub(
            r"\b(consumer|producer|connection|s|left|permits\W+|unacked\W+) ?\d+", r"\1 #", text
        )
        return re.sub(r'("m#[^"]*"(, )?)+', '"m#"..', text)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """A difference that is meant."""

    name: str
    step: str
    pulsar: str
    magnetar: str
    stops: bool
    reason: str

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        return _pattern(self.step), _pattern(self.pulsar), _pattern(self.magnetar)

    def explains(self, difference: Difference) -> bool:
        """Whether the patterns fit the whole of the step and of both sides."""
        step, pulsar, magnetar = self._patterns
        return bool(
            step.fullmatch(f"{difference.step} {difference.where}")
            and pulsar.fullmatch(difference.pulsar)
            and magnetar.fullmatch(difference.magnetar)
        )


def _cells(line: str) -> list[str]:
    """Of a row of a Markdown table; code loses its marks, and `\\|` is a bar."""
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [cell.strip().strip("`").replace("\\|", "|") for cell in cells]


def rules(document: Path = DOCUMENT) -> list[Rule]:
    """The rules of the document. Raises ValueError for a row that is not complete."""
    found = []
    for line in document.read_text().splitlines():
        cells = _cells(line) if line.startswith("| `") else []
        if not cells:
            continue
        if len(cells) != COLUMNS or not all(cells) or cells[THEN] not in ("go on", "stop"):
            raise ValueError(f"{document.name}: a rule has six cells, not: {line}")
        found.append(
            Rule(
                cells[NAME],
                cells[STEP],
                cells[PULSAR],
                cells[MAGNETAR],
                cells[THEN] == "stop",
                cells[REASON],
            )
        )
    if len({rule.name for rule in found}) != len(found):
        raise ValueError(f"{document.name}: two rules have the same name")
    return found


def step_text(step: Step) -> str:
    """A step without what it is about: its kind, and what of REST it asks."""
    return " ".join(str(word) for word in step[:3]) if step[0] == "rest" else str(step[0])


def _leaves(value: Any, where: str) -> dict[str, Any]:
    """What is in nested mappings, by path."""
    if not isinstance(value, dict) or not value:
        return {where: value}
    return {
        path: leaf
        for key, inner in value.items()
        for path, leaf in _leaves(inner, f"{where}.{key}").items()
    }


def differences(pulsar: Sequence[Observation], magnetar: Sequence[Observation]) -> list[Difference]:
    """All of them, step by step."""
    found = []
    for index, (left, right) in enumerate(zip(pulsar, magnetar, strict=True)):
        sides = [
            {
                path: leaf
                for key, value in side.items()
                if key != "step"
                for path, leaf in _leaves(value, key).items()
            }
            for side in (left, right)
        ]
        for where in sorted({*sides[0], *sides[1]}):
            shown = [json.dumps(side.get(where)) for side in sides]
            if shown[0] != shown[1]:
                found.append(Difference(index, step_text(left["step"]), where, *shown))
    return found


@dataclass(frozen=True)
class Verdict:
    """What of a comparison is meant, by which rules, and what is not."""

    explained: list[tuple[Rule, Difference]]
    unexplained: list[Difference]


def judge(found: Sequence[Difference], known: Sequence[Rule]) -> Verdict:
    """Look for a rule for each, until one stops the comparison."""
    verdict = Verdict([], [])
    for difference in found:
        rule = next((rule for rule in known if rule.explains(difference)), None)
        if rule is None:
            verdict.unexplained.append(difference)
            continue
        verdict.explained.append((rule, difference))
        if rule.stops:
            break
    return verdict
