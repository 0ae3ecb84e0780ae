"""The official client (C++ with Python bindings) against a scripted broker made of this package:
what it sends parses on the fast path, what we send is what it expects."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pytest

from magnetar.network import AsyncioNetwork
from magnetar.wire import commands, runs
from magnetar.wire.checksum import entry_checksum_ok
from magnetar.wire.entries import batch_messages, parse_entry
from tests.support.memory import MemoryNetwork, ScriptedBroker, Session


class RecordingBroker(ScriptedBroker):
    """Keeps the raw SENDs and delivers stored entries to consumers that give permits."""

    def __init__(self) -> None:
        super().__init__(MemoryNetwork(), "unused")
        # The real default: the C++ client keeps this number for the whole process.
        self.script["connect"] = lambda *_: commands.connected(
            "Pulsar Server4.2.4", 20, 5 * 1024 * 1024
        )
        self.script["flow"] = self._on_flow

    def _on_flow(self, session: Session, flow: Any) -> None:
        for buffer in runs.scattered_message_frames(
            flow.consumer_id, 7, range(len(self.stored)), [entry for _, entry in self.stored]
        ):
            session.write(bytes(buffer))


def talk(url: str) -> list[bytes]:
    """Publish single, keyed and batched messages, then read them back."""
    client = pulsar.Client(
        url, operation_timeout_seconds=120, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        producer = client.create_producer("t", batching_enabled=False)
        producer.send(b"single", properties={"a": "b"}, partition_key="k", event_timestamp=12)
        batching = client.create_producer(
            "t",
            batching_enabled=True,
            batching_max_publish_delay_ms=600_000,  # none of the batch leaves before `flush`
            compression_type=pulsar.CompressionType.ZLib,
        )
        for index in range(3):
            batching.send_async(b"batched %d" % index, lambda *_: None)
        batching.flush()
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        received = []
        for _ in range(4):
            message = consumer.receive(timeout_millis=120_000)
            consumer.acknowledge(message)
            received.append(message.data())
        return received
    finally:
        client.close()


@pytest.mark.slow
async def test_the_official_client_publishes_and_reads_back() -> None:
    """CONNECT, LOOKUP, PRODUCER, SEND, SUBSCRIBE, FLOW, ACK and our answers to them, over real
    sockets."""

    async def scenario() -> tuple[RecordingBroker, list[bytes]]:
        broker = RecordingBroker()
        listener = await AsyncioNetwork().listen("127.0.0.1", 0, lambda: Session(broker))
        broker.url = f"pulsar://127.0.0.1:{listener.port}"
        try:
            return broker, await asyncio.to_thread(talk, broker.url)
        finally:
            listener.close()

    broker, received = await scenario()
    assert received == [b"single", b"batched 0", b"batched 1", b"batched 2"]
    assert broker.of("connect")[0].client_version.startswith("Pulsar-CPP")
    assert {ask.topic for ask in broker.of("lookup")} == {"persistent://public/default/t"}
    single, batch = (parse_entry(entry) for _, entry in broker.stored)
    assert all(
        entry.startswith(b"\x0e\x01") and entry_checksum_ok(entry) for _, entry in broker.stored
    )
    assert (single.batched, bytes(single.payload), single.metadata.partition_key) == (
        False,
        b"single",
        "k",
    )
    opened = batch_messages(batch)
    assert [bytes(item.payload) for item in opened] == [b"batched 0", b"batched 1", b"batched 2"]
    for send in broker.of("send"):
        fields = send.SerializeToString()
        command = b"\x08\x06\x32" + bytes([len(fields)]) + fields
        assert runs.parse_send(command, 0, len(command))[:2] == (send.producer_id, send.sequence_id)
