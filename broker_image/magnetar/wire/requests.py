"""What a client sends.

Owns: one builder per client-to-broker command, each returning a whole frame. Imports: frames,
transactions.ids, the generated protocol. Pure. Source: Pulsar's binary protocol. Invariant:
optional fields are set only when given, because brokers distinguish unset from default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.frames import encode_with_body, frame_of

SubType = api.CommandSubscribe.SubType
AckType = api.CommandAck.AckType


def key_values(properties: Mapping[str, str] | None) -> list[api.KeyValue]:
    """A mapping as the wire's list of pairs."""
    return [api.KeyValue(key=key, value=value) for key, value in (properties or {}).items()]


def connect(
    client_version: str,
    protocol_version: int,
    *,
    auth_method: str = "",
    auth_data: bytes | None = None,
    proxy_to: str | None = None,
    original: str = "",
) -> bytes:
    """CONNECT; `proxy_to` is host:port of the broker behind a proxy, `original` the role that
    the sender speaks for."""
    body = api.CommandConnect(client_version=client_version, protocol_version=protocol_version)
    body.feature_flags.supports_auth_refresh = True
    body.feature_flags.supports_broker_entry_metadata = True
    body.feature_flags.supports_watermarks = True
    if auth_method:
        body.auth_method_name, body.auth_data = auth_method, auth_data or b""
    if proxy_to is not None:
        body.proxy_to_broker_url = proxy_to
    if original:
        body.original_principal = original
    return frame_of(body)


def auth_response(
    client_version: str, protocol_version: int, auth_method: str, auth_data: bytes
) -> bytes:
    """AUTH_RESPONSE to a challenge."""
    response = api.AuthData(auth_method_name=auth_method, auth_data=auth_data)
    body = api.CommandAuthResponse(
        client_version=client_version, response=response, protocol_version=protocol_version
    )
    return frame_of(body)


def lookup(request_id: int, topic: str, *, authoritative: bool) -> bytes:
    """LOOKUP; `authoritative` is what the redirect that led here said."""
    body = api.CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    return frame_of(body)


def partitioned_metadata(request_id: int, topic: str, *, create: bool = True) -> bytes:
    """PARTITIONED_METADATA; `create` lets the broker make the topic if it is not there and its
    policies say so."""
    body = api.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
    if not create:
        body.metadata_auto_creation_enabled = False
    return frame_of(body)


def topics_of_namespace(request_id: int, namespace: str) -> bytes:
    """GET_TOPICS_OF_NAMESPACE, of persistent topics."""
    return frame_of(
        api.CommandGetTopicsOfNamespace(
            request_id=request_id,
            namespace=namespace,
            mode=api.CommandGetTopicsOfNamespace.Mode.PERSISTENT,
        )
    )


def producer(body: api.CommandProducer) -> bytes:
    return frame_of(body)


def subscribe(body: api.CommandSubscribe) -> bytes:
    return frame_of(body)


def send(
    producer_id: int,
    sequence_id: int,
    entry: Buffer,
    *,
    messages: int = 1,
    highest_sequence_id: int | None = None,
    txn: TxnId | None = None,
    chunk: bool = False,
) -> bytes:
    """SEND of one entry; `highest_sequence_id` is the last of a batch, whose first is
    `sequence_id`; `chunk` for a part of a message."""
    body = api.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=messages)
    if highest_sequence_id is not None:
        body.highest_sequence_id = highest_sequence_id
    if chunk:
        body.is_chunk = True
    if txn is not None:
        body.txnid_most_bits, body.txnid_least_bits = txn
    return encode_with_body(api.BaseCommand(type=api.BaseCommand.SEND, send=body), entry)


def ack(
    consumer_id: int,
    message_ids: Iterable[api.MessageIdData],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    validation_error: api.CommandAck.ValidationError.ValueType | None = None,
    txn: TxnId | None = None,
) -> bytes:
    """ACK; with a request id the broker answers ACK_RESPONSE once it is durable."""
    kind = AckType.Cumulative if cumulative else AckType.Individual
    body = api.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=message_ids)
    if request_id is not None:
        body.request_id = request_id
    if validation_error is not None:
        body.validation_error = validation_error
    if txn is not None:
        body.txnid_most_bits, body.txnid_least_bits = txn
    return frame_of(body)


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: room for `permits` more messages."""
    return frame_of(api.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def redeliver(
    consumer_id: int,
    message_ids: Iterable[api.MessageIdData] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES; no ids = all of this consumer's."""
    body = api.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id, message_ids=message_ids
    )
    if consumer_epoch is not None:
        body.consumer_epoch = consumer_epoch
    return frame_of(body)


