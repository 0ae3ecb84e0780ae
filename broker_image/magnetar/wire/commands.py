"""Commands, one by one: reading any command, and building what a broker sends.

Owns: the checks every inbound command passes, and one builder per broker-to-client command, each
returning a whole frame. Imports: errors, frames, the generated protocol. Pure. Commands by the
hundred are built in `runs`, a client's in `requests`. Source: Pulsar's protocol (direction and
meaning of every command). Invariants: a decoded command has a known type, its sub-message and every
required field; optional fields are set only when given, because clients distinguish unset from
default; ids of -1 travel as 2^64-1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar import __version__
from magnetar.errors import MagnetarError, ProtocolError, UnsupportedCommand, WireCode
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.frames import frame_of
from magnetar.wire.texts import broken_text

PROTOCOL_VERSION = 21
SERVER_VERSION = f"Pulsar Server4.2.4 (Magnetar {__version__})"
NO_REQUEST = -1
UNSIGNED_MASK = (1 << 64) - 1
Type = api.BaseCommand.Type
# Protobuf looks every number up by name, at several times the cost of an attribute; several are
# read per command.
for _name, _number in Type.items():
    setattr(Type, _name, _number)
FIELD_OF_TYPE: dict[int, str] = {number: name.lower() for name, number in Type.items()}


class Position(NamedTuple):
    """A place in a topic's log. EARLIEST is (-1, -1), LATEST is (2^63-1, 2^63-1)."""

    ledger: int
    entry: int


EARLIEST = Position(-1, -1)
LATEST = Position((1 << 63) - 1, (1 << 63) - 1)
DUPLICATE = Position(-1, -1)
"""Position in the receipt of a message that was there already: a success without an id of its
own."""


# --- reading --------------------------------------------------------------------------------------


def peek_type(data: Buffer, start: int, end: int) -> int:
    """The command's type if it is encoded first and in one byte, as every known client does;
    else -1 (then decode it)."""
    if end - start >= 2 and data[start] == 0x08 and data[start + 1] < 0x80:
        return data[start + 1]
    return -1


def decode_command(data: Buffer, start: int = 0, end: int | None = None) -> api.BaseCommand:
    """Parse data[start:end]; its strings are text.

    Raises ProtocolError if malformed, UnsupportedCommand if well-formed but of an unknown
    type.
    """
    try:
        command = api.BaseCommand.FromString(bytes(data[start:end]))
    except DecodeError as failure:
        raise ProtocolError(
            f"command of {len(data[start:end])} bytes does not parse: {failure}"
        ) from failure
    if not command.HasField("type"):
        # A closed enum: an unknown number counts as unset. Newer peers may send such
        # commands.
        raise UnsupportedCommand(
            "command has a type that protocol version 21 does not define; it is ignored"
        )
    field = FIELD_OF_TYPE[command.type]
    if not command.HasField(field):  # type: ignore[arg-type]  # the field name is computed
        raise ProtocolError(f"command of type {command.type} lacks its sub-message {field}")
    if not command.IsInitialized():
        raise ProtocolError(
            f"command {field} lacks required fields, or an enum of it is out of range"
        )
    broken = broken_text(getattr(command, field))
    if broken is not None:
        raise ProtocolError(f"command {field}: its field {broken} is not UTF-8; send text")
    return command


def signed(value: int) -> int:
    """A u64 of the wire as a signed number: 2^64-1 is -1."""
    return value - (1 << 64) if value >> 63 else value


def position_of(message_id: api.MessageIdData) -> Position:
    """Ledger and entry of a message id; EARLIEST and LATEST come out as the constants of that
    name."""
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def message_id_data(
    position: Position,
    partition: int = -1,
    batch_index: int | None = None,
    ack_set: Iterable[int] = (),
    batch_size: int | None = None,
) -> api.MessageIdData:
    """A message id; `ack_set` words are signed 64-bit, bit 1 = not yet acknowledged."""
    data = api.MessageIdData(
        ledgerId=position.ledger & UNSIGNED_MASK,
        entryId=position.entry & UNSIGNED_MASK,
        ack_set=ack_set,
    )
    if partition >= 0:
        data.partition = partition
    if batch_index is not None:
        data.batch_index = batch_index
    if batch_size is not None:
        data.batch_size = batch_size
    return data


# --- connection -----------------------------------------------------------------------------------

PING = frame_of(api.CommandPing())
PONG = frame_of(api.CommandPong())


