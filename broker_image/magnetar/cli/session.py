"""What every command that asks a cluster has in common.

Owns: the options --url, --output and --no-color, and the `Session` that a command gets in their place. Imports: typer, rest, screen.
Invariant: each such command takes the same options under the same names and environment variables.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from magnetar.cli.rest import DEFAULT_URL, Rest
from magnetar.cli.screen import OutputFormat, Screen

Url = Annotated[
    str, typer.Option("--url", envvar="MAGNETAR_URL", help="REST of any broker, or of several: http://a:8080,http://b:8080.")
]
Output = Annotated[
    OutputFormat, typer.Option("--output", "-o", envvar="MAGNETAR_OUTPUT", help="table for people; json or yaml for scripts.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="Plain text; so does NO_COLOR, or a pipe.")]
ServiceUrl = Annotated[
    str, typer.Option("--service-url", envvar="MAGNETAR_SERVICE_URL", help="Where clients connect: pulsar://a:6650,b:6650.")
]
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"


@dataclass(frozen=True, slots=True)
class Session:
    """The cluster a command talks to, and where its result goes."""

    rest: Rest
    screen: Screen


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `session` is made of the common options."""
    signature = inspect.signature(function, eval_str=True)
    own = [found.replace(kind=inspect.Parameter.KEYWORD_ONLY) for found in signature.parameters.values() if found.name != "session"]
    defaults = {"url": (Url, DEFAULT_URL), "output": (Output, OutputFormat.TABLE), "no_color": (NoColor, False)}
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in defaults.items()
    ]

    @functools.wraps(function)
    def run(*, url: str, output: OutputFormat, no_color: bool, **arguments: Any) -> None:
        function(Session(Rest(url), Screen(output, no_color)), **arguments)

    run.__signature__ = signature.replace(parameters=[*own, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {found.name: found.annotation for found in (*own, *common)}
    return run


def group(text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
