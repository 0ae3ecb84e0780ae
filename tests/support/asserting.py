"""What producers assert and consumers are sent of event-time watermarks, frame by frame.

Owns: the policy on a topic, assertions, what a consumer was sent last. Imports: the brokers of the
tests.
"""

from __future__ import annotations

import json
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests, watermarks
from tests.support.brokers import TOPIC, Peer, Type, entry

ON: dict[str, Any] = {"watermarks": {"enabled": True, "idleTimeout": 0}}


async def enable(broker: Broker, policies: dict[str, Any] | None = None) -> None:
    """Let producers of TOPIC assert; the topic exists."""
    topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=True)
    await topic.update_properties({"policies": json.dumps(ON if policies is None else policies)})


async def asserted(
    peer: Peer, event_ms: int | None, *, producer_id: int = 1, txn: TxnId | None = None
) -> api.BaseCommand:
    """SET_WATERMARK; the answer. What consumers of this connection are sent before is dropped."""
    request = peer.next_request()
    peer.write(watermarks.set_watermark(request, producer_id, event_ms, txn))
    while (answer := await peer.answer()).type == Type.WATERMARK:
        pass
    return answer


async def holds(
    peer: Peer, event_ms: int | None, *, producer_id: int = 1, txn: TxnId | None = None
) -> None:
    """As `asserted`, which must succeed."""
    answer = await asserted(peer, event_ms, producer_id=producer_id, txn=txn)
    assert answer.type == Type.SUCCESS, answer


async def sent(
    peer: Peer, event_ms: int, sequence: int, producer_id: int = 1, **metadata: Any
) -> None:
    """Publish one message with this event time."""
    peer.write(
        requests.send(producer_id, sequence, entry(b"m", sequence, event_time=event_ms, **metadata))
    )
    assert (await peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == sequence


async def watermark(peer: Peer) -> int | None:
    """The next WATERMARK."""
    return watermarks.event_ms_of((await peer.answer(Type.WATERMARK)).watermark)


async def last_watermark(peer: Peer, consumer_id: int = 1) -> int | None:
    """GET_LAST_WATERMARK; watermarks that come before the answer are dropped."""
    peer.write(watermarks.get_last_watermark(peer.next_request(), consumer_id))
    while (answer := await peer.answer()).type == Type.WATERMARK:
        pass
    assert answer.type == Type.GET_LAST_WATERMARK_RESPONSE, answer
    return watermarks.event_ms_of(answer.get_last_watermark_response)


async def settles(peer: Peer, event_ms: int | None, consumer_id: int = 1) -> None:
    """The watermark becomes `event_ms`, and is nothing greater on the way."""
    seen = await last_watermark(peer, consumer_id)
    while seen != event_ms:
        assert seen is None or (event_ms is not None and seen < event_ms), (seen, event_ms)
        seen = watermarks.event_ms_of((await peer.answer(Type.WATERMARK)).watermark)
