"""`python -m dev.bench.profiled_main <file> <arguments of magnetar>`: the server under cProfile.

Owns: wrapping the command line's entry point, so that the server's own code knows nothing of
profiling. Imports: magnetar.cli. Invariants: profiling starts at SIGUSR1, so that neither imports
nor the load tool's warm-up are in the profile; it is written however the server ends, short of
SIGKILL. It covers the event loop's thread only.
"""

from __future__ import annotations

import cProfile
import signal
import sys


def main() -> None:
    """Run `magnetar`, profile it from SIGUSR1 on and write the profile."""
    target, *arguments = sys.argv[1:]
    sys.argv = ["magnetar", *arguments]
    profile = cProfile.Profile()
    signal.signal(signal.SIGUSR1, lambda _number, _frame: profile.enable())
    from magnetar.cli import main as run_magnetar

    try:
        run_magnetar()
    finally:
        profile.disable()
        profile.dump_stats(target)


if __name__ == "__main__":
    main()