def connected(
    server_version: str,
    protocol_version: int,
    message_bytes_max: int,
    *,
    topic_watchers: bool = True,
    watermarks: bool = False,
) -> bytes:
    """CONNECTED. `protocol_version` is the smaller of both sides'; C++ clients refuse an empty
    server version.

    Flags 5 (metadata without auto-creation) is always on: Java clients fail look-ups without it.
    """
    flags = api.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
    if topic_watchers:
        flags.supports_topic_watchers = True
        flags.supports_topic_watcher_reconcile = True
    if watermarks:  # only to a client that has asked: others do not know the flag
        flags.supports_watermarks = True
    body = api.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
        feature_flags=flags,
    )
    return frame_of(body)


def auth_challenge(server_version: str, protocol_version: int, method: str, data: bytes) -> bytes:
    """AUTH_CHALLENGE; `data` b"PulsarAuthRefresh" asks a connected client for a fresh token."""
    challenge = api.AuthData(auth_method_name=method, auth_data=data)
    body = api.CommandAuthChallenge(
        server_version=server_version, protocol_version=protocol_version, challenge=challenge
    )
    return frame_of(body)


def success(request_id: int) -> bytes:
    return frame_of(api.CommandSuccess(request_id=request_id))


def error(request_id: int, code: WireCode, message: str) -> bytes:
    """ERROR; `request_id` NO_REQUEST answers a CONNECT."""
    body = api.CommandError(
        request_id=request_id & UNSIGNED_MASK, error=_code(code), message=message
    )
    return frame_of(body)


def error_of(request_id: int, failure: MagnetarError) -> bytes:
    """ERROR with the code and text of an error."""
    return error(request_id, failure.wire_code, str(failure))


# --- lookup and topics ----------------------------------------------------------------------------


def lookup_connect(
    request_id: int, url: str, url_tls: str | None = None, *, through_proxy: bool = False
) -> bytes:
    """LOOKUP_RESPONSE: the broker at `url` serves the topic; `through_proxy`: reach it through
    the service url (PIP-60)."""
    body = api.CommandLookupTopicResponse(
        brokerServiceUrl=url,
        response=api.CommandLookupTopicResponse.Connect,
        request_id=request_id,
        authoritative=True,
        proxy_through_service_url=through_proxy,
    )
    if url_tls:
        body.brokerServiceUrlTls = url_tls
    return frame_of(body)


def lookup_redirect(request_id: int, url: str, *, authoritative: bool) -> bytes:
    """LOOKUP_RESPONSE: ask the broker at `url`; `authoritative` asks that broker to decide
    itself."""
    return frame_of(
        api.CommandLookupTopicResponse(
            brokerServiceUrl=url,
            response=api.CommandLookupTopicResponse.Redirect,
            request_id=request_id,
            authoritative=authoritative,
            proxy_through_service_url=False,
        )
    )


def lookup_failed(request_id: int, code: WireCode, message: str) -> bytes:
    body = api.CommandLookupTopicResponse(
        response=api.CommandLookupTopicResponse.Failed,
        request_id=request_id,
        error=_code(code),
        message=message,
    )
    return frame_of(body)


def partitioned_metadata(request_id: int, partitions: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE; 0 = not partitioned, or absent and creatable."""
    body = api.CommandPartitionedTopicMetadataResponse(
        partitions=partitions,
        request_id=request_id,
        response=api.CommandPartitionedTopicMetadataResponse.Success,
    )
    return frame_of(body)


def partitioned_metadata_failed(request_id: int, code: WireCode, message: str) -> bytes:
    body = api.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=api.CommandPartitionedTopicMetadataResponse.Failed,
        error=_code(code),
        message=message,
    )
    return frame_of(body)


def topics_of_namespace(
    request_id: int,
    topics: Sequence[str],
    topics_hash: str | None,
    *,
    filtered: bool,
    changed: bool = True,
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE; with `changed` False the list is empty because the
    client's hash still holds."""
    body = api.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, changed=changed
    )
    if topics_hash is not None:
        body.topics_hash = topics_hash
    return frame_of(body)


def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: Sequence[str], topics_hash: str
) -> bytes:
    body = api.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return frame_of(body)


def watch_topic_update(
    watcher_id: int, new: Sequence[str], deleted: Sequence[str], topics_hash: str
) -> bytes:
    """WATCH_TOPIC_UPDATE; `topics_hash` covers all matching topics after the change."""
    body = api.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash
    )
    return frame_of(body)


