"""What the command line says when something is wrong.

Owns: the failures that only the command line knows, their exit codes, and the two lines in which
any error is shown. Imports: errors. Invariants: the first line says what is wrong, the second (if
anything can be done) what to do; an error never shows a traceback or a secret.
"""

from __future__ import annotations

import re
from typing import ClassVar

from magnetar.errors import MagnetarError, NotOwner, ServiceNotReady

OK, REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: done; refused or unhealthy; wrong usage; no answer; Ctrl-C."""

_SECRETS = re.compile(r"(?<=://)[^/@\s]+@|(?i:(?<=bearer )|(?<=token=)|(?<=password=))[^\s&;,]+")


class CommandFailed(MagnetarError):
    """A command could not do its work."""

    exit_code: ClassVar[int] = REFUSED

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        if remedy:
            self.fault, self.remedy = message, remedy


class WrongUsage(CommandFailed):
    """An argument that cannot be meant like this."""

    exit_code = USAGE


class Unreachable(CommandFailed):
    """There is no answer at the addresses given."""

    exit_code = UNREACHABLE


class Refused(CommandFailed):
    """The server refused a request, with this HTTP status."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


def exit_code_of(error: MagnetarError) -> int:
    """The command's exit code after `error`."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    return (
        UNREACHABLE
        if isinstance(error, ServiceNotReady) and not isinstance(error, NotOwner)
        else REFUSED
    )


def lines_of(error: MagnetarError) -> list[str]:
    """What is wrong, and (if known) what to do."""
    text, remedy = (without_secrets(" ".join(part.split())) for part in (error.fault, error.remedy))
    return [f"magnetar: {text}", *([f"  {remedy[:1].upper()}{remedy[1:]}"] if remedy else [])]


def without_secrets(text: str) -> str:
    """`text` without credentials of URLs and tokens."""
    return _SECRETS.sub("***@" if "@" in text else "***", text) if _SECRETS.search(text) else text
