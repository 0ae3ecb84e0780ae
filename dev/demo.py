"""`make demo`: nothing acknowledged is lost when the server is killed.

Owns: the demonstration: publish with the official Python client, SIGKILL in the middle, start
again, read everything back, compare. Imports: pulsar (official client), dev.server_process. Exits 0
only if every acknowledged message was read back, in order, with its bytes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import pulsar

from dev.server_process import ServerProcess

TOPIC = "persistent://public/default/demo"
MESSAGES = 20_000
KILL_AFTER = 8_000
RECEIVE_TIMEOUT_MS = 5_000
SEND_TIMEOUT_MS = 30_000


class Publisher:
    """Sends numbered messages and remembers which were acknowledged."""

    def __init__(self, client: pulsar.Client) -> None:
        self._producer = client.create_producer(
            TOPIC,
            send_timeout_millis=SEND_TIMEOUT_MS,
            block_if_queue_full=True,
            max_pending_messages=500,
        )
        self.acknowledged: dict[int, str] = {}
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def publish(self, count: int) -> None:
        """Send all, then wait for every receipt."""
        for number in range(count):
            self._producer.send_async(
                f"message {number}".encode(),
                lambda result, identifier, n=number: self._receipt(n, result, identifier),
            )
        self._producer.flush()

    def _receipt(self, number: int, result: pulsar.Result, identifier: pulsar.MessageId) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self.acknowledged[number] = str(identifier)
            else:
                self.failed.append(f"{number}: {result}")


def _kill_in_the_middle(server: ServerProcess, publisher: Publisher) -> None:
    while len(publisher.acknowledged) < KILL_AFTER:
        time.sleep(0.001)
    server.kill()
    print(f"  SIGKILL after {len(publisher.acknowledged)} receipts", flush=True)
    seconds = server.start()
    print(f"  started again on the same directory: ready in {seconds:.2f} s", flush=True)


def _client(server: ServerProcess) -> pulsar.Client:
    """The client's own log goes to a file: its reconnects during the kill are expected and would
    only hide the story."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(server.directory / "client.log"))
    return pulsar.Client(server.service_url, operation_timeout_seconds=30, logger=logger)


def _read_back(server: ServerProcess) -> list[int]:
    client = _client(server)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    numbers: list[int] = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(RECEIVE_TIMEOUT_MS).data().split()[1]))
    client.close()
    return numbers


def run(directory: Path) -> int:
    """The whole demonstration below `directory`; the exit code."""
    server = ServerProcess(directory)
    try:
        print(f"1. A standalone server: ready in {server.start():.2f} s at {server.service_url}")
        print(
            f"2. The official Python client publishes {MESSAGES} messages; the server is killed "
            "concurrently"
        )
        client = _client(server)
        publisher = Publisher(client)
        killer = threading.Thread(target=_kill_in_the_middle, args=(server, publisher))
        killer.start()
        publisher.publish(MESSAGES)
        killer.join()
        client.close()
        print(
            f"  {len(publisher.acknowledged)} receipts, {len(publisher.failed)} failures (the "
            "client resent what had no receipt)"
        )
        print("3. Everything is read back from the first message on")
        numbers = _read_back(server)
        firsts = list(dict.fromkeys(numbers))
        missing = sorted(set(publisher.acknowledged) - set(firsts))
        print(
            f"  {len(numbers)} messages read, {len(numbers) - len(firsts)} of them sent twice "
            "around the kill (no deduplication asked for)"
        )
        if publisher.failed or missing or firsts != sorted(firsts) or not publisher.acknowledged:
            print(
                f"FAILED: failures {publisher.failed[:3]}, missing {missing[:10]}, in order: "
                f"{firsts == sorted(firsts)}"
            )
            return 1
        print("Nothing acknowledged is missing, and the order is kept.")
        return 0
    finally:
        server.stop()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="magnetar-demo-") as directory:
        sys.exit(run(Path(directory)))


if __name__ == "__main__":
    main()
