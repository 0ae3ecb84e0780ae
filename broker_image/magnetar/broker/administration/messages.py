"""Single messages, for administrators who look into a topic.

Owns: peeking at the entries that a subscription delivers next, examining a topic from either end,
reading an entry by its id, finding the first id at a time, and the headers that carry an entry's metadata.
Imports: topics, wire, errors. The payload is the body, uncompressed; a batch comes
as a whole, with the number of its messages. Invariants: nothing is acknowledged and no cursor
moves; whatever a client has put into its metadata becomes valid headers.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.broker.administration.statistics import message_id
from magnetar.broker.administration.subscriptions import no_subscription
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.expiry import write
from magnetar.clock import elapsed_ms, iso8601
from magnetar.errors import (
    InUse,
    InvalidRequest,
    TopicNotFound,
    UnsupportedCommand,
)
from magnetar.names import TopicName
from magnetar.topics.ledgers import EARLIEST, Position
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.entries import Entry, readable_entry, uncompressed

_TIME_MS_MAX = 253_402_300_799_000
"""The last second of the year 9999; what is beyond is shown as a number."""
_TEXT = ("producer_name", "replicated_from", "partition_key", "encryption_algo", "uuid")
_NUMBERS = (
    "sequence_id",
    "uncompressed_size",
    "marker_type",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
    "num_chunks_from_msg",
    "total_chunk_msg_size",
    "chunk_id",
)
_FLAGS = ("partition_key_b64_encoded", "null_value", "null_partition_key")
_BYTES = (
    ("ordering_key", "Base64-ordering-key"),
    ("schema_version", "Base64-schema-version-b64encoded"),
)
_TIMES = ("publish_time", "event_time", "deliver_at_time")


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """An entry as REST shows it: what its metadata says, and its payload, uncompressed."""

    headers: Mapping[str, str]
    payload: Buffer


TRY_PARTITION = ", please try do it on specific topic partition"
TRY_EXAMINE = ", please try examine message on specific topic partition"


class Messages:
    """Messages of topics, one at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def peek(self, topic: TopicName, subscription: str, number: int) -> FoundMessage:
        """The `number`-th (from 1) entry that is not acknowledged; an absent subscription is
        created, at the first message. Raises TopicNotFound if there are fewer."""
        if number < 1:
            raise InvalidRequest(
                f"position: {number} is out of range; 1 is the first message that is not "
                "acknowledged"
            )
        host = await self._readable(topic, "Peek messages")
        found = host.subscriptions.get(subscription)
        if found is None:  # as Pulsar's: peeking is subscribing
            found = host.open_subscription(subscription, EARLIEST, durable=True, properties={})
            await write(found)
        left, cursor = number, found.core.cursor
        for low, high in cursor.unacknowledged(cursor.mark_delete, cursor.end):
            if left <= high - low:
                return await _message(host, low + left - 1)
            left -= high - low
        raise TopicNotFound(
            "Message not found",
            f"subscription {subscription} has {number - left} messages before it, not {number}",
        )

    async def examine(self, topic: TopicName, origin: str, number: int) -> FoundMessage:
        """The `number`-th entry from the beginning ("earliest") or from the end ("latest"); the
        last one in that direction if there are fewer.

        Raises InUse for a topic without entries.
        """
        if origin not in ("earliest", "latest"):
            raise InvalidRequest(
                f"initialPosition: {origin!r} is not known; use earliest or latest"
            )
        host = await self._readable(topic, "Examine messages", TRY_EXAMINE)
        first, end = host.core.ledgers.first, host.core.ledgers.end
        if first == end:
            raise InUse(
                "Could not examine messages due to the total message is zero", "publish one first"
            )
        offset = min(max(number, 1), end - first) - 1
        return await _message(host, first + offset if origin == "earliest" else end - 1 - offset)

    async def message(self, topic: TopicName, position: tuple[int, int]) -> FoundMessage:
        """The entry with this id. Raises TopicNotFound."""
        host = await self._readable(
            topic, "GetMessageById", words="GetMessageById is not allowed on partitioned-topic"
        )
        ordinal = host.core.ledgers.find(position)
        if ordinal is None:
            raise TopicNotFound(
                "Message id not found", f"topic {topic} has no entry {position[0]}:{position[1]}"
            )
        return await _message(host, ordinal)

    async def message_id_at(self, topic: TopicName, timestamp_ms: int) -> dict[str, Any]:
        """The id of the first message published at this time or later; behind the last one if
        there is none."""
        host = await self._readable(topic, "Get message ID by timestamp", TRY_PARTITION)
        ledgers = host.core.ledgers
        ordinal = await first_published_at(host, timestamp_ms)
        if ordinal < ledgers.end:
            ledger, entry = ledgers.position(ordinal)
        else:
            ledger, entry = ledgers.last_position
            entry += ledger >= 0
        return message_id(Position(ledger, entry), host.partition)

    async def backlog_size(self, topic: TopicName, position: tuple[int, int]) -> int:
        """About how many bytes follow `position`."""
        host = await self._readable(
            topic,
            "calculate backlog size",
            words="calculate backlog size is not allowed for partitioned-topic",
        )
        core = host.core
        core.age(elapsed_ms(host.context.clock))
        return core.ages.bytes_from(core.ledgers.ordinal_after(position), core.ledgers.end)

    async def analyze_backlog(self, topic: TopicName, subscription: str) -> dict[str, Any]:
        """Entries that are not acknowledged, as they are counted all the time: nothing is read,
        so a batch counts as one message. Nothing is filtered."""
        host = await self._readable(topic, "Analyze backlog", TRY_PARTITION)
        found = host.subscriptions.get(subscription)
        if found is None:
            raise no_subscription(topic, subscription)
        others = ("filterRejected", "filterRescheduled")
        return {
            **dict.fromkeys(
                ("entries", "messages", "filterAcceptedEntries", "filterAcceptedMessages"),
                found.core.backlog,
            ),
            **{f"{other}{unit}": 0 for other in others for unit in ("Entries", "Messages")},
            "markerMessages": 0,
            "aborted": False,
        }

    async def _readable(
        self, topic: TopicName, what: str, more: str = "", *, words: str = ""
    ) -> TopicHost:
        """The topic, if its messages can be read one by one. Raises UnsupportedCommand if not, of
        a partitioned topic in Pulsar's `words` if they are others, or with `more` of them."""
        if not topic.persistent:
            raise UnsupportedCommand(
                f"{what} on a non-persistent topic is not allowed", "it keeps no message"
            )
        if topic.partition < 0 and await self._site.broker.service.partitions(topic):
            raise UnsupportedCommand(
                words or f"{what} on a partitioned topic is not allowed{more}",
                f"ask for one of its partitions ({topic}-partition-0)",
            )
        return await self._site.host(topic)


