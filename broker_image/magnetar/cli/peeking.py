"""`magnetar topics peek`.

Owns: reading messages beside a subscription without taking them. Imports: client, rest. Invariant:
nothing of the subscription changes: a reader of its own begins at the mark-delete position and
passes over what was acknowledged beyond.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from magnetar.cli.access import Access
from magnetar.cli.failures import Refused
from magnetar.cli.messages import line_of, value_of
from magnetar.cli.rest import NOT_FOUND, Rest, topic_path
from magnetar.cli.session import Session
from magnetar.client import EARLIEST, Message, MessageId
from magnetar.names import TopicName

_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


def run_peek(session: Session, topics: Sequence[TopicName], subscription: str, count: int) -> None:
    """Show the next `count` messages of a topic, partition by partition."""
    found: list[Message] = []
    for topic in topics:
        if len(found) < count:
            start, acknowledged = _start(session.rest, topic, subscription)
            owner = session.rest.get(
                f"/lookup/v2/topic{topic_path(topic).removeprefix('/admin/v2')}"
            )
            plain, secure = owner.get("brokerUrl", ""), owner.get("brokerUrlTls", "")
            url = (
                (secure or plain)
                if session.rest.urls[0].startswith("https:")
                else (plain or secure)
            )
            found += asyncio.run(
                _read(session.access, url, topic, start, acknowledged, count - len(found))
            )

    def render() -> None:
        for message in found:
            session.screen.line(line_of(message, session.screen.output))
        if not found:
            session.screen.line("no messages")

    session.screen.show([value_of(message) for message in found], render)


def _start(
    rest: Rest, topic: TopicName, subscription: str
) -> tuple[MessageId, Callable[[MessageId], bool]]:
    """Where to begin (exclusive), and what to pass over."""
    if not subscription:
        return EARLIEST, lambda _found: False
    cursor = rest.get(topic_path(topic, "/internalStats"))["cursors"].get(subscription)
    if cursor is None:
        raise Refused(
            NOT_FOUND,
            f"{topic} has no subscription {subscription}",
            f"`magnetar subscriptions list {topic}` shows those it has",
        )
    ledger, _, entry = cursor["markDeletePosition"].partition(":")
    ranges = [
        tuple(map(int, found)) for found in _RANGE.findall(cursor["individuallyDeletedMessages"])
    ]

    def acknowledged(found: MessageId) -> bool:
        return any(
            (low, after) < (found.ledger, found.entry) <= (high, last)
            for low, after, high, last in ranges
        )

    return MessageId(int(ledger), int(entry)), acknowledged


async def _read(
    access: Access,
    url: str,
    topic: TopicName,
    start: MessageId,
    acknowledged: Callable[[MessageId], bool],
    count: int,
) -> list[Message]:
    found: list[Message] = []
    async with access.client(url) as client:
        reader = await client.create_reader(str(topic), start, receiver_queue=min(count, 1000))
        while len(found) < count and await reader.has_message_available():
            message = await reader.receive()
            if not acknowledged(message.id):
                found.append(message)
        await reader.close()
    return found
