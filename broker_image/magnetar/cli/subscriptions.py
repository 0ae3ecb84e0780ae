"""`magnetar subscriptions`.

Owns: list, create, delete, reset, skip, clear and stats of subscriptions. Imports: typer, rest,
screen. Invariant: on a partitioned topic a command acts on the subscription of every partition.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magnetar.cli.failures import Refused, WrongUsage
from magnetar.cli.names import EARLIEST, LATEST, pairs_of, start_of, topic_of
from magnetar.cli.rest import NOT_FOUND, subscription_path, topic_path
from magnetar.cli.session import Session, connected, group
from magnetar.cli.topics import Force, Topic, partitions_of, render_subscriptions

Subscription = Annotated[str, typer.Argument(help="Subscription name.")]

subscriptions = group("List, create, delete, reset and skip subscriptions.")


def _position(position: tuple[int, int]) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1]}


@subscriptions.command("list")
@connected
def list_(session: Session, topic: Topic) -> None:
    """Durable subscriptions of a topic."""
    name = topic_of(topic)
    found = session.rest.get(topic_path(name, "/subscriptions"))
    session.screen.show(
        found,
        lambda: session.screen.line("\n".join(found) if found else f"{name} has no subscriptions"),
    )


@subscriptions.command()
@connected
def create(
    session: Session,
    topic: Topic,
    subscription: Subscription,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, latest, a message id (ledger:entry) or a time (15m, 2024-05-01).",
        ),
    ] = "latest",
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="name=value; may be repeated.")
    ] = None,
) -> None:
    """Create a subscription before anybody consumes with it."""
    name, place = topic_of(topic), start_of(start)
    body: dict[str, Any] = (
        {"properties": given} if (given := pairs_of(properties, "--property")) else {}
    )
    if not isinstance(place, int):
        body |= _position(place)
    session.rest.put(subscription_path(name, subscription), body or None)
    if isinstance(place, int):
        session.rest.post(subscription_path(name, subscription, f"/resetcursor/{place}"))
    session.screen.done(
        f"subscription {subscription} of {name} created, from {start}",
        topic=str(name),
        subscription=subscription,
    )


@subscriptions.command()
@connected
def delete(
    session: Session, topic: Topic, subscription: Subscription, force: Force = False
) -> None:
    """Delete a subscription: what only it had not acknowledged may go."""
    name = topic_of(topic)
    session.rest.delete(subscription_path(name, subscription), {"force": force})
    session.screen.done(
        f"subscription {subscription} of {name} deleted", topic=str(name), subscription=subscription
    )


@subscriptions.command()
@connected
def reset(
    session: Session,
    topic: Topic,
    subscription: Subscription,
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, a message id (ledger:entry), or a time: 15m (ago), "
            "2024-05-01T12:00.",
        ),
    ],
) -> None:
    """Go back or forward: consumers get what follows."""
    name, place = topic_of(topic), start_of(target)
    if place == LATEST:
        session.rest.post(subscription_path(name, subscription, "/skip_all"))
    elif place == EARLIEST or isinstance(place, int):
        session.rest.post(
            subscription_path(
                name, subscription, f"/resetcursor/{place if isinstance(place, int) else 0}"
            )
        )
    else:
        assert isinstance(place, tuple)
        if partitions_of(session.rest, name):
            raise WrongUsage(
                f"{name} is partitioned, and a message id belongs to one partition",
                f"name the partition, such as {name.with_partition(0)}, or give a time",
            )
        session.rest.post(subscription_path(name, subscription, "/resetcursor"), _position(place))
    session.screen.done(
        f"subscription {subscription} of {name} reset to {target}",
        topic=str(name),
        subscription=subscription,
    )


@subscriptions.command()
@connected
def skip(
    session: Session,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many entries.")] = 1,
) -> None:
    """Skip the next entries."""
    name = topic_of(topic)
    session.rest.post(subscription_path(name, subscription, f"/skip/{count}"))
    session.screen.done(
        f"subscription {subscription} of {name}: {count} skipped",
        topic=str(name),
        subscription=subscription,
        count=count,
    )


@subscriptions.command()
@connected
def clear(session: Session, topic: Topic, subscription: Subscription) -> None:
    """Skip the whole backlog."""
    name = topic_of(topic)
    session.rest.post(subscription_path(name, subscription, "/skip_all"))
    session.screen.done(
        f"subscription {subscription} of {name}: backlog cleared",
        topic=str(name),
        subscription=subscription,
    )


@subscriptions.command()
@connected
def stats(
    session: Session,
    topic: Topic,
    subscription: Annotated[str, typer.Argument(help="One of them; default: all.")] = "",
) -> None:
    """Backlogs, types and consumers."""
    name = topic_of(topic)
    count = partitions_of(session.rest, name)
    found = session.rest.get(topic_path(name, "/partitioned-stats" if count else "/stats"))[
        "subscriptions"
    ]
    if subscription:
        if subscription not in found:
            raise Refused(
                NOT_FOUND,
                f"{name} has no subscription {subscription}",
                f"`magnetar subscriptions list {name}` shows those it has",
            )
        found = {subscription: found[subscription]}

    def render() -> None:
        render_subscriptions(session.screen, found)
        consumers = [
            (owner, row) for owner, stats in sorted(found.items()) for row in stats["consumers"]
        ]
        if consumers:
            session.screen.line()
            session.screen.table(
                ("subscription", "consumer", "address", "permits", "unacked", "out msg/s"),
                [
                    (
                        owner,
                        row["consumerName"],
                        row["address"],
                        row["availablePermits"],
                        row["unackedMessages"],
                        float(row["msgRateOut"]),
                    )
                    for owner, row in consumers
                ],
            )

    session.screen.show(found, render)
