"""Check that the compacted topic holds exactly the newest record of every package.

Owns: reading with `is_read_compacted` and the comparison. Imports: package_records and Apache
Pulsar's own Python client. Exit code: 0 = exactly as expected; 1 = something is missing, stale,
surplus, or deleted yet there (listed); 2 = nothing to compare.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from package_records import Expectation

SHOWN_MAX = 10
READ_TIMEOUT_MS = 10_000


@dataclass(slots=True)
class Observation:
    """What a compacted reader delivered: SHA-256 of the last payload by key, and how often each
    key came."""

    last: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    keyless: int = 0
    empty: int = 0

    def add(self, key: str, payload: bytes) -> None:
        if not key:
            self.keyless += 1
            return
        self.counts[key] += 1
        self.empty += not payload
        self.last[key] = hashlib.sha256(payload).hexdigest() if payload else ""


def compare(expectation: Expectation, seen: Observation, *, strict: bool) -> list[str]:
    """Differences in words; none means equal. With `strict` each key must come exactly once and
    no deletion may be left."""
    problems = [f"missing: {key}" for key in sorted(set(expectation.newest) - set(seen.last))]
    problems += [
        f"stale: {key}"
        for key, digest in sorted(expectation.newest.items())
        if seen.last.get(key, digest) != digest
    ]
    present = {key for key, digest in seen.last.items() if digest}
    problems += [f"deleted, yet there: {key}" for key in sorted(expectation.removed & present)]
    problems += [
        f"surplus: {key}" for key in sorted(present - set(expectation.newest) - expectation.removed)
    ]
    if strict:
        problems += [
            f"{count} times: {key}" for key, count in sorted(seen.counts.items()) if count > 1
        ]
        problems += [f"messages without a key: {seen.keyless}"] if seen.keyless else []
        problems += [f"deletions left in the view: {seen.empty}"] if seen.empty else []
    return problems


def read_topic(client: pulsar.Client, topic: str) -> Observation:
    """Read the compacted view of a topic, of every partition if it has any, to its present end."""
    seen = Observation()
    for name in client.get_topic_partitions(topic):
        reader = client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=True)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=READ_TIMEOUT_MS)
            seen.add(message.partition_key(), message.data())
        reader.close()
    return seen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--topic", default="persistent://public/demo/debian-packages")
    parser.add_argument("--expectation", type=Path, default=Path("debian-packages-expected.json"))
    parser.add_argument(
        "--tail", action="store_true", help="allow messages that came after the last compaction"
    )
    options = parser.parse_args(arguments)
    expectation = Expectation.read(options.expectation)
    if not expectation.newest:
        print(f"{options.expectation} holds no expectation; run produce.py first")
        return 2
    client = pulsar.Client(options.service_url)
    try:
        seen = read_topic(client, options.topic)
    finally:
        client.close()
    problems = compare(expectation, seen, strict=not options.tail)
    for problem in problems[:SHOWN_MAX]:
        print(problem)
    if problems:
        print(
            f"{len(problems)} differences; compacted? (magnetar job run, or PUT "
            "/admin/v2/.../compaction)"
        )
        return 1
    print(
        f"exact: {len(seen.last)} packages, each with its newest record, none of the "
        f"{len(expectation.removed)} removed ones"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
