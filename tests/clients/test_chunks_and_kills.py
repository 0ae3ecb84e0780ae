"""Messages in chunks of the official Python client while the server is killed in the middle of
them, without deduplication.

The client sends again whatever it has no receipt for, and gives a message up whose first chunks it
finds twice: the server must store none twice.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("MAGNETAR_KILLS", "6"))
CHUNK_BYTES = 64 << 10
MESSAGE_BYTES, PER_KILL = 20 * CHUNK_BYTES, 6
RECEIVE_MS, DONE_S = 30_000, 120
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class Wave:
    """Messages sent together: `some` once one of them is acknowledged, `done` once all have an
    answer."""

    def __init__(self) -> None:
        self.some, self.done = threading.Event(), threading.Event()
        self.results: list[pulsar.Result] = []

    def answered(self, result: pulsar.Result, _identifier: pulsar.MessageId) -> None:
        self.results.append(result)
        self.some.set()
        if len(self.results) == PER_KILL:
            self.done.set()


def test_a_reader_sees_every_acknowledged_message_once(tmp_path: Path) -> None:
    """A kill as soon as the first message of several is acknowledged hits the next one between
    two of its chunks."""
    with ServerProcess(
        tmp_path, environment={"MAGNETAR_MAX_MESSAGE_BYTES": str(CHUNK_BYTES)}
    ) as server:
        client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
        try:
            producer = client.create_producer(
                "t",
                chunking_enabled=True,
                send_timeout_millis=0,
                max_pending_messages=PER_KILL * 40,
            )
            sent: list[bytes] = []
            for kill in range(KILLS):
                wave = Wave()
                for number in range(PER_KILL):
                    sent.append(b"%d-%d " % (kill, number) * (MESSAGE_BYTES // 4))
                    producer.send_async(sent[-1], wave.answered)
                assert wave.some.wait(DONE_S)
                server.kill()
                server.start()
                assert wave.done.wait(DONE_S)
                assert wave.results == [pulsar.Result.Ok] * PER_KILL
            reader = client.create_reader("t", pulsar.MessageId.earliest)
            assert [reader.read_next(RECEIVE_MS).data() == payload for payload in sent] == [
                True
            ] * len(sent)
        finally:
            client.close()
