"""Random topic histories and what compaction must make of them.

Owns: building entries as Pulsar clients build them, and a reference compactor that works on the
*description* of a history, never on its bytes. Imports: wire, codec (to compress as a client
would). The reference is deliberately naive: one dictionary over all messages.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from magnetar.topics.ledger_ids import epoch_of, ledger_of
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.compression import compress, decompress
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry, parse_entry

COMPRESSIONS = (api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY)
Place = tuple[int, int, int]
"""(ledger, entry, index in the batch, or -1)."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as its producer meant it: payload None or b"" deletes the key."""

    key: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Described:
    """One entry: what it means, where it is, and its bytes."""

    ledger: int
    entry: int
    messages: tuple[Sent, ...]
    data: bytes
    batched: bool = False
    chunk: tuple[str, int, int] | None = None
    """(uuid, number, count)."""
    marker: bool = False
    publish_time: int = 0


@dataclass(slots=True)
class History:
    """Builds entries with growing positions; now and then another ledger."""

    chance: random.Random
    ledger: int = ledger_of(1, 7)
    entry: int = 0
    entries: list[Described] = field(default_factory=list)
    sequence: int = 0
    chunked: int = 0

    def _metadata(self) -> api.MessageMetadata:
        self.sequence += 1
        return api.MessageMetadata(
            producer_name="producer",
            sequence_id=self.sequence,
            publish_time=1_000_000 + self.sequence,
        )

    def _add(
        self,
        metadata: api.MessageMetadata,
        payload: bytes,
        messages: Sequence[Sent],
        **traits: object,
    ) -> Described:
        described = Described(
            self.ledger,
            self.entry,
            tuple(messages),
            encode_entry(metadata, payload),
            publish_time=metadata.publish_time,
            **traits,  # type: ignore[arg-type]
        )
        self.entries.append(described)
        self.entry += 1
        return described

    def roll(self) -> None:
        """Start another ledger."""
        self.ledger = ledger_of(epoch_of(self.ledger) + self.chance.randint(1, 3), 5)
        self.entry = 0

    def single(
        self, key: str | None, payload: bytes, compression: int = api.NONE, event_time: int = 0
    ) -> Described:
        metadata = self._metadata()
        if key is not None:
            metadata.partition_key = key
        if event_time:
            metadata.event_time = event_time
        if compression != api.NONE:
            metadata.compression = compression  # type: ignore[assignment]
            metadata.uncompressed_size = len(payload)
            payload_bytes = compress(compression, payload)
        else:
            payload_bytes = payload
        return self._add(metadata, payload_bytes, [Sent(key, payload)])

    def batch(self, messages: Sequence[Sent], compression: int = api.NONE) -> Described:
        metadata = self._metadata()
        metadata.num_messages_in_batch = len(messages)
        self.sequence += len(messages)
        metadata.highest_sequence_id = self.sequence
        singles = []
        for message in messages:
            single = api.SingleMessageMetadata(payload_size=len(message.payload))
            if message.key is not None:
                single.partition_key = message.key
            singles.append(BatchMessage(single, message.payload))
        payload = encode_batch(singles)
        if compression != api.NONE:
            metadata.compression = compression  # type: ignore[assignment]
            metadata.uncompressed_size = len(payload)
            payload = compress(compression, payload)
        return self._add(metadata, payload, messages, batched=True)

    def sealed_batch(self, key: str | None, count: int, payload: bytes) -> Described:
        """An encrypted batch: one message, whatever it holds."""
        metadata = self._metadata()
        metadata.num_messages_in_batch = count
        metadata.encryption_keys.add(key="k", value=b"v")
        if key is not None:
            metadata.partition_key = key
        return self._add(metadata, payload, [Sent(key, payload)])

    def chunks(
        self, key: str | None, parts: Sequence[bytes], *, only: Iterable[int] | None = None
    ) -> list[Described]:
        """A message in parts; `only` leaves some out, as a producer that died did."""
        self.chunked += 1
        uuid = f"producer-{self.chunked}"
        wanted = set(range(len(parts)) if only is None else only)
        return [
            self.chunk(uuid, key, parts, number) for number in range(len(parts)) if number in wanted
        ]

    def chunk(self, uuid: str, key: str | None, parts: Sequence[bytes], number: int) -> Described:
        metadata = self._metadata()
        metadata.uuid = uuid
        metadata.chunk_id = number
        metadata.num_chunks_from_msg = len(parts)
        metadata.total_chunk_msg_size = sum(len(part) for part in parts)
        if key is not None:
            metadata.partition_key = key
        return self._add(
            metadata, parts[number], [Sent(key, b"".join(parts))], chunk=(uuid, number, len(parts))
        )

    def marker(self, kind: int, key: str | None = None) -> Described:
        metadata = self._metadata()
        metadata.marker_type = kind
        if key is not None:
            metadata.partition_key = key
        return self._add(metadata, b"", [], marker=True)

    def garbage(self) -> Described:
        """A batch that claims to be compressed and is not: nobody can open it."""
        metadata = self._metadata()
        metadata.num_messages_in_batch = 3
        metadata.compression = api.ZSTD
        metadata.uncompressed_size = 100
        return self._add(metadata, b"not zstd at all", [])

    def grow(self, count: int, keys: int) -> None:
        """Add `count` random entries over `keys` keys."""
        chance = self.chance

        def message() -> Sent:
            key = None if chance.random() < 0.1 else f"k{chance.randrange(keys)}"
            return Sent(
                key, b"" if chance.random() < 0.2 else chance.randbytes(chance.randint(1, 60))
            )

        for _ in range(count):
            kind = chance.random()
            if kind < 0.45:
                sent = message()
                self.single(sent.key, sent.payload, chance.choice(COMPRESSIONS))
            elif kind < 0.85:
                self.batch(
                    [message() for _ in range(chance.randint(1, 6))], chance.choice(COMPRESSIONS)
                )
            elif kind < 0.9:
                self.chunks(
                    f"k{chance.randrange(keys)}",
                    [chance.randbytes(20) for _ in range(chance.randint(2, 4))],
                )
            elif kind < 0.95:
                self.roll()
            else:
                self.marker(10)


