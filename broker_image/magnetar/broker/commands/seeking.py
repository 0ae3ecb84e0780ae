"""Moving a subscription to another position.

Owns: SEEK by id and by time, the reset of a subscription. Imports: wire, topics. Invariants:
consumers are closed before the cursor moves, and the cursor is durable before SEEK is answered; a
reader's subscription is kept while its consumer reconnects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.commands.sessions import attached_consumer
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.transactions.positions import first_from
from magnetar.errors import InvalidRequest, ServiceNotReady
from magnetar.topics.acksets import mask_of_words
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.connections.connection import Connection
    from magnetar.broker.ports import ServedTopic
    from magnetar.broker.topics.subscription_host import SubscriptionHost


async def seek(connection: Connection, request: api.CommandSeek) -> None:
    """SEEK. Raises InvalidRequest, ServiceNotReady, StorageError."""
    host = attached_consumer(connection, request.consumer_id).subscription
    if host.topic.name.persistent:  # else there is no other position
        await _seek(host, request)
    connection.queue(commands.success(request.request_id))


async def _seek(host: SubscriptionHost, request: api.CommandSeek) -> None:
    with host.still():
        if request.HasField("message_id"):
            await reset(host, *position_sought(host.topic, request.message_id, host.read_compacted))
        elif request.HasField("message_publish_time"):
            await reset(host, await _published_at(host, request.message_publish_time))
        else:
            raise InvalidRequest("SEEK has neither message_id nor message_publish_time; set one")


async def _published_at(host: SubscriptionHost, since_ms: int) -> int:
    """Where delivery of what was published since then begins. What a compacted view has of dropped
    entries may be as young, and comes as well where all that exists does."""
    ordinal, ledgers = await first_published_at(host.topic, since_ms), host.topic.core.ledgers
    return ledgers.floor if host.read_compacted and ordinal <= ledgers.first else ordinal


def position_sought(
    topic: ServedTopic, identifier: api.MessageIdData, reads_view: bool = False
) -> tuple[int, int | None]:
    """Ordinal of the entry to deliver next, which is the next one that exists (or a compacted view
    may have, for who `reads_view`) if the id is of none, and which of its messages.

    Raises InvalidRequest for more of them than an ack set may name.
    """
    if identifier.HasField("first_chunk_message_id"):
        identifier = identifier.first_chunk_message_id
    position = first_from(topic, commands.position_of(identifier))
    ledgers = topic.core.ledgers
    ordinal = ledgers.clamp_known(position) if reads_view else ledgers.clamp(position)
    mask = None
    most = topic.context.settings.ack_words_max
    if len(identifier.ack_set) > most:
        raise InvalidRequest(
            f"ack_set of {len(identifier.ack_set)} words is longer than ack_set_words_max={most}; "
            "seek without it"
        )
    if identifier.ack_set and ledgers.known(position) == ordinal:
        mask = mask_of_words(identifier.ack_set)
    return ordinal, mask


async def reset(host: SubscriptionHost, ordinal: int, mask: int | None = None) -> None:
    """Close the consumers and make `ordinal` the next entry to deliver, durably.

    `mask` has the bits of its messages that are still to be delivered. Raises ServiceNotReady while the
    topic is being unloaded or the subscription is gone, StorageError.
    """
    topic = host.topic
    if topic.frozen or topic.subscriptions.get(host.core.name) is not host:
        raise ServiceNotReady(
            f"topic {topic.name} is being unloaded; seek again after the reconnect"
        )
    if not host.read_compacted:
        ordinal = max(ordinal, topic.core.ledgers.first)
    host.send_away()
    host.core.reset(ordinal, mask)
    if host.core.durable:
        topic.bundle.write_cursor(host, lambda: None)
        await topic.context.log.barrier()
    if topic.watermarks is not None:
        topic.watermarks.sought(host)
    host.schedule()
