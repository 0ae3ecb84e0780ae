"""Send this machine's package records, several generations of them, as keyed messages.

Owns: the command line and the sending. Imports: package_records and Apache Pulsar's own Python
client (package pulsar-client). Invariant: the expectation file counts a message only when the
broker has acknowledged it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pulsar
from package_records import Expectation, Generation, messages_of, plan_generations, read_views

COMPRESSION = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
PENDING_MESSAGES_MAX = 10_000


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--topic", default="persistent://public/demo/debian-packages")
    parser.add_argument(
        "--generations",
        type=int,
        default=4,
        help="how many views of the package database to send (default 4)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=2000,
        help="at most this many packages; 0 = all the machine knows",
    )
    parser.add_argument("--batching", choices=("on", "off"), default="on")
    parser.add_argument("--compression", choices=sorted(COMPRESSION), default="lz4")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="root of the file system to read"
    )
    parser.add_argument(
        "--expectation",
        type=Path,
        default=Path("debian-packages-expected.json"),
        help="file for verify.py",
    )
    return parser.parse_args(arguments)


def send(producer: pulsar.Producer, generation: Generation, expectation: Expectation) -> int:
    """Send one generation and wait for every receipt; the number of messages. Raises
    RuntimeError naming the first failed key."""
    sent_ms = time.time_ns() // 1_000_000
    failures: list[str] = []
    messages = list(messages_of(generation, sent_ms))
    for key, payload in messages:

        def settled(result: pulsar.Result, _message_id: object, key: str = key) -> None:
            if result != pulsar.Result.Ok:
                failures.append(f"{key}: {result}")

        producer.send_async(payload, settled, partition_key=key, event_timestamp=sent_ms)
    producer.flush()
    if failures:
        raise RuntimeError(
            f"generation {generation.number}: {len(failures)} messages were refused, the first "
            f"{failures[0]}"
        )
    for key, payload in messages:
        expectation.saw(key, payload)
    expectation.generation = generation.number
    return len(messages)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    expectation = Expectation.read(options.expectation)
    generations = plan_generations(
        read_views(options.root),
        options.generations,
        options.limit,
        first=expectation.generation + 1,
    )
    client = pulsar.Client(options.service_url)
    try:
        producer = client.create_producer(
            options.topic,
            compression_type=COMPRESSION[options.compression],
            batching_enabled=options.batching == "on",
            block_if_queue_full=True,
            max_pending_messages=PENDING_MESSAGES_MAX,
        )
        for generation in generations:
            started = time.monotonic()
            count = send(producer, generation, expectation)
            expectation.write(options.expectation)
            rate = count / max(time.monotonic() - started, 1e-6)
            print(
                f"generation {generation.number} ({generation.name}): {len(generation.records)} "
                "records, "
                f"{len(generation.removed)} removals, {rate:.0f} messages/s",
                flush=True,
            )
        producer.close()
    finally:
        client.close()
    print(
        f"{len(expectation.newest)} packages are left, {len(expectation.removed)} removed; "
        f"expectation in {options.expectation}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