def reference(
    entries: Sequence[Described], *, retain_keyless: bool = False
) -> list[tuple[Place, str | None, bytes]]:
    """(place, key, payload) of every message that must be visible, in order. Chunks: one item at
    the last chunk's place."""
    newest: dict[str, tuple[Place, bytes]] = {}
    keyless: list[tuple[Place, bytes]] = []
    seen: dict[str, set[int]] = {}
    for described in entries:
        if described.marker:
            continue
        if described.chunk is not None:
            uuid, number, count = described.chunk
            seen.setdefault(uuid, set()).add(number)
            if len(seen[uuid]) < count:
                continue
        for index, sent in enumerate(described.messages):
            place = (described.ledger, described.entry, index if described.batched else -1)
            if sent.key is not None:
                newest[sent.key] = (place, sent.payload)
            else:
                keyless.append((place, sent.payload))
    found: list[tuple[Place, str | None, bytes]] = [
        (place, key, payload) for key, (place, payload) in newest.items() if payload
    ]
    if retain_keyless:
        found += [(place, None, payload) for place, payload in keyless]
    return sorted(found, key=lambda item: item[0])


def visible(rows: Iterable[tuple[int, int, bytes]]) -> list[tuple[Place, str | None, bytes]]:
    """What a client that honours `compacted_out` delivers from (ledger, entry, bytes) rows;
    chunks are put together."""
    found: list[tuple[Place, str | None, bytes]] = []
    parts: dict[str, dict[int, bytes]] = {}
    for ledger, entry, data in rows:
        parsed = parse_entry(data)
        metadata = parsed.metadata
        if metadata.HasField("marker_type"):
            continue
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        if metadata.num_chunks_from_msg > 1:
            collected = parts.setdefault(metadata.uuid, {})
            collected[metadata.chunk_id] = bytes(parsed.payload)
            if len(collected) == metadata.num_chunks_from_msg:
                found.append(
                    (
                        (ledger, entry, -1),
                        key,
                        b"".join(collected[number] for number in sorted(collected)),
                    )
                )
            continue
        payload = bytes(parsed.payload)
        if metadata.compression != api.NONE:
            payload = bytes(
                decompress(metadata.compression, parsed.payload, metadata.uncompressed_size)
            )
        if not parsed.batched or metadata.encryption_keys:
            found.append(((ledger, entry, -1), key, payload))
            continue
        at = 0
        for index in range(metadata.num_messages_in_batch):
            size = int.from_bytes(payload[at : at + 4], "big")
            single = api.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
            at += 4 + size
            content, at = payload[at : at + single.payload_size], at + single.payload_size
            if not single.compacted_out:
                found.append(
                    (
                        (ledger, entry, index),
                        single.partition_key if single.HasField("partition_key") else None,
                        content,
                    )
                )
    return found
