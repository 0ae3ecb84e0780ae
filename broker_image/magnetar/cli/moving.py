"""`magnetar unload` and `magnetar drain`.

Owns: moving bundles away from brokers and waiting until they have arrived. Imports: rest, screen,
names. Invariants: an unload says where each bundle went; a drain returns 0 only when its broker has
no bundle any more; both may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from magnetar.cli.failures import REFUSED, Refused
from magnetar.cli.names import target_of
from magnetar.cli.rest import NOT_FOUND, Rest, namespace_path, topic_path
from magnetar.cli.screen import broker_of
from magnetar.cli.session import Session
from magnetar.clock import SystemClock
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of, bundles_of

UNLOADS_PARALLEL_MAX = 8
SETTLE_S = 3.0
LOOK_S = 0.25
CLOCK = SystemClock()


def boundaries_of(rest: Rest, namespace: NamespaceName) -> tuple[int, ...]:
    """Boundaries of a namespace's bundles."""
    return tuple(
        int(text, 16) for text in rest.get(namespace_path(namespace))["bundles"]["boundaries"]
    )


def bundle_path(bundle: BundleName, what: str) -> str:
    """Path of the requests of Magnetar's own that pin a bundle to its owner, or merge it."""
    return f"/magnetar/v1/namespaces/{bundle.namespace}/{bundle.range}/{what}"


def run_unload(session: Session, target: str, destination: str) -> None:
    """Move what `target` names to `destination` ("" = wherever placement says)."""
    rest, name = session.rest, target_of(target)
    before = _owners(rest)
    paths = _paths(rest, name)
    used = {
        bundle: path
        for bundle, path in paths.items()
        if before.get(bundle, ("", ""))[0] in ("Owned", "Releasing", "Assigning")
    }
    query = {"destinationBroker": destination}
    leaving = {
        bundle: path for bundle, path in used.items() if broker_of(before[bundle][1]) != destination
    }
    with ThreadPoolExecutor(UNLOADS_PARALLEL_MAX) as pool:
        for _ in pool.map(lambda path: rest.put(path, query=query), leaving.values()):
            pass
        for _ in pool.map(
            lambda bundle: rest.put(bundle_path(BundleName.parse(bundle), "pin")),
            sorted(used.keys() - leaving.keys()),
        ):
            pass  # it is where it is to be, and is to stay there as well
    after = _settled(rest, leaving, before)
    rows = [
        {
            "bundle": bundle,
            "from": broker_of(before[bundle][1]),
            "to": broker_of(after.get(bundle, ("", ""))[1]),
            "moved": bundle in leaving,
        }
        for bundle in used
    ]
    value = {"target": str(name), "bundles": rows, "unused": sorted(set(paths) - set(used))}

    def render() -> None:
        if rows:
            session.screen.table(
                ("bundle", "from", "to"),
                [(row["bundle"], row["from"], row["to"] or "no broker") for row in rows],
            )
            if destination:
                session.screen.line(
                    "Load balancing leaves them there: `magnetar explain` says for how long, "
                    "`magnetar bundles unpin` ends it"
                )
        else:
            session.screen.line(f"{name}: no broker serves any of it, there is nothing to move")

    session.screen.show(value, render)


def _owners(rest: Rest) -> dict[str, tuple[str, str]]:
    """State and owning incarnation by bundle."""
    return {
        row["bundle"]: (row["state"], row["owner"])
        for row in rest.get("/magnetar/v1/status")["bundles"]
    }


def _paths(rest: Rest, name: NamespaceName | BundleName | TopicName) -> dict[str, str]:
    """Path of the request that unloads each bundle meant."""
    if isinstance(name, BundleName):
        return {str(name): namespace_path(name.namespace, f"/{name.range}/unload")}
    namespace = name if isinstance(name, NamespaceName) else name.namespace_name
    boundaries = boundaries_of(rest, namespace)
    if isinstance(name, NamespaceName):
        return {
            str(found): namespace_path(name, f"/{found.range}/unload")
            for found in bundles_of(name, boundaries)
        }
    count = (
        int(rest.get(topic_path(name, "/partitions"))["partitions"]) if name.partition < 0 else 0
    )
    parts = [name.with_partition(index) for index in range(count)] or [name]
    return {
        str(bundle_of(namespace, boundaries, part.hash)): topic_path(part, "/unload")
        for part in parts
    }