def seek(
    consumer_id: int,
    request_id: int,
    *,
    message_id: api.MessageIdData | None = None,
    publish_time_ms: int | None = None,
) -> bytes:
    """SEEK to a message id or a publish time."""
    body = api.CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if message_id is not None:
        body.message_id.CopyFrom(message_id)
    if publish_time_ms is not None:
        body.message_publish_time = publish_time_ms
    return frame_of(body)


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    body = api.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    return frame_of(body)


def last_message_id(consumer_id: int, request_id: int) -> bytes:
    body = api.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return frame_of(body)


def get_schema(topic: str, version: bytes, request_id: int) -> bytes:
    """GET_SCHEMA of a version that a message's metadata names."""
    return frame_of(
        api.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version)
    )


def close_producer(producer_id: int, request_id: int) -> bytes:
    body = api.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return frame_of(body)


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    body = api.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return frame_of(body)


# --- to a transaction coordinator -----------------------------------------------------------------


def coordinator_connect(request_id: int, coordinator: int) -> bytes:
    """TC_CLIENT_CONNECT_REQUEST to the coordinator of this number (TCID)."""
    body = api.CommandTcClientConnectRequest(request_id=request_id, tc_id=coordinator)
    return frame_of(body)


def new_txn(request_id: int, coordinator: int, timeout_ms: int) -> bytes:
    """NEW_TXN; the field that is called seconds has milliseconds."""
    body = api.CommandNewTxn(request_id=request_id, tc_id=coordinator, txn_ttl_seconds=timeout_ms)
    return frame_of(body)


def add_partitions_to_txn(request_id: int, txn: TxnId, topics: Sequence[str]) -> bytes:
    """ADD_PARTITION_TO_TXN: the transaction will publish to these topics."""
    body = api.CommandAddPartitionToTxn(
        request_id=request_id,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        partitions=topics,
    )
    return frame_of(body)


def add_subscription_to_txn(request_id: int, txn: TxnId, topic: str, subscription: str) -> bytes:
    """ADD_SUBSCRIPTION_TO_TXN: the transaction will acknowledge messages of this subscription."""
    named = api.Subscription(topic=topic, subscription=subscription)
    body = api.CommandAddSubscriptionToTxn(
        request_id=request_id,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        subscription=[named],
    )
    return frame_of(body)


def end_txn(request_id: int, txn: TxnId, *, commit: bool) -> bytes:
    action = api.COMMIT if commit else api.ABORT
    body = api.CommandEndTxn(
        request_id=request_id,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        txn_action=action,
    )
    return frame_of(body)


# --- from a transaction coordinator to a broker ---------------------------------------------------


def end_txn_on_partition(
    request_id: int, txn: TxnId, topic: str, *, commit: bool, low_watermark: int
) -> bytes:
    """END_TXN_ON_PARTITION; every transaction of that coordinator up to `low_watermark` has
    ended everywhere (-1 = none)."""
    body = api.CommandEndTxnOnPartition(
        request_id=request_id,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        topic=topic,
        txn_action=api.COMMIT if commit else api.ABORT,
    )
    if low_watermark >= 0:
        body.txnid_least_bits_of_low_watermark = low_watermark
    return frame_of(body)


def end_txn_on_subscription(
    request_id: int, txn: TxnId, topic: str, subscription: str, *, commit: bool, low_watermark: int
) -> bytes:
    """END_TXN_ON_SUBSCRIPTION; `low_watermark` as above."""
    body = api.CommandEndTxnOnSubscription(
        request_id=request_id,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        subscription=api.Subscription(topic=topic, subscription=subscription),
        txn_action=api.COMMIT if commit else api.ABORT,
    )
    if low_watermark >= 0:
        body.txnid_least_bits_of_low_watermark = low_watermark
    return frame_of(body)
