"""A consumer's watermark: its place between messages, the minimum over partitions, and resets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from magnetar.client.inbox import Inbox
from magnetar.client.messages import Message, MessageId
from magnetar.client.schemas import BYTES
from magnetar.client.watermarks import Watermarks, WatermarkView
from magnetar.watermarks.generator import Effect, Reset, Watermark

FIRST, SECOND = (7, 1), (7, 2)
"""Generations."""


class Source:
    """A partition that drops nothing."""

    def on_taken(self, copy: int, message: Message[Any]) -> None:
        pass

    def leaves_out(self, *_copy: object) -> bool:
        return False

    def readable(self, message: Message[bytes]) -> Message[bytes]:
        return message


def message(event_ms: int | None) -> Message[bytes]:
    return Message(
        id=MessageId(1, 0, -1, -1, 0),
        topic="t",
        data=b"",
        schema=BYTES,
        null_value=False,
        key=None,
        ordering_key=None,
        properties={},
        publish_time_ms=0,
        event_time_ms=event_ms,
        sequence_id=0,
        producer_name="p",
        redelivery_count=0,
        index=None,
        broker_publish_time_ms=None,
    )


async def inbox_of(*topics: str) -> tuple[Inbox, Watermarks, list[Effect]]:
    seen: list[Effect] = []
    watermarks = Watermarks(seen.append)
    for topic in topics:
        watermarks.add(topic)
    return Inbox(watermarks), watermarks, seen


async def test_it_holds_behind_the_messages_before_it() -> None:
    """A copy that was received earlier may be older: it is taken first, and is not late."""
    inbox, watermarks, seen = await inbox_of("a")
    inbox.put(Source(), 0, message(5))
    inbox.put_watermark("a", 8, FIRST)
    inbox.put_watermark("a", 9, FIRST)
    inbox.put(Source(), 1, message(12))
    assert watermarks.last_ms is None
    assert (await inbox.take()).event_time_ms == 5
    assert watermarks.last_ms is None
    await asyncio.sleep(0)
    assert (watermarks.last_ms, seen) == (9, [Watermark(9)])
    inbox.put_watermark("a", 20, FIRST)
    assert (await inbox.take()).event_time_ms == 12
    inbox.put(Source(), 2, message(3))
    assert (await inbox.take()).event_time_ms == 3
    assert (watermarks.last_ms, watermarks.late) == (20, 1)


@pytest.mark.parametrize("first", ["message", "watermark"])
async def test_a_blocked_receiver_is_released_by_either(first: str) -> None:
    """Also by one that comes before it has begun to wait."""
    inbox, watermarks, _ = await inbox_of("a")
    view = WatermarkView(watermarks)
    for pause in range(4):
        receiving = asyncio.create_task(inbox.take_with(view))
        for _ in range(pause):
            await asyncio.sleep(0)
        if first == "message":
            inbox.put(Source(), pause, message(pause))
        else:
            inbox.put_watermark("a", pause, FIRST)
        received = await asyncio.wait_for(receiving, 120)
        if isinstance(received, Watermark):
            assert received == Watermark(pause)
        else:
            assert cast("Message[bytes]", received).event_time_ms == pause


async def test_it_is_the_least_of_the_partitions() -> None:
    """It waits for all of them; one that has ended and was read is not waited for."""
    inbox, watermarks, seen = await inbox_of("a", "b", "c")
    inbox.put_watermark("a", 5, FIRST)
    inbox.put_watermark("b", 9, FIRST)
    assert watermarks.last_ms is None
    watermarks.remove("c")
    assert watermarks.last_ms == 5
    inbox.put_watermark("a", 20, FIRST)
    assert seen == [Watermark(5), Watermark(9)]
    watermarks.add("d")
    inbox.put_watermark("b", 30, FIRST)
    assert watermarks.last_ms == 9


async def test_the_last_watermark_comes_behind_the_end_of_the_topic() -> None:
    """Of its only partition, or of the last one that ends."""
    inbox, watermarks, seen = await inbox_of("a", "b")
    inbox.put_watermark("a", 5, FIRST)
    inbox.put_watermark("b", 9, FIRST)
    watermarks.remove("b")
    watermarks.remove("a")
    inbox.put_watermark("a", 20, FIRST)
    assert seen == [Watermark(5), Watermark(20)]


async def test_it_goes_back_with_another_generation_only() -> None:
    """Within one a lower value is an echo; slow receivers see that there was a reset."""
    inbox, watermarks, seen = await inbox_of("a")
    view = WatermarkView(watermarks)
    inbox.put_watermark("a", 50, FIRST)
    inbox.put_watermark("a", 40, FIRST)
    inbox.put_watermark("a", None, FIRST)
    assert watermarks.last_ms == 50
    inbox.put_watermark("a", 60, SECOND)
    inbox.put_watermark("a", 10, FIRST)
    inbox.put_watermark("a", 20, FIRST)
    assert seen == [Watermark(50), Watermark(60), Reset(10), Watermark(20)]
    assert view.take() == Reset(20)
    assert view.take() is None


async def test_the_iterator_ends_with_the_consumer() -> None:
    inbox, watermarks, _ = await inbox_of("a")
    inbox.put_watermark("a", 1, FIRST)
    seen = []
    async for change in WatermarkView(watermarks):
        seen.append(change)
        watermarks.close()
    assert seen == [Watermark(1)]
