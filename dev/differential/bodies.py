"""What the options of a scenario's steps stand for on the wire.

Owns: schemas, message ids and entries made from them. Imports: play, magnetar.wire. Invariant: a
message that the scenario does not have has no id (None).
"""

from __future__ import annotations

import time
from typing import Any

from dev.differential.play import Play
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import BatchMessage, encode_batch

Options = dict[str, Any]
EXTREMES = {"earliest": (2**64 - 1, 2**64 - 1), "latest": (2**63 - 1, 2**63 - 1)}


def schema_of(options: Options) -> api.Schema:
    return api.Schema(
        name=options.get("name", ""),
        type=api.Schema.Type.Value(options["type"]),
        schema_data=options.get("definition", "").encode(),
    )


def id_of(play: Play, name: str) -> api.MessageIdData | None:
    """The id that `m3`, `m3:1` (a message of a batch), `earliest` or `latest` stands for."""
    if name in EXTREMES:
        ledger, entry = EXTREMES[name]
        return api.MessageIdData(ledgerId=ledger, entryId=entry)
    whole, _, index = name.partition(":")
    found = play.names.find(whole)
    if found is None:
        return None
    data = api.MessageIdData(ledgerId=found.ledger, entryId=found.entry)
    if index:
        data.batch_index, data.batch_size = int(index), found.messages
    return data


def acknowledged_id(play: Play, name: str, cumulative: bool) -> api.MessageIdData | None:
    """As clients acknowledge: of a message in a batch, which of the batch are left, if any."""
    whole, _, index = name.partition(":")
    found, data = play.names.find(whole), id_of(play, whole)
    if data is None or found is None or not index or found.messages == 1:
        return data
    left = [number for number in range(found.messages) if number != int(index)]
    if cumulative:
        left = [number for number in left if number > int(index)]
    if not left:
        return data
    data.ack_set.append(sum(1 << number for number in left))
    data.batch_size = found.messages
    return data


def next_entry(
    play: Play, options: Options, sequence: int, name: str
) -> tuple[api.MessageMetadata, bytes]:
    """Metadata and payload of the next entry: one message, or a batch of `messages`."""
    number = len(play.names.published)
    metadata = api.MessageMetadata(
        producer_name=name, sequence_id=sequence, publish_time=play.publish_ms()
    )
    for key in ("partition_key", "event_time", "schema_version", "null_value"):
        if key in options:
            value = options[key]
            setattr(metadata, key, bytes.fromhex(value) if key == "schema_version" else value)
    if "ordering_key" in options:
        metadata.ordering_key = options["ordering_key"].encode()
    if "delay_ms" in options:
        metadata.deliver_at_time = int(time.time() * 1000) + options["delay_ms"]
    if "chunk" in options:
        chunk, chunks, identity = options["chunk"]
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = identity, chunk, chunks
        metadata.total_chunk_msg_size = 8 * chunks
    payload = f"value-{number}".encode() + b"." * options.get("pad", 0)
    if options.get("empty"):
        payload = b""
    if "messages" in options:
        count = metadata.num_messages_in_batch = options["messages"]
        metadata.highest_sequence_id = sequence + count - 1
        keys = options.get("keys", [])
        payload = encode_batch(
            BatchMessage(
                api.SingleMessageMetadata(
                    payload_size=0,
                    sequence_id=sequence + index,
                    **({"partition_key": keys[index]} if keys else {}),
                ),
                f"value-{number}-{index}".encode(),
            )
            for index in range(count)
        )
    return metadata, payload