def _settled(
    rest: Rest, bundles: Sequence[str] | dict[str, str], before: dict[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """Owners once all `bundles` have arrived somewhere else, or after a while."""
    deadline = CLOCK.monotonic() + SETTLE_S
    while True:
        now = _owners(rest)
        moved = all(
            now.get(bundle, ("", ""))[0] == "Owned" and now[bundle] != before[bundle]
            for bundle in bundles
        )
        if moved or CLOCK.monotonic() > deadline:
            return now
        _pause()


def _pause() -> None:
    """Let things go on."""
    threading.Event().wait(LOOK_S)


# --- drain ----------------------------------------------------------------------------------------


def run_drain(
    session: Session,
    broker: str,
    *,
    undo: bool,
    dry_run: bool,
    wait: bool,
    force: bool,
    reason: str,
    timeout_s: float,
) -> int:
    """Empty a broker, or (`undo`) let it take bundles again; the exit code."""
    rest, screen, path = session.rest, session.screen, f"/magnetar/v1/brokers/{broker}/cordon"
    if undo:
        rest.delete(path)
        screen.done(f"{broker} takes bundles again", broker=broker)
        return 0
    status = rest.get("/magnetar/v1/status")
    if dry_run:
        return _plan(session, broker, status)
    rest.put(path, {"drain": True, "reason": reason, "force": force})
    if not wait:
        screen.done(
            f"{broker} is being drained; `magnetar status` shows how far it is",
            broker=broker,
            left=len(_left(status, broker)),
        )
        return 0
    started, shown = CLOCK.monotonic(), -1
    total = len(_left(status, broker))
    while left := _left(status, broker):
        if len(left) != shown:
            shown = len(left)
            screen.note(f"{broker}: {total - shown} of {total} bundles moved")
        if CLOCK.monotonic() - started > timeout_s:
            value = {"broker": broker, "left": left, "drained": False}
            screen.show(
                value,
                lambda: screen.line(
                    f"{broker} still has {len(left)} bundles after {timeout_s:.0f} s: "
                    f"{', '.join(left[:5])}\n"
                    f"  The cordon stands and the drain goes on; `magnetar explain {left[0]}` says "
                    "what holds one up"
                ),
            )
            return REFUSED
        _pause()
        status = rest.get("/magnetar/v1/status")
        total = max(total, len(_left(status, broker)))
    screen.done(
        f"{broker} is empty; it takes no bundles until `magnetar drain {broker} --undo`",
        broker=broker,
        moved=total,
        left=[],
        drained=True,
    )
    return 0


def _left(status: dict[str, Any], broker: str) -> list[str]:
    return [
        row["bundle"]
        for row in status["bundles"]
        if broker_of(row["owner"]) == broker and row["state"] != "Deleted"
    ]


def _plan(session: Session, broker: str, status: dict[str, Any]) -> int:
    """What a drain would do."""
    names = [row["broker"] for row in status["brokers"]]
    if broker not in names:
        raise Refused(
            NOT_FOUND, f"there is no live broker {broker}", f"the live ones are {', '.join(names)}"
        )
    candidates = [
        row["broker"]
        for row in status["brokers"]
        if row["state"] == "serving" and row["broker"] != broker
    ]
    leaving = _left(status, broker)
    value = {
        "broker": broker,
        "bundles": leaving,
        "candidates": candidates,
        "possible": bool(candidates),
    }

    def render() -> None:
        session.screen.line(
            f"{len(leaving)} bundles would leave {broker}"
            + (f" for {', '.join(candidates)}" if candidates else "")
        )
        for name in leaving:
            session.screen.line(f"  {name}")
        if not candidates:
            session.screen.line("no other broker takes bundles: start one, or lift a cordon, first")

    session.screen.show(value, render)
    return 0 if candidates else REFUSED
