"""`magnetar token`: keys and tokens, as Pulsar's `bin/pulsar tokens` makes them.

Owns: create-secret-key, create-key-pair, create, show. Imports: security, clock, failures.
Invariants: key files are made readable for their owner alone, and never replaced; a token goes to
standard output, and nothing else does.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar.cli.failures import WrongUsage
from magnetar.cli.session import group
from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest

SECRET_BITS = 256
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhdwy])")
tokens = group("Keys and tokens by which clients say who they are.")


@tokens.command("create-secret-key")
def create_secret_key(
    output: Annotated[Path, typer.Option("--output", help="File for the key; must not exist.")],
    base64_form: Annotated[
        bool, typer.Option("--base64", help="Write it as data:;base64,... instead of raw bytes.")
    ] = False,
) -> None:
    """Make a key that both makes and checks tokens."""
    key = SystemClock().random_bits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
    _write(output, b"data:;base64," + base64.b64encode(key) if base64_form else key)


@tokens.command("create-key-pair")
def create_key_pair(
    private_key: Annotated[
        Path,
        typer.Option(
            "--output-private-key", help="File for the key that makes tokens; must not exist."
        ),
    ],
    public_key: Annotated[
        Path,
        typer.Option(
            "--output-public-key", help="File for the key that checks them; must not exist."
        ),
    ],
) -> None:
    """Make a pair of keys (ES256): servers need the public one only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(private_key, private)
    _write(public_key, public)


@tokens.command()
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    secret_file: Annotated[
        Path | None, typer.Option("--secret-key", help="File of the shared key.")
    ] = None,
    private_file: Annotated[
        Path | None, typer.Option("--private-key", help="File of the private key, instead.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", "-e", help="Such as 90s, 15m, 12h, 30d, 1y; empty = never.")
    ] = "",
    audience: Annotated[str, typer.Option("--audience", help="Value of the claim aud.")] = "",
) -> None:
    """Print a token."""
    from magnetar.security.keys import secret_key
    from magnetar.security.tokens import make

    if (secret_file is None) == (private_file is None):
        raise WrongUsage(
            "--secret-key, --private-key: give one of them",
            "name the file that the server's key belongs to",
        )
    payload: dict[str, Any] = {"sub": subject, **({"aud": audience} if audience else {})}
    if expires:
        payload["exp"] = SystemClock().wall_ms() // 1000 + _seconds(expires)
    if secret_file is not None:
        print(
            make(secret_key("--secret-key", _read("--secret-key", secret_file)), "HS256", payload)
        )
        return
    assert private_file is not None, "one of them is there"
    from magnetar.security.signatures import PrivateKey

    key = PrivateKey("--private-key", _read("--private-key", private_file))
    print(make(key, key.algorithm, payload))


@tokens.command()
def show(
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="File of the token; default: standard input."),
    ] = None,
) -> None:
    """Print what a token says; it is not checked."""
    text = (
        _read("--file", file).decode("ascii", "replace") if file is not None else sys.stdin.read()
    ).strip()
    try:
        head, body, _ = text.split(".")
        for part in (head, body):
            print(
                json.dumps(
                    json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))), indent=2
                )
            )
    except ValueError:
        raise WrongUsage(
            "the input is no token",
            "give three parts with periods between them, as `magnetar token create` prints",
        ) from None


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise WrongUsage(
            f"--expires: {text!r} is no duration",
            "write a number and a unit: 90s, 15m, 12h, 30d, 2w, 1y",
        )
    return int(match[1]) * _UNITS[match[2]]


def _read(option: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{option}: {file} cannot be read: {error.strerror}; name a file that you may read"
        ) from error


def _write(file: Path, content: bytes) -> None:
    """Make a file that only its owner may read. Raises WrongUsage if it exists."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise WrongUsage(
            f"{file} exists", "a key is never replaced: name another file, or move that one away"
        ) from None
    except OSError as error:
        raise WrongUsage(
            f"{file} cannot be written: {error.strerror}",
            "name a file in a directory that you may write to",
        ) from error
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
