"""The `magnetar` command (also `kubectl magnetar`).

Owns: the entry point and the mapping of errors to exit codes. Imports: the commands' modules,
lazily: a broker must not pay for what only people see. Exit codes: 0 done, 1 the system refused or
is unhealthy, 2 wrong usage, 3 no answer, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

PROGRAM = "magnetar"
SERVERS = ("standalone", "broker", "coordinator", "operator")
EXTRA_OF = {
    **dict.fromkeys(
        ("aetcd", "cryptography", "fastapi", "grpc", "jwt", "obstore", "prometheus_client"),
        "broker",
    ),
    **dict.fromkeys(("starlette", "uvicorn", "uvloop"), "broker"),
    **dict.fromkeys(("aiohttp", "kopf", "kubernetes"), "operator"),
    **dict.fromkeys(("numpy", "pyarrow", "pyspark"), "spark"),
}
"""Modules that a plain installation lacks: the extra of the distribution that brings each."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line on `arguments` (default: the process'). Exits with the command's code
    unless it is 0."""
    from magnetar.cli.failures import INTERRUPTED, exit_code_of, lines_of
    from magnetar.errors import MagnetarError

    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        command = f"pip install 'magnetar[{extra}]'"
        print(
            f"this command needs {error.name}, which is not installed: {command}", file=sys.stderr
        )
        sys.exit(2)
    except MagnetarError as error:
        print(*lines_of(error), sep="\n", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has seen enough; nothing more may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> None:
    if arguments and arguments[0] in SERVERS:
        # A rich terminal library costs an idle broker 8 MB; structlog uses it when it is
        # importable, so it must not be.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
        from magnetar.cli.serving import serve
        from magnetar.hosting.garbage import YOUNG_OBJECTS

        # What a start makes stays: by default the collector looks through it 200 times.
        gc.set_threshold(YOUNG_OBJECTS)

        serve(arguments)
        return
    from magnetar.cli.commands import application, offer_completion

    offer_completion()
    application(arguments, prog_name=PROGRAM)
