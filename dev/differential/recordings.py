"""What Apache Pulsar showed, kept in files.

Owns: `Recording`: a scenario's observations and the version that they come from; reading and
writing directories of them. Imports: play (the types). Invariants: a file has one step a line, so
that a change of an answer is a change of a line; steps are part of the file: a recording stays true
when scenarios or the generator change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dev.differential.play import Observation, Step


@dataclass(frozen=True)
class Recording:
    """Of one scenario."""

    name: str
    version: str
    observed: list[Observation]

    @property
    def steps(self) -> list[Step]:
        return [shown["step"] for shown in self.observed]

    def write(self, directory: Path) -> None:
        """Into a file of its own."""
        lines = ",\n".join(json.dumps(shown) for shown in self.observed)
        text = f'{{"version": {json.dumps(self.version)}, "observed": [\n{lines}\n]}}\n'
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.name}.json").write_text(text)


def recordings(directory: Path) -> Iterator[Recording]:
    """All of a directory, by name."""
    for path in sorted(directory.glob("*.json")):
        body = json.loads(path.read_text())
        yield Recording(path.stem, body["version"], body["observed"])