def schema_found(request_id: int, schema: api.Schema, version: bytes) -> bytes:
    body = api.CommandGetSchemaResponse(
        request_id=request_id, schema=schema, schema_version=version
    )
    return frame_of(body)


def schema_failed(request_id: int, code: WireCode, message: str) -> bytes:
    """GET_SCHEMA_RESPONSE with an error; none registered is TOPIC_NOT_FOUND."""
    body = api.CommandGetSchemaResponse(
        request_id=request_id, error_code=_code(code), error_message=message
    )
    return frame_of(body)


def schema_created(request_id: int, version: bytes) -> bytes:
    body = api.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return frame_of(body)


def schema_refused(request_id: int, code: WireCode, message: str) -> bytes:
    body = api.CommandGetOrCreateSchemaResponse(
        request_id=request_id, error_code=_code(code), error_message=message
    )
    return frame_of(body)


# --- producers ------------------------------------------------------------------------------------


def producer_success(
    request_id: int,
    producer_name: str,
    last_sequence_id: int = -1,
    *,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """PRODUCER_SUCCESS; `topic_epoch` only for exclusive modes, `ready` False while waiting for
    exclusive access."""
    body = api.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        producer_ready=ready,
    )
    if topic_epoch is not None:
        body.topic_epoch = topic_epoch
    return frame_of(body)


def send_receipt(
    producer_id: int, sequence_id: int, position: Position, highest_sequence_id: int = 0
) -> bytes:
    """SEND_RECEIPT; position DUPLICATE for a message that is stored already. Runs of them:
    `runs.send_receipts`."""
    body = api.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=message_id_data(position),
        highest_sequence_id=highest_sequence_id,
    )
    return frame_of(body)


def send_error(producer_id: int, sequence_id: int, code: WireCode, message: str) -> bytes:
    """SEND_ERROR; `sequence_id` is the larger of the SEND's sequence and highest sequence."""
    body = api.CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=_code(code), message=message
    )
    return frame_of(body)


def close_producer(producer_id: int, url: str | None = None, url_tls: str | None = None) -> bytes:
    """CLOSE_PRODUCER from the broker; `url` names the new owner (PIP-307), without it the client
    looks the topic up."""
    body = api.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST & UNSIGNED_MASK)
    _assign(body, url, url_tls)
    return frame_of(body)


# --- consumers ------------------------------------------------------------------------------------


def close_consumer(consumer_id: int, url: str | None = None, url_tls: str | None = None) -> bytes:
    """CLOSE_CONSUMER from the broker; `url` as in `close_producer`."""
    body = api.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST & UNSIGNED_MASK)
    _assign(body, url, url_tls)
    return frame_of(body)


def active_consumer_change(consumer_id: int, *, active: bool) -> bytes:
    """ACTIVE_CONSUMER_CHANGE, for clients of protocol 12 and later."""
    body = api.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
    return frame_of(body)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """REACHED_END_OF_TOPIC. Never to C++ and Go clients: they treat it as unknown and close the
    connection."""
    body = api.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return frame_of(body)


def ack_response(
    consumer_id: int, request_id: int, code: WireCode | None = None, message: str = ""
) -> bytes:
    """ACK_RESPONSE to an ACK that carried a request id; without a code it is a success."""
    body = api.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if code is not None:
        body.error, body.message = _code(code), message
    return frame_of(body)


def last_message_id(
    request_id: int, last: api.MessageIdData, mark_delete: Position | None = None
) -> bytes:
    """GET_LAST_MESSAGE_ID_RESPONSE; `last` is the last dispatchable message, (-1, -1) for an
    empty topic."""
    body = api.CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=last)
    if mark_delete is not None:
        body.consumer_mark_delete_position.CopyFrom(message_id_data(mark_delete))
    return frame_of(body)


def consumer_stats(stats: api.CommandConsumerStatsResponse) -> bytes:
    return frame_of(stats)


def consumer_stats_failed(request_id: int, code: WireCode, message: str) -> bytes:
    return consumer_stats(
        api.CommandConsumerStatsResponse(
            request_id=request_id, error_code=_code(code), error_message=message
        )
    )


def _assign(
    body: api.CommandCloseProducer | api.CommandCloseConsumer, url: str | None, url_tls: str | None
) -> None:
    if url:
        body.assignedBrokerServiceUrl = url
    if url_tls:
        body.assignedBrokerServiceUrlTls = url_tls


def _code(code: WireCode) -> api.ServerError.ValueType:
    return api.ServerError.ValueType(int(code))
