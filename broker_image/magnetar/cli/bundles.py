"""`magnetar bundles`.

Owns: list, owner, split, merge, unload, pin, unpin of bundles. Imports: typer, rest, screen, moving.
Invariant: looking at a bundle assigns it to no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from magnetar.amounts import age_text
from magnetar.cli.failures import WrongUsage
from magnetar.cli.moving import boundaries_of, bundle_path, run_unload
from magnetar.cli.names import namespace_of, target_of
from magnetar.cli.rest import Rest, namespace_path
from magnetar.cli.screen import broker_of
from magnetar.cli.session import Session, connected, group
from magnetar.clock import SystemClock
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of, bundles_of

Bundle = Annotated[str, typer.Argument(help="tenant/namespace/0x00000000_0x40000000.")]
UNUSED: Mapping[str, Any] = {
    "state": "unused",
    "epoch": 0,
    "owner": "",
    "reason": "no topic of it was used yet",
    "pinned_until_ms": 0,
}
CLOCK = SystemClock()

bundles = group("List, split, merge and unload parts of namespaces.")


@bundles.command("list")
@connected
def list_(
    session: Session,
    namespace: Annotated[str, typer.Argument(help="tenant/namespace; default: all.")] = "",
    broker: Annotated[str, typer.Option("--broker", help="Only those of this broker.")] = "",
) -> None:
    """Bundles, their states and their owners."""
    known = {row["bundle"]: row for row in session.rest.get("/magnetar/v1/status")["bundles"]}
    if namespace:
        name = namespace_of(namespace)
        wanted = [str(found) for found in bundles_of(name, boundaries_of(session.rest, name))]
    else:
        wanted = sorted(known)
    rows = [{"bundle": found, **UNUSED, **known.get(found, {})} for found in wanted]
    rows = [row for row in rows if not broker or broker_of(row["owner"]) == broker]
    session.screen.show(
        rows,
        lambda: session.screen.table(
            ("bundle", "state", "epoch", "owner", "pinned for", "reason"),
            [
                (
                    row["bundle"],
                    row["state"],
                    row["epoch"],
                    broker_of(row["owner"]) or "-",
                    _pinned_for(row),
                    row["reason"],
                )
                for row in rows
            ],
        ),
    )


def _pinned_for(row: Mapping[str, Any]) -> str:
    """How much longer load balancing leaves a bundle where it is."""
    left_ms = row["pinned_until_ms"] - CLOCK.wall_ms()
    return age_text(left_ms / 1000) if left_ms > 0 else "-"


def _bundle(rest: Rest, text: str) -> BundleName:
    """The bundle that a bundle's name or a topic stands for."""
    target = target_of(text)
    if isinstance(target, NamespaceName):
        raise WrongUsage(
            f"{text} is a namespace",
            f"name a topic, or one of the bundles that `magnetar bundles list {text}` shows",
        )
    if isinstance(target, TopicName):
        return bundle_of(
            target.namespace_name, boundaries_of(rest, target.namespace_name), target.hash
        )
    return target


@bundles.command()
@connected
def owner(
    session: Session, target: Annotated[str, typer.Argument(help="A bundle or a topic.")]
) -> None:
    """Who serves a bundle, or the bundle of a topic."""
    name = str(_bundle(session.rest, target))
    status = session.rest.get("/magnetar/v1/status")
    row = next(
        (row for row in status["bundles"] if row["bundle"] == name), {"bundle": name, **UNUSED}
    )
    serving = next(
        (found for found in status["brokers"] if found["incarnation"] == row["owner"]), None
    )
    value = {
        **row,
        "broker": broker_of(row["owner"]),
        "service_url": serving["service_url"] if serving is not None else "",
    }
    where = f"{value['broker']} ({value['service_url'] or 'gone'})" if row["owner"] else "no owner"
    session.screen.show(value, lambda: session.screen.line(f"{name}: {row['state']}, {where}"))


@bundles.command()
@connected
def split(
    session: Session,
    bundle: Bundle,
    boundaries: Annotated[
        list[str] | None,
        typer.Option(
            "--at", help="Boundary, such as 0x20000000; may be repeated. Default: the middle."
        ),
    ] = None,
) -> None:
    """Split a bundle in two or more; its topics are served all the while."""
    name = _bundle(session.rest, bundle)
    query = (
        {"splitAlgorithmName": "specified_positions_divide"}
        if boundaries
        else {"splitAlgorithmName": "range_equally_divide"}
    )
    body = [_hash(text) for text in boundaries] if boundaries else None
    session.rest.put(namespace_path(name.namespace, f"/{name.range}/split"), body, query)
    after = boundaries_of(session.rest, name.namespace)
    children = [
        str(found)
        for found in bundles_of(name.namespace, after)
        if name.low <= found.low and found.high <= name.high
    ]
    session.screen.done(
        f"{name} split into {', '.join(children)}", bundle=str(name), children=children
    )


@bundles.command()
@connected
def merge(session: Session, bundle: Bundle) -> None:
    """Make one bundle of this one and its right neighbour; topics are served all the while. One
    broker must serve both."""
    name = _bundle(session.rest, bundle)
    merged = session.rest.put(bundle_path(name, "merge"))["bundle"]
    session.screen.done(f"{name} merged into {merged}", bundle=str(name), merged=merged)


def _hash(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError as error:
        raise WrongUsage(
            f"--at: {text!r} is not a number", "write a hash, such as 0x20000000"
        ) from error


@bundles.command()
@connected
def unload(
    session: Session,
    bundle: Bundle,
    destination: Annotated[
        str,
        typer.Option("--to", help="Broker that gets it, and keeps it; default: the least loaded."),
    ] = "",
) -> None:
    """Move a bundle to another broker (`magnetar unload`)."""
    run_unload(session, bundle, destination)


@bundles.command()
@connected
def pin(
    session: Session,
    target: Annotated[str, typer.Argument(help="A bundle or a topic.")],
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Default: the setting move_pin_s, a day.")
    ] = None,
) -> None:
    """Have load balancing leave a bundle with its owner, unless that drains, stops or dies."""
    name = _bundle(session.rest, target)
    session.rest.put(
        bundle_path(name, "pin"), query={"seconds": seconds} if seconds is not None else None
    )
    session.screen.done(
        f"{name} is pinned; `magnetar bundles list {name.namespace}` shows for how long",
        bundle=str(name),
    )


@bundles.command()
@connected
def unpin(
    session: Session, target: Annotated[str, typer.Argument(help="A bundle or a topic.")]
) -> None:
    """Let load balancing move a bundle again."""
    name = _bundle(session.rest, target)
    session.rest.delete(bundle_path(name, "pin"))
    session.screen.done(f"{name} is not pinned any more", bundle=str(name))
