"""Commands of event-time watermarks (PIP-102).

Owns: their builders, for both sides, each returning a whole frame. Imports: frames,
transactions.ids, the generated protocol. Pure. Magnetar's own: numbers from 10001 on, and only
between peers that have both set `supports_watermarks`. Invariant: optional fields are set only when
given.
"""

from __future__ import annotations

from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import frame_of

PROPERTY = "magnetar.watermark"
"""A message with this property asserts its value (ms since the epoch, or IDLE) for its producer,
for the messages behind it: for clients that do not know the commands."""
IDLE = "idle"


def set_watermark(
    request_id: int, producer_id: int, event_ms: int | None, txn: TxnId | None = None
) -> bytes:
    """SET_WATERMARK of a producer; None: it is idle. SUCCESS follows once it is durable."""
    body = api.CommandSetWatermark(producer_id=producer_id, request_id=request_id)
    if event_ms is not None:
        body.event_time = event_ms
    if txn is not None:
        body.txnid_most_bits, body.txnid_least_bits = txn
    return frame_of(body)


def get_last_watermark(request_id: int, consumer_id: int) -> bytes:
    """GET_LAST_WATERMARK of a consumer's subscription."""
    return frame_of(api.CommandGetLastWatermark(consumer_id=consumer_id, request_id=request_id))


def watermark(consumer_id: int, event_ms: int | None, term: int, resets: int) -> bytes:
    """WATERMARK to a consumer; None: there is none yet. It may be lower than one before only if
    `term` or `resets` differ."""
    body = api.CommandWatermark(consumer_id=consumer_id, term=term, resets=resets)
    if event_ms is not None:
        body.event_time = event_ms
    return frame_of(body)


def last_watermark(request_id: int, event_ms: int | None) -> bytes:
    """GET_LAST_WATERMARK_RESPONSE; None: there is none yet."""
    body = api.CommandGetLastWatermarkResponse(request_id=request_id)
    if event_ms is not None:
        body.event_time = event_ms
    return frame_of(body)


def event_ms_of(
    body: api.CommandSetWatermark | api.CommandWatermark | api.CommandGetLastWatermarkResponse,
) -> int | None:
    """Its event time, if it has one."""
    return body.event_time if body.HasField("event_time") else None


def txn_of(body: api.CommandSetWatermark) -> TxnId | None:
    """The transaction with which an assertion takes effect, if it names one."""
    if not body.HasField("txnid_most_bits") and not body.HasField("txnid_least_bits"):
        return None
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)
