"""What waits while a bundle is divided is bounded, in number and in bytes, and nothing goes on
behind what was refused."""

from __future__ import annotations

from pathlib import Path

from magnetar.broker.bundles.split_buffer import REQUEST_BYTES_MAX, REQUESTS_MAX, SplitBuffer
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.ports import SendRun
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from tests.support.acknowledging import host_of
from tests.support.brokers import Type, connected_peer, entry, open_peer
from tests.support.published_topics import entries_of, stored
from tests.support.transacting import ended, send_in

TXN = TxnId(0, 0)


def test_requests_are_refused_beyond_their_bytes_and_their_number() -> None:
    """One ACK may be megabytes; what is refused takes no room."""
    buffered, large = SplitBuffer(0), REQUEST_BYTES_MAX // 2

    def nothing() -> None: ...

    taken = [buffered.request(size, nothing) for size in (large, large + 1, large, 1)]
    assert taken == [True, False, True, False]
    assert [buffered.request(0, nothing) for _ in range(REQUESTS_MAX - 1)] == [True] * (
        REQUESTS_MAX - 2
    ) + [False]


async def test_of_a_producer_that_is_closed_for_a_refused_send_nothing_behind_that_goes_on(
    tmp_path: Path,
) -> None:
    """The Go client fails what it has not learned of: it must not be stored. Before the refused
    SEND there is one whose receipt is not out yet."""

    async with (
        connected_peer(tmp_path) as (broker, _peer),
        open_peer(broker, handshake=False) as go,
    ):
        go.write(requests.connect("Pulsar-Go-0.19.0", 21))
        await go.answer(Type.CONNECTED)
        await go.produce(producer_name="p")
        await send_in(go, TXN, b"never", 0)
        await ended(go, TXN, commit=False)
        host = await host_of(broker)
        session, buffered = host.core.producers.by_name["p"].handle, SplitBuffer(1 << 20)
        assert isinstance(session, ProducerSession)
        for sequence, (body, txn) in enumerate(
            ((b"one", None), (b"late", TXN), (b"ordinary", None)), 1
        ):
            run = SendRun([memoryview(entry(body, sequence))], [1], [sequence], None, txn)
            buffered.send(session, run)
        buffered.resume(lambda _listener: None)
        assert (await go.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == 1
        assert (await go.answer(Type.CLOSE_PRODUCER)).close_producer.producer_id == 1
        await broker.context.log.barrier()
        assert await stored(broker) == entries_of((b"one", 1))
