"""What people and scripts get to see: tables of a fixed shape without a terminal, JSON and YAML,
sizes and ages, errors in two lines."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from magnetar.amounts import age_text, size_text
from magnetar.cli.failures import (
    CommandFailed,
    Refused,
    Unreachable,
    WrongUsage,
    exit_code_of,
    lines_of,
    without_secrets,
)
from magnetar.cli.screen import OutputFormat, Screen
from magnetar.errors import InvalidRequest, NotOwner, ServiceNotReady

ROWS = [("broker-0", "serving", 12, 3.25, None), ("b1", "draining", 0, 100.0, "x")]
GOLDEN = """\
BROKER    STATE     BUNDLES     IN  REASON
broker-0  serving        12    3.2  -
b1        draining        0  100.0  x
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_table_without_a_terminal_is_plain_and_cuts_nothing() -> None:
    """Golden: headings, two spaces, numbers to the right, no trailing blanks, whatever the
    width."""
    out = io.StringIO()
    Screen(file=out).table(("broker", "state", "bundles", "in", "reason"), ROWS)
    assert out.getvalue() == GOLDEN
    long = "x" * 400
    out = io.StringIO()
    Screen(file=out).table(("name",), [(long,)])
    assert out.getvalue().splitlines()[1] == long


@pytest.mark.parametrize(
    ("variable", "value", "no_color"),
    [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("LANG", "C", True)],
)
def test_a_terminal_is_plain_on_request(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, no_color: bool
) -> None:
    """NO_COLOR, TERM=dumb and --no-color all give the golden table; without them there are
    colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    Screen(file=coloured).table(("broker", "state", "bundles", "in", "reason"), ROWS)
    assert "\x1b[" in coloured.getvalue()
    monkeypatch.setenv(variable, value)
    plain = Terminal()
    Screen(no_color=no_color, file=plain).table(
        ("broker", "state", "bundles", "in", "reason"), ROWS
    )
    assert plain.getvalue() == GOLDEN


def test_scripts_get_one_value_and_people_do_not() -> None:
    """JSON and YAML read back as the value; the rendering for people is not run."""
    value = {"b": [1, None], "a": "ü"}
    for output, read in ((OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)):
        out = io.StringIO()
        Screen(output, file=out).show(value, lambda: pytest.fail("rendered for people"))
        assert read(out.getvalue()) == value


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (4096, "4.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2.0 h"), (172_800, "2.0 days")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_an_error_is_what_is_wrong_and_what_to_do() -> None:
    """Our messages have the remedy behind a semicolon; failures of the command line carry it."""
    assert lines_of(InvalidRequest("bundles: 0 is out of range; use 1..4096")) == [
        "magnetar: bundles: 0 is out of range",
        "  Use 1..4096",
    ]
    assert lines_of(Refused(409, "a; b", "do this")) == ["magnetar: a; b", "  Do this"]
    assert lines_of(CommandFailed("two\nlines")) == ["magnetar: two lines"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(404, "x"), 1),
        (WrongUsage("x"), 2),
        (Unreachable("x"), 3),
        (ServiceNotReady("x"), 3),
        (NotOwner("x"), 1),
        (InvalidRequest("x"), 1),
    ],
)
def test_exit_codes(error: CommandFailed, code: int) -> None:
    assert exit_code_of(error) == code


def test_secrets_are_not_shown() -> None:
    """Credentials in addresses, tokens and passwords."""
    shown = without_secrets(
        "http://me:hunter2@host:8080 failed, Bearer abc.def?token=abc&password=hunter2 x"
    )
    assert "hunter2" not in shown
    assert "abc" not in shown
    assert "host:8080" in shown
