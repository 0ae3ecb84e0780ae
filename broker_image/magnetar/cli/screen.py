"""How results are shown.

Owns: tables, facts and sentences for people, JSON and YAML for scripts. Imports: rich and yaml,
each only when it is needed. Invariants: `--output json` prints one JSON value whose shape
`docs/cli.md` documents, whatever the terminal is; nothing is cut off and nothing is paged; colours
and lines are for terminals only, and never with --no-color, NO_COLOR or TERM=dumb.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from magnetar.amounts import age_text
from magnetar.clock import SystemClock

STYLES = {
    "serving": "green",
    "Owned": "green",
    "ok": "green",
    "draining": "yellow",
    "cordoned": "yellow",
    "Releasing": "yellow",
    "Assigning": "yellow",
    "Splitting": "yellow",
    "Merging": "yellow",
    "Free": "yellow",
    "gone": "red",
    "unreachable": "red",
}


class OutputFormat(enum.StrEnum):
    """How a command shows its result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Screen:
    """Where a command's result goes."""

    def __init__(
        self,
        output: OutputFormat = OutputFormat.TABLE,
        no_color: bool = False,
        file: TextIO | None = None,
    ) -> None:
        self.output = output
        self._file = file if file is not None else sys.stdout
        self.terminal = (
            self._file.isatty()
            and not no_color
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def show(self, value: Any, render: Callable[[], None]) -> None:
        """The result of a command: `value` for scripts, or what `render` prints for people."""
        if self.output is OutputFormat.JSON:
            self.line(json.dumps(value, indent=2, sort_keys=True))
        elif self.output is OutputFormat.YAML:
            import yaml

            self.line(yaml.safe_dump(value, sort_keys=True, allow_unicode=True).rstrip("\n"))
        else:
            render()

    def done(self, sentence: str, **value: Any) -> None:
        """The result of a command that changes something."""
        self.show({"done": sentence, **value}, lambda: self.line(sentence))

    def line(self, text: str = "") -> None:
        """One line; what a script gets is always UTF-8."""
        print(text, file=self._file, flush=True)

    def note(self, text: str) -> None:
        """Progress and remarks: for people, on standard error."""
        print(text, file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Rows under headings; numbers to the right."""
        cells = [[_cell(value) for value in row] for row in rows]
        right = [_is_right([row[at] for row in cells]) for at in range(len(columns))]
        if self.terminal:
            self._rich_table(columns, cells, right)
            return
        widths = [
            max(len(name), *(len(row[at]) for row in cells), 0) for at, name in enumerate(columns)
        ]
        for row in ([name.upper() for name in columns], *cells):
            padded = (
                text.rjust(width) if is_right else text.ljust(width)
                for text, width, is_right in zip(row, widths, right, strict=True)
            )
            self.line("  ".join(padded).rstrip())

    def _rich_table(
        self, columns: Sequence[str], cells: list[list[str]], right: list[bool]
    ) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, is_right in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if is_right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row))
        Console(file=self._file).print(table)

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Names and values, one a line."""
        known = [(name, _cell(value)) for name, value in pairs]
        width = max((len(name) for name, _ in known), default=0)
        for name, value in known:
            self.line(f"{name:<{width}}  {value}".rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return str(value)


def _is_right(column: Sequence[str]) -> bool:
    """Whether a column is of numbers, with or without units."""
    known = [text for text in column if text != "-"]
    return bool(known) and all(
        text.partition(" ")[0].rstrip("%").replace(".", "", 1).isdigit() for text in known
    )


def since_text(since_ms: int | None) -> str:
    """How long ago a moment was, "-" if it is not known."""
    return "-" if not since_ms else age_text((SystemClock().wall_ms() - since_ms) / 1000)


def broker_of(incarnation: str) -> str:
    """The broker's name: an incarnation is name.nonce."""
    return incarnation.rpartition(".")[0]
