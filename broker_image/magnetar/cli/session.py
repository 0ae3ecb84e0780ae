"""What every command that asks a cluster has in common.

Owns: the options --url, --output and --no-color, those about who asks (--token, --tls-ca and so
on), and the `Session` and `Access` that a command gets from them. Imports: typer, access,
rest, screen. Invariant: each such command takes the same options under the same names and
environment variables.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from magnetar.cli.access import PASSWORD, Access
from magnetar.cli.rest import DEFAULT_URL, Rest
from magnetar.cli.screen import OutputFormat, Screen

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="MAGNETAR_URL",
        help="REST of any broker, or of several: http://a:8080,http://b:8080.",
    ),
]
Output = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        envvar="MAGNETAR_OUTPUT",
        help="table for people; json or yaml for scripts.",
    ),
]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="Plain text; so does NO_COLOR, or a pipe.")
]
ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url",
        envvar="MAGNETAR_SERVICE_URL",
        help="Where clients connect: pulsar://a:6650,b:6650.",
    ),
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="MAGNETAR_TOKEN",
        show_envvar=True,
        help="A JSON Web Token; better in a file.",
    ),
]
TokenFile = Annotated[
    str, typer.Option("--token-file", envvar="MAGNETAR_TOKEN_FILE", help="File with a token.")
]
TlsCa = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="MAGNETAR_TLS_CA",
        help="Whom to believe: certificates in PEM; default: the system's.",
    ),
]
TlsCert = Annotated[
    str, typer.Option("--tls-cert", envvar="MAGNETAR_TLS_CERT", help="Certificate to show.")
]
TlsKey = Annotated[str, typer.Option("--tls-key", envvar="MAGNETAR_TLS_KEY", help="Its key.")]
User = Annotated[
    str,
    typer.Option("--user", envvar="MAGNETAR_USER", help="Who comes by a password (Basic)."),
]
PasswordFile = Annotated[
    str,
    typer.Option(
        "--password-file",
        envvar=f"{PASSWORD}_FILE",
        help=f"File with the user's password; or set {PASSWORD}.",
    ),
]
ACCESS = {
    "token": (Token, ""),
    "token_file": (TokenFile, ""),
    "tls_ca": (TlsCa, ""),
    "tls_cert": (TlsCert, ""),
    "tls_key": (TlsKey, ""),
    "user": (User, ""),
    "password_file": (PasswordFile, ""),
}
"""In the order of `Access`'s fields."""
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"


@dataclass(frozen=True, slots=True)
class Session:
    """The cluster a command talks to, and where its result goes."""

    rest: Rest
    screen: Screen
    access: Access


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `session` is made of the common options."""

    def session(url: str, output: OutputFormat, no_color: bool, *shown: str) -> Session:
        access = _access(*shown)
        return Session(Rest(url, access=access), Screen(output, no_color), access)

    common = {
        "url": (Url, DEFAULT_URL),
        "output": (Output, OutputFormat.TABLE),
        "no_color": (NoColor, False),
    }
    return _made_of(function, "session", {**common, **ACCESS}, session)


def admitted(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `access` is made of the options about who asks."""
    return _made_of(function, "access", ACCESS, _access)


def _access(*shown: str) -> Access:
    """Of the options, and of what only the environment may hold. Raises WrongUsage."""
    return Access(*(*shown, os.environ.get(PASSWORD, "")))


def _made_of(
    function: Callable[..., None],
    parameter: str,
    options: Mapping[str, tuple[Any, Any]],
    make: Callable[..., Any],
) -> Callable[..., None]:
    """A command that takes options in the place of one parameter, which is made of them."""
    signature = inspect.signature(function, eval_str=True)
    own = [
        found.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for found in signature.parameters.values()
        if found.name != parameter
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in options.items()
    ]

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        made = make(*(arguments.pop(name) for name in options))
        function(**{parameter: made}, **arguments)

    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {found.name: found.annotation for found in (*own, *added)}
    return run


def group(text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