async def _message(host: TopicHost, ordinal: int) -> FoundMessage:
    data = await host.reader.entry(ordinal)
    position = host.core.ledgers.position(ordinal)
    identifier = {"X-Pulsar-Message-ID": f"{position.ledger}:{position.entry}"}
    entry = readable_entry(data)
    if entry is None:
        return FoundMessage(identifier, data)
    payload: Buffer = entry.payload
    if not entry.metadata.encryption_keys and entry.metadata.compression != api.NONE:
        payload = await asyncio.to_thread(uncompressed, entry)
    headers = {f"X-Pulsar-{name}": value for name, value in _headers(entry, len(payload))}
    if host.metadata is not None:
        broker_ms, index = host.metadata.values(
            await host.metadata.read(ordinal, 1), entry.message_count
        )
        if broker_ms is not None:
            headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] = iso8601(broker_ms)
        if index is not None:
            headers["X-Pulsar-Broker-Entry-METADATA-index"] = str(index)
    return FoundMessage({**identifier, **headers}, payload)


def _headers(entry: Entry, size: int) -> Iterator[tuple[str, str]]:
    """(name behind X-Pulsar-, value) of what an entry's metadata says."""
    metadata = entry.metadata
    given = {field.name: value for field, value in metadata.ListFields()}
    properties = _pairs(metadata.properties)
    if properties:
        yield "PROPERTY", json.dumps(properties)
    for name in _TIMES:
        if name in given:
            yield (
                name.replace("_", "-"),
                iso8601(given[name]) if 0 <= given[name] <= _TIME_MS_MAX else str(given[name]),
            )
    if entry.batched:
        yield "num-batch-message", str(metadata.num_messages_in_batch)
        yield "batch-size", str(size)
    for name in _TEXT + _NUMBERS:
        if name in given:
            yield name.replace("_", "-"), _text(given[name])
    for name in _FLAGS:
        if name in given:
            yield name.replace("_", "-"), "true" if given[name] else "false"
    for name, header in _BYTES:
        if name in given:
            yield header, base64.b64encode(given[name]).decode()
    if metadata.compression != api.NONE:
        yield "compression", api.CompressionType.Name(metadata.compression)
    if metadata.replicate_to:
        yield "replicated-to", json.dumps([_plain(name) for name in metadata.replicate_to])
    yield "Is-Encrypted", "true" if metadata.encryption_keys else "false"
    if metadata.encryption_keys:
        keys = [
            {
                "key": _plain(key.key),
                "value": base64.b64encode(key.value).decode(),
                "metadata": _pairs(key.metadata),
            }
            for key in metadata.encryption_keys
        ]
        yield "Base64-encryption-keys", base64.b64encode(json.dumps(keys).encode()).decode()
        yield "Base64-encryption-param", base64.b64encode(metadata.encryption_param).decode()


def _pairs(pairs: Iterable[api.KeyValue]) -> dict[str, str]:
    return {_plain(pair.key): _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> str:
    """Text of a client, which protobuf transfers as bytes if it is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str:
    """A value for a header: one line of UTF-8, as its bytes."""
    return (
        "".join(char if char.isprintable() else "?" for char in _plain(value))
        .encode()
        .decode("latin-1")
    )
