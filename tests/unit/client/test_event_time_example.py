"""The example of event-time windows counts each reading once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from magnetar.client import Consumer, Message, MessageId, Reset, Watermark
from magnetar.client.schemas import BYTES

PLACE = Path(__file__).parents[3] / "examples" / "event_time_windows.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("event_time_windows", PLACE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Scripted:
    """A consumer that gets what the script says."""

    def __init__(self, *script: Message[bytes] | Watermark | Reset) -> None:
        self._script, self.acknowledged = [*script], list[MessageId]()

    async def receive_or_watermark(self) -> Message[bytes] | Watermark | Reset:
        return self._script.pop(0)

    def acknowledge_nowait(self, message: Message[bytes]) -> None:
        self.acknowledged.append(message.id)


def reading(entry: int, producer: str, sequence: int, event_ms: int) -> Message[bytes]:
    described: dict[str, Any] = {
        "key": None,
        "ordering_key": None,
        "properties": {},
        "publish_time_ms": 1,
        "redelivery_count": 0,
    }
    return Message(
        id=MessageId(1, entry),
        topic="t",
        data=b"",
        schema=BYTES,
        null_value=False,
        event_time_ms=event_ms,
        sequence_id=sequence,
        producer_name=producer,
        **described,
    )


async def test_a_reading_that_is_stored_twice_counts_once(example: ModuleType) -> None:
    """Its producer sent it again, for its receipt was lost; a redelivery and a reset change no
    window. Each copy is acknowledged."""
    consumer = Scripted(
        reading(0, "p", 0, 10),
        reading(1, "p", 1, 20),
        reading(1, "p", 1, 20),
        Reset(None),
        reading(2, "p", 1, 20),
        reading(3, "q", 1, 1_500),
        Watermark(1_200),
        reading(4, "r", 0, 900),
        Watermark(2_000),
    )
    windows = example.Windows()
    await example.count(cast("Consumer[bytes]", consumer), windows, 2_000)
    assert windows.closed == {0: 2, 1_000: 1}
    assert windows.late == 1
    assert [found.entry for found in consumer.acknowledged] == [0, 1, 1, 2, 3, 4]
