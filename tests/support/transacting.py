"""What a transactional client and its coordinator say to a broker, frame by frame.

Owns: SENDs that name a transaction, and the ends that a coordinator sends. The tests play the
coordinator.
"""

from __future__ import annotations

from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry
from tests.support.brokers import TOPIC, Peer, Type, entry


async def send_in(
    peer: Peer, txn: TxnId, body: bytes, sequence: int, producer_id: int = 1, publish_time: int = 1
) -> tuple[int, int]:
    """Publish one message in a transaction; the position in its receipt."""
    metadata = api.MessageMetadata(
        producer_name="p", sequence_id=sequence, publish_time=publish_time
    )
    peer.write(requests.send(producer_id, sequence, encode_entry(metadata, body), txn=txn))
    answer = await peer.answer()
    assert answer.type == Type.SEND_RECEIPT, answer
    receipt = answer.send_receipt
    assert receipt.sequence_id == sequence, receipt
    return signed(receipt.message_id)


async def refused_send(
    peer: Peer, txn: TxnId, body: bytes, sequence: int, producer_id: int = 1
) -> api.CommandSendError:
    """Publish one message in a transaction, which must fail."""
    peer.write(requests.send(producer_id, sequence, entry(body, sequence), txn=txn))
    return (await peer.answer(Type.SEND_ERROR)).send_error


async def end(
    peer: Peer, txn: TxnId, *, commit: bool, low_watermark: int = -1, topic: str = TOPIC
) -> api.CommandEndTxnOnPartitionResponse:
    """Tell the topic how the transaction ends; the answer."""
    peer.write(
        requests.end_txn_on_partition(
            peer.next_request(), txn, topic, commit=commit, low_watermark=low_watermark
        )
    )
    return (await peer.answer(Type.END_TXN_ON_PARTITION_RESPONSE)).end_txn_on_partition_response


async def ended(
    peer: Peer, txn: TxnId, *, commit: bool, low_watermark: int = -1, topic: str = TOPIC
) -> None:
    """As `end`, which must succeed."""
    answer = await end(peer, txn, commit=commit, low_watermark=low_watermark, topic=topic)
    assert not answer.HasField("error"), answer
    assert (answer.txnid_most_bits, answer.txnid_least_bits) == txn


def signed(identifier: api.MessageIdData) -> tuple[int, int]:
    """(ledger, entry) with -1 where the wire has 2^64-1."""
    return tuple(
        number - (1 << 64) if number >= 1 << 63 else number
        for number in (identifier.ledgerId, identifier.entryId)
    )  # type: ignore[return-value]


async def late_commit(peer: Peer, txn: TxnId, first_sequence: int = 0) -> None:
    """Ten entries published at 1000, 1100... and behind them thirty of a transaction, sent at
    1100 and committed after all of these."""
    for number in range(30):
        await send_in(peer, txn, b"in", first_sequence + number, publish_time=1100)
    for number in range(10):
        metadata = api.MessageMetadata(
            producer_name="p", sequence_id=100 + number, publish_time=1000 + 100 * number
        )
        peer.write(requests.send(1, 100 + number, encode_entry(metadata, b"plain")))
        await peer.answer(Type.SEND_RECEIPT)
    await ended(peer, txn, commit=True)
