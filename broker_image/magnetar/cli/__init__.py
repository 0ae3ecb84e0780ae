"""The `magnetar` command (also `kubectl magnetar`).

Owns: the entry point and the mapping of errors to exit codes. Imports: the commands' modules, lazily: a broker must not pay for what only people see.
Exit codes: 0 done, 1 the system refused or failed (one line says what to do), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys

_SERVERS = ("standalone", "broker", "operator")


def main() -> None:
    """Run the command line."""
    if len(sys.argv) > 1 and sys.argv[1] in _SERVERS:
        # A rich terminal library costs an idle broker 8 MB; structlog uses it when it is importable, so it must not be.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from magnetar.cli.commands import application
    from magnetar.errors import MagnetarError

    try:
        application(prog_name="magnetar")
    except MagnetarError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
