"""`magnetar topics`.

Owns: list, create, delete, partitions, stats, watermarks, peek, compact, terminate, unload of topics. Imports: typer,
rest, screen; the client only to peek. Invariant: on a partitioned topic a command means all its
partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from magnetar.amounts import size_text
from magnetar.cli.failures import CommandFailed
from magnetar.cli.names import namespace_of, pairs_of, topic_of
from magnetar.cli.rest import Rest, topic_path
from magnetar.cli.screen import Screen
from magnetar.cli.session import Session, connected, group
from magnetar.names import TopicName

Topic = Annotated[str, typer.Argument(help="Topic name; short names are in public/default.")]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Even while it is in use: its clients are sent away.")
]

COMPACTION_POLL_S = 0.2
COMPACTION_WORDS = {"NOT_RUN": "not run", "RUNNING": "begun", "SUCCESS": "done"}

topics = group("List, create, delete, peek at and unload topics.")


@topics.command("list")
@connected
def list_(
    session: Session,
    namespace: Annotated[str, typer.Argument(help="tenant/namespace.")] = "public/default",
    every_partition: Annotated[
        bool, typer.Option("--partitions", help="Name partitions one by one.")
    ] = False,
    non_persistent: Annotated[
        bool, typer.Option("--non-persistent", help="Non-persistent topics as well.")
    ] = False,
) -> None:
    """Topics of a namespace."""
    name = namespace_of(namespace)
    mode = "ALL" if non_persistent else "PERSISTENT"
    used = [
        TopicName.parse(found)
        for found in session.rest.get(f"/admin/v2/namespaces/{name}/topics", {"mode": mode})
    ]
    domains = ("persistent", "non-persistent") if non_persistent else ("persistent",)
    partitioned = {
        found
        for domain in domains
        for found in session.rest.get(f"/admin/v2/{domain}/{name}/partitioned")
    }
    rows = [
        {"topic": found, "partitions": partitions_of(session.rest, TopicName.parse(found))}
        for found in sorted(partitioned)
    ]
    if every_partition:
        rows = []
    rows += [
        {"topic": str(topic), "partitions": 0}
        for topic in used
        if every_partition or str(topic.base) not in partitioned
    ]
    rows.sort(key=lambda row: str(row["topic"]))
    session.screen.show(
        rows,
        lambda: (
            session.screen.table(
                ("topic", "partitions"), [(row["topic"], row["partitions"] or "-") for row in rows]
            )
            if rows
            else session.screen.line(f"namespace {name} has no topics")
        ),
    )


def partitions_of(rest: Rest, topic: TopicName) -> int:
    """Number of partitions, 0 for a topic without. Raises Refused if it does not exist."""
    return (
        int(rest.get(topic_path(topic, "/partitions"))["partitions"]) if topic.partition < 0 else 0
    )


@topics.command()
@connected
def create(
    session: Session,
    topic: Topic,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, help="0 = a topic without partitions.")
    ] = 0,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="name=value; may be repeated.")
    ] = None,
) -> None:
    """Create a topic."""
    name, given = topic_of(topic), pairs_of(properties, "--property")
    if partitions:
        session.rest.put(
            topic_path(name, "/partitions"),
            {"partitions": partitions, "properties": given} if given else partitions,
        )
    else:
        session.rest.put(topic_path(name), given or None)
    session.screen.done(
        f"{name} created{f' with {partitions} partitions' if partitions else ''}",
        topic=str(name),
        partitions=partitions,
    )


@topics.command()
@connected
def delete(session: Session, topic: Topic, force: Force = False) -> None:
    """Delete a topic with everything in it."""
    name = topic_of(topic)
    partitioned = partitions_of(session.rest, name) > 0
    session.rest.delete(topic_path(name, "/partitions" if partitioned else ""), {"force": force})
    session.screen.done(f"{name} deleted", topic=str(name))


@topics.command()
@connected
def partitions(
    session: Session,
    topic: Topic,
    grow_to: Annotated[
        int | None, typer.Option("--set", min=1, help="Grow to so many; it cannot shrink.")
    ] = None,
) -> None:
    """Show or raise the number of partitions."""
    name = topic_of(topic)
    if grow_to is not None:
        session.rest.post(topic_path(name, "/partitions"), grow_to)
    count = partitions_of(session.rest, name)
    sentence = f"{name} has {count} partitions" if count else f"{name} has no partitions"
    session.screen.show(
        {"topic": str(name), "partitions": count}, lambda: session.screen.line(sentence)
    )


@topics.command()
@connected
def stats(
    session: Session,
    topic: Topic,
    internal: Annotated[bool, typer.Option("--internal", help="Ledgers and cursors.")] = False,
) -> None:
    """What is in a topic, who publishes and who is behind."""
    name = topic_of(topic)
    if internal:
        found = session.rest.get(topic_path(name, "/internalStats"))
        session.screen.show(found, lambda: _render_internal(session.screen, name, found))
        return
    count = partitions_of(session.rest, name)
    found = session.rest.get(topic_path(name, "/partitioned-stats" if count else "/stats"))
    session.screen.show(found, lambda: render_stats(session.screen, name, count, found))


def render_stats(screen: Screen, name: TopicName, count: int, stats: Mapping[str, Any]) -> None:
    """Tables of a topic's statistics."""
    screen.facts(
        (
            ("topic", name),
            ("partitions", count or "-"),
            ("served by", stats.get("ownerBroker", "its partitions' owners" if count else None)),
            ("stored", size_text(stats["storageSize"])),
            (
                "in",
                f"{stats['msgInCounter']} messages, {size_text(stats['bytesInCounter'])} since it "
                "was loaded",
            ),
            (
                "out",
                f"{stats['msgOutCounter']} messages, {size_text(stats['bytesOutCounter'])} since "
                "it was loaded",
            ),
            ("producers", len(stats["publishers"])),
        )
    )
    screen.line()
    render_subscriptions(screen, stats["subscriptions"])


