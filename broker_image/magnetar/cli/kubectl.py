"""Kubernetes, as whoever runs the command may see it.

Owns: running `kubectl` with the user's own kubeconfig, context and rights, and turning its refusals
into ours. Imports: subprocess, failures. Invariants: no credential passes through here, because
kubectl reads the kubeconfig itself, with its plugins and proxies; an object that is not there is
None, never an error; the operator's extras are not needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from magnetar.cli.failures import CommandFailed, Refused, Unreachable

Manifest = dict[str, Any]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Kubernetes namespace; default: the context's.")
]
Context = Annotated[
    str, typer.Option("--context", help="Context of the kubeconfig; default: the current one.")
]

PROGRAM_VARIABLE = "MAGNETAR_KUBECTL"
TIMEOUT_S = 60.0
FIELD_MANAGER = "magnetar-cli"
FORBIDDEN, CONFLICT, INVALID = 403, 409, 422
_STATUSES = (
    ("(Forbidden)", FORBIDDEN),
    ("(Conflict)", CONFLICT),
    ("(Invalid)", INVALID),
    ("is invalid:", INVALID),
    ("(BadRequest)", INVALID),
)
_UNREACHABLE = (
    "Unable to connect",
    "was refused - did you specify",
    "no configuration has been provided",
    "context was not found",
    "i/o timeout",
)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One user, one context, one namespace ("" = as the kubeconfig says); how long an answer may
    take."""

    namespace: str = ""
    context: str = ""
    timeout_s: float = TIMEOUT_S

    def run(self, arguments: Sequence[str], text: str = "") -> str:
        """What kubectl prints. Raises CommandFailed without kubectl, Unreachable, Refused."""
        program = os.environ.get(PROGRAM_VARIABLE) or shutil.which("kubectl")
        if not program:
            raise CommandFailed(
                "kubectl was not found", f"install it, or say where it is with {PROGRAM_VARIABLE}"
            )
        chosen = [
            *(["--context", self.context] if self.context else []),
            *(["--namespace", self.namespace] if self.namespace else []),
        ]
        try:
            done = subprocess.run(
                [program, *chosen, *arguments],
                input=text,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(
                f"kubectl {arguments[0]} got no answer within {self.timeout_s:.0f} s",
                "is the API server reachable?",
            ) from error
        except OSError as error:
            raise CommandFailed(
                f"{program} cannot be run: {error.strerror}",
                f"say where kubectl is with {PROGRAM_VARIABLE}",
            ) from error
        if done.returncode != 0:
            raise _failure(arguments[0], done.stderr)
        return done.stdout

    def document(self, arguments: Sequence[str], text: str = "") -> Any:
        """What kubectl prints, as JSON; None if it prints nothing. Raises as `run`."""
        printed = self.run([*arguments, "--output", "json"], text)
        return json.loads(printed) if printed.strip() else None

    def get(self, kind: str, name: str) -> Manifest | None:
        """One object. Raises as `run`."""
        found: Manifest | None = self.document(["get", kind, name, "--ignore-not-found"])
        return found

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """Objects of one kind, or of several with commas between them. Raises as `run`."""
        found = self.document(["get", kind, *(["--selector", selector] if selector else [])])
        items: list[Manifest] = found["items"] if found else []
        return items

    def raw(self, path: str) -> str:
        """A GET of any path of the API server. Raises as `run`."""
        return self.run(["get", "--raw", path])


def _failure(command: str, text: str) -> CommandFailed:
    """kubectl's own sentence, as the error that says what to do."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Warning:")]
    sentence = (
        " ".join(lines).removeprefix("error: ").removeprefix("Error from server ")
        or f"kubectl {command} failed"
    )
    if any(sign in text for sign in _UNREACHABLE):
        return Unreachable(
            f"Kubernetes: {sentence}", "check --context, KUBECONFIG and `kubectl cluster-info`"
        )
    status = next((status for sign, status in _STATUSES if sign in text), 0)
    remedy = "ask whoever runs Kubernetes for the permission" if status == FORBIDDEN else ""
    return Refused(status, f"Kubernetes: {sentence}", remedy)
