"""Moving a subscription to another position.

Owns: SEEK by id and by time, the reset of a subscription, finding a position by publish time.
Imports: wire, topics, server siblings. Source: facts on protocol semantics 2.1 (rollback), 2.7, 2.9
(a chunked message is sought by its first chunk). Invariants: consumers are sent away before the
cursor moves and the cursor is durable before anybody hears of it; a reader's subscription outlives
the moment in which its consumer comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.commands.sessions import consumer_of
from magnetar.broker.transactions.positions import first_from
from magnetar.clock import elapsed_ms
from magnetar.errors import InvalidRequest, ServiceNotReady
from magnetar.topics.acksets import mask_of_words
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import readable_entry

if TYPE_CHECKING:
    from magnetar.broker.connections.connection import Connection
    from magnetar.broker.ports import ServedTopic
    from magnetar.broker.topics.subscription_host import SubscriptionHost


async def seek(connection: Connection, request: api.CommandSeek) -> None:
    """SEEK. Raises InvalidRequest, ServiceNotReady, StorageError."""
    session = consumer_of(connection, request.consumer_id)
    if session is None:
        raise InvalidRequest("Consumer not found")
    host = session.subscription
    if not host.topic.name.persistent:
        return  # nothing is behind, and nothing ahead
    with host.still():
        if request.HasField("message_id"):
            await reset(host, *position_sought(host.topic, request.message_id))
        elif request.HasField("message_publish_time"):
            await reset(host, await first_published_at(host.topic, request.message_publish_time))
        else:
            raise InvalidRequest("SEEK has neither message_id nor message_publish_time; set one")


def position_sought(topic: ServedTopic, identifier: api.MessageIdData) -> tuple[int, int | None]:
    """Ordinal of the entry to deliver next, which is the next one that exists if the id is of none,
    and which of its messages.

    Raises InvalidRequest for more of them than an ack set may name.
    """
    if identifier.HasField("first_chunk_message_id"):
        identifier = identifier.first_chunk_message_id
    position = first_from(topic, commands.position_of(identifier))
    ordinal = topic.core.ledgers.clamp(position)
    mask = None
    most = topic.context.settings.ack_words_max
    if len(identifier.ack_set) > most:
        raise InvalidRequest(
            f"ack_set of {len(identifier.ack_set)} words is longer than ack_set_words_max={most}; "
            "seek without it"
        )
    if identifier.ack_set and topic.core.ledgers.find(position) == ordinal:
        mask = mask_of_words(identifier.ack_set)
    return ordinal, mask


async def reset(host: SubscriptionHost, ordinal: int, mask: int | None = None) -> None:
    """Send the consumers away, make `ordinal` the next entry to deliver, durably.

    `mask` tells which of its messages are still to be delivered. Raises ServiceNotReady while the
    topic is being unloaded or the subscription is gone, StorageError.
    """
    topic = host.topic
    if topic.frozen or topic.subscriptions.get(host.core.name) is not host:
        raise ServiceNotReady(
            f"topic {topic.name} is being unloaded; seek again after the reconnect"
        )
    host.send_away()
    host.core.reset(ordinal, mask)
    if host.core.durable:
        topic.bundle.write_cursor(host, lambda: None)
        await topic.context.log.barrier()
    host.schedule()


async def first_published_at(
    topic: ServedTopic, publish_ms: int, low: int = 0, high: int | None = None
) -> int:
    """Ordinal behind the last entry published (by its client's clock) before `publish_ms`; the
    first one if there is none.

    Publish times are taken to rise, as Pulsar does: a bisection that reads some twenty entries, of
    those from `low` up to `high` (the end). Those of transactions do not: they were sent before
    their commit gave them their place. So only plain entries that can be read decide, and between
    two of these what is known to have come before `publish_ms`: what was published since is behind
    the answer, and of transactions perhaps more (by our wall clock: one that is wrong moves the
    answer between these two). Raises StorageError.
    """
    ledgers = topic.core.ledgers
    high = behind = ledgers.end if high is None else high
    if not topic.name.persistent:
        return ledgers.end
    while (low := max(low, ledgers.first)) < high:  # the topic may be trimmed meanwhile
        middle = (low + high) // 2
        probed = await _first_dated(topic, middle, high)
        if probed is not None and probed.published_ms < publish_ms:
            low = probed.ordinal + 1
        else:
            high, behind = middle, behind if probed is None else probed.ordinal
    if low < behind:  # none of these says when it was published
        clock = topic.context.clock
        topic.core.age(elapsed_ms(clock))
        since_ms = elapsed_ms(clock) - (clock.wall_ms() - publish_ms)
        low = max(low, min(behind, topic.core.ages.older_than(since_ms - 1)))
    return low


class _Dated(NamedTuple):
    """An entry that says when it was published."""

    ordinal: int
    published_ms: int


async def _first_dated(topic: ServedTopic, ordinal: int, end: int) -> _Dated | None:
    """The first entry of [ordinal, end) that no transaction has published and whose metadata can
    be read."""
    found = _first_plain(topic, ordinal, end)
    while found is not None:
        published_ms = await publish_ms_of(topic, found)
        if published_ms is not None:
            return _Dated(found, published_ms)
        found = _first_plain(topic, max(found + 1, topic.core.ledgers.first), end)
    return None


def _first_plain(topic: ServedTopic, ordinal: int, end: int) -> int | None:
    """The first entry of [ordinal, end) that no transaction has published."""
    ledgers = topic.core.ledgers
    if topic.transactions is None:
        return ordinal if ordinal < end else None
    while ordinal < end:
        committed = topic.transactions.buffer.links.unbroken(
            ledgers.position(ordinal), end - ordinal
        )
        if not committed:
            return ordinal
        ordinal += committed
    return None


async def publish_ms_of(topic: ServedTopic, ordinal: int) -> int | None:
    """When an entry was published; None if its metadata cannot be read."""
    request = ReadRequest(ordinal, 1)
    found = topic.tail(request)
    entries = found[0] if found is not None else (await topic.read(request))[0]
    entry = readable_entry(entries[0])
    return entry.metadata.publish_time if entry is not None else None
