"""A table view of a topic of a real broker: what it holds, and when."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.client import AlreadyClosed, Client, JsonSchema
from tests.support.brokers import running_broker
from tests.support.polling import until


@dataclasses.dataclass(frozen=True)
class Reading:
    """A value."""

    celsius: int


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Client]:
    async with (
        running_broker(directory) as broker,
        Client(broker.service_url, operation_timeout_s=20) as client,
    ):
        yield client


async def test_it_has_the_latest_value_of_each_key_and_follows(tmp_path: Path) -> None:
    """What was there when it was made is there at once; a message without a key is passed over, one
    without a value removes its key."""
    async with connected(tmp_path) as client:
        producer = await client.create_producer("t")
        for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3"), (None, b"x"), ("b", None)):
            await producer.send(value, key=key)
        view = await client.create_table_view("t")
        assert dict(view) == {"a": b"3"}
        seen: list[tuple[str, bytes | None]] = []
        view.listen(lambda key, value: seen.append((key, value)), existing=True)
        await producer.send(b"4", key="c")
        await producer.send(b"", key="a")
        await view.refresh()
        assert dict(view) == {"c": b"4"}
        assert seen == [("a", b"3"), ("c", b"4"), ("a", None)]
        assert (len(view), "a" in view, view.get("a"), view["c"]) == (1, False, None, b"4")
        await view.close()
        await producer.send(b"5", key="c")
        assert view["c"] == b"4"
        with pytest.raises(AlreadyClosed):
            await view.refresh()


async def test_several_wait_for_one_message_and_a_bad_listener_stops_nothing(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as client:
        view = await client.create_table_view("t")
        assert not view

        def broken(_key: str, _value: bytes | None) -> None:
            raise RuntimeError("listener")

        view.listen(broken)
        producer = await client.create_producer("t")
        for number in range(5):
            await producer.send(b"%d" % number, key="k")
            await asyncio.gather(*(view.refresh() for _ in range(4)))
            assert view["k"] == b"%d" % number


async def test_values_have_a_schema_and_what_is_none_changes_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        typed = await client.create_producer("t", schema=JsonSchema(Reading))
        view = await client.create_table_view("t", schema=JsonSchema(Reading))
        await typed.send(Reading(21), key="hall")
        await view.refresh()
        assert view["hall"] == Reading(21)
        await typed.send(None, key="hall")
        await view.refresh()
        assert "hall" not in view


async def test_it_ends_with_its_client(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        view = await client.create_table_view("t")
        await client.close()
        await until(lambda: isinstance(view.failure, AlreadyClosed))
