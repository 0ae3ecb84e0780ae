"""Restarts in the middle of a test.

Owns: `restart`, `before_and_after`, `await_consumers`, `await_receivers`. Imports:
dev.server_process.
Invariant: the server comes back on the same data and ports.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from dev.server_process import ServerProcess

ATTACHED_S = 120.0


def restart(server: ServerProcess) -> None:
    """SIGKILL and start again."""
    server.kill()
    server.start()


def before_and_after(server: ServerProcess) -> Iterator[None]:
    """For a loop whose body runs twice, with a restart in between."""
    yield
    restart(server)
    yield


def await_consumers(server: ServerProcess, topic: str, subscription: str, count: int) -> None:
    """Wait until so many consumers are attached to a subscription, as REST shows: clients come
    back when they like."""
    _await(server, topic, subscription, count, lambda _consumer: True)


def await_receivers(server: ServerProcess, topic: str, subscription: str, count: int) -> None:
    """Wait until so many consumers have asked for messages since they are attached. Clients do that
    behind dropping what they had fetched before: whatever they show from now on came now."""
    _await(
        server,
        topic,
        subscription,
        count,
        lambda consumer: consumer["availablePermits"] > 0 or consumer["msgOutCounter"] > 0,
    )


def _await(
    server: ServerProcess,
    topic: str,
    subscription: str,
    count: int,
    counts: Callable[[dict[str, Any]], bool],
) -> None:
    deadline, seen = time.monotonic() + ATTACHED_S, -1
    while seen != count:
        assert time.monotonic() < deadline, (
            f"{seen} consumers instead of {count} after {ATTACHED_S} s"
        )
        try:
            with urllib.request.urlopen(
                f"{server.http_url}/admin/v2/persistent/public/default/{topic}/stats", timeout=60
            ) as response:
                found = json.load(response)["subscriptions"].get(subscription)
                consumers = found["consumers"] if found is not None else []
                seen = sum(map(counts, consumers))
        except urllib.error.HTTPError:
            pass  # the topic is not in service again yet
        time.sleep(0.05)