def render_subscriptions(screen: Screen, subscriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """One line for each subscription."""
    if not subscriptions:
        screen.line("no subscriptions")
        return
    screen.table(
        ("subscription", "type", "backlog", "unacked", "delayed", "out msg/s", "consumers"),
        [
            (
                subscription,
                found["type"] or "-",
                found["msgBacklog"],
                found["unackedMessages"],
                found.get("msgDelayed", 0),
                float(found.get("msgRateOut", 0)),
                len(found["consumers"]),
            )
            for subscription, found in sorted(subscriptions.items())
        ],
    )


def _render_internal(screen: Screen, name: TopicName, stats: Mapping[str, Any]) -> None:
    screen.facts(
        (
            ("topic", name),
            ("state", stats["state"]),
            ("entries", stats["numberOfEntries"]),
            ("stored", size_text(stats["totalSize"])),
            ("last confirmed", stats["lastConfirmedEntry"]),
        )
    )
    screen.line()
    screen.table(
        ("ledger", "entries"), [(row["ledgerId"], row["entries"]) for row in stats["ledgers"]]
    )
    screen.line()
    screen.table(
        ("subscription", "mark-delete", "next read", "ranges behind it"),
        [
            (
                cursor,
                row["markDeletePosition"],
                row["readPosition"],
                row["totalNonContiguousDeletedMessagesRange"],
            )
            for cursor, row in sorted(stats["cursors"].items())
        ],
    )


@topics.command()
@connected
def watermarks(session: Session, topic: Topic) -> None:
    """Event-time watermarks of its subscriptions, and who holds them back."""
    name = topic_of(topic)
    found = session.rest.get(
        f"/magnetar/v1/watermarks/{name.namespace_name}/{quote(name.local, safe='')}"
    )
    session.screen.show(found, lambda: _render_watermarks(session.screen, name, found))


def _render_watermarks(
    screen: Screen, name: TopicName, found: Mapping[str, Mapping[str, Any]]
) -> None:
    if not found:
        screen.line(f"{name} has no durable subscriptions")
        return
    screen.table(
        ("subscription", "watermark", "bounded by", "active producers", "clamped"),
        [
            (
                subscription,
                "-" if row["watermark"] is None else row["watermark"],
                _holder_text(row["boundedBy"]),
                row["activeProducers"],
                row["clamped"],
            )
            for subscription, row in sorted(found.items())
        ],
    )


def _holder_text(held: Mapping[str, Any] | None) -> str:
    """The producer, or the transaction of one, that decides a watermark."""
    if held is None:
        return "-"
    at = "nothing asserted" if held["eventTime"] is None else f"at {held['eventTime']}"
    txn = f" in transaction {held['transaction']}" if "transaction" in held else ""
    return f"producer {held['producer']}{txn}, {at}"


@topics.command()
@connected
def peek(
    session: Session,
    topic: Topic,
    subscription: Annotated[
        str,
        typer.Option("--subscription", "-s", help="What it gets next; default: the topic's first."),
    ] = "",
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=10_000, help="At most so many messages.")
    ] = 1,
) -> None:
    """Look at messages without taking them."""
    from magnetar.cli.peeking import run_peek

    name = topic_of(topic)
    run_peek(
        session,
        [name.with_partition(index) for index in range(partitions_of(session.rest, name))]
        or [name],
        subscription,
        count,
    )


@topics.command()
@connected
def compact(
    session: Session,
    topic: Topic,
    status: Annotated[
        bool, typer.Option("--status", help="Show what became of the last one, begin none.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Until it has ended.")] = False,
) -> None:
    """Keep the latest message of each key in a view beside the topic."""
    name = topic_of(topic)
    path = topic_path(name, "/compaction")
    if not status:
        session.rest.put(path)
    found = session.rest.get(path)
    while wait and found["status"] == "RUNNING":
        threading.Event().wait(COMPACTION_POLL_S)
        found = session.rest.get(path)
    if found["status"] == "ERROR":
        raise CommandFailed(f"the compaction of {name} has failed: {found['lastError']}")
    session.screen.show(
        {"topic": str(name), **found},
        lambda: session.screen.line(f"compaction of {name}: {COMPACTION_WORDS[found['status']]}"),
    )


@topics.command()
@connected
def terminate(session: Session, topic: Topic) -> None:
    """Let nothing more be published."""
    name = topic_of(topic)
    count = partitions_of(session.rest, name)
    parts = [name.with_partition(index) for index in range(count)] or [name]
    last = {str(part): session.rest.post(topic_path(part, "/terminate")) for part in parts}
    positions = ", ".join(f"{found['ledgerId']}:{found['entryId']}" for found in last.values())
    session.screen.done(f"{name} terminated, last message {positions}", topic=str(name), last=last)


@topics.command()
@connected
def unload(
    session: Session,
    topic: Topic,
    destination: Annotated[
        str,
        typer.Option(
            "--to", help="Broker that gets its bundle, and keeps it; default: the least loaded."
        ),
    ] = "",
) -> None:
    """Move its bundle to another broker (`magnetar unload`)."""
    from magnetar.cli.moving import run_unload

    run_unload(session, topic, destination)
