"""Restarts in the middle of a test.

Owns: `restart`, `before_and_after`. Imports: dev.server_process.
Invariant: the server comes back on the same data and ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from dev.server_process import ServerProcess


def restart(server: ServerProcess) -> None:
    """SIGKILL and start again."""
    server.kill()
    server.start()


def before_and_after(server: ServerProcess) -> Iterator[None]:
    """For a loop whose body runs twice, with a restart in between."""
    yield
    restart(server)
    yield
