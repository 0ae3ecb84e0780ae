"""Payload of a WATERMARK record, version 1.

Owns: its bytes: epoch u64, bytes of the topic's name u16, reserved u16, the name, then one control
record as `magnetar.watermarks.codec` encodes it. All numbers are little-endian. Imports: framing.
Pure. Invariants: what a control record means is not known here; released versions are never edited.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from magnetar.storage.log.framing import bounded_length

_HEAD = struct.Struct("<QHH")


@dataclass(slots=True)
class WatermarkRecord:
    """A control record of a topic: it has no entry id. (Not frozen, for the sake of replay.)"""

    epoch: int
    topic: str
    control: bytes


def watermark_payload(epoch: int, topic: bytes, control: bytes) -> bytes:
    """Raises LimitExceeded for a name beyond 65535 bytes."""
    return b"".join((_HEAD.pack(epoch, bounded_length(topic), 0), topic, control))


def decode_watermark(payload: memoryview) -> WatermarkRecord:
    epoch, length, _ = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    if end > len(payload):
        raise ValueError(f"a topic's name of {length} bytes is cut off")
    return WatermarkRecord(epoch, str(payload[_HEAD.size : end], "utf-8"), bytes(payload[end:]))
