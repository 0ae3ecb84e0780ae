"""Of many puts of one key exactly one learns that it won, whatever is lost, repeated or refused
on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import StorageError
from magnetar.storage.volumes import objects as objects_module
from magnetar.storage.volumes import outage as object_outage
from magnetar.storage.volumes.objects import ObjectTaken, RetryingObjects
from magnetar.storage.volumes.volume import Buffer
from tests.support.logs import CLOCK
from tests.support.objects_in_memory import MemoryService, unclear_times


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PAUSE_FIRST_S", 0.0)
    monkeypatch.setattr(object_outage, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(objects_module, "OUTAGE_S_MAX", 0.2)


def put(service: MemoryService, data: bytes) -> bool:
    return asyncio.run(RetryingObjects(service, CLOCK).put_if_absent("key", [data]))


def test_a_put_whose_answer_was_lost_recognises_its_own_object() -> None:
    service = MemoryService()
    service.after = unclear_times(1)
    assert put(service, b"mine")
    assert (service.creates, service.objects["key"][0]) == (2, b"mine")


def test_a_put_that_was_lost_before_it_took_effect_loses_to_another() -> None:
    """Equal bytes do not make it ours."""
    service = MemoryService()
    service.objects["key"] = (b"same", "another's mark")
    service.before = unclear_times(2)
    assert not put(service, b"same")


def test_a_conflict_of_two_requests_decides_nothing() -> None:
    """409: the key is refused, and nobody has it."""
    service, refusals = MemoryService(), [2]

    def conflict(key: str) -> None:
        if refusals[0]:
            refusals[0] -= 1
            raise ObjectTaken(key)

    service.before = conflict
    assert put(service, b"mine")
    assert service.creates == 3


async def test_the_check_of_a_store_survives_a_conflict_that_decides_nothing() -> None:
    """409 to its only creation, lost answers: a server must start on a day like that."""
    service, refusals = MemoryService(), [1]

    def conflict(key: str) -> None:
        if refusals[0]:
            refusals[0] -= 1
            raise ObjectTaken(key)

    service.before, service.after = conflict, unclear_times(1)
    await RetryingObjects(service, CLOCK).check()
    assert service.objects == {}


async def test_a_store_that_drops_marks_is_refused() -> None:
    class Forgetful(MemoryService):
        async def create(self, key: str, buffers: Sequence[Buffer], mark: str) -> None:
            del mark
            await super().create(key, buffers, "")

    with pytest.raises(StorageError, match="drops the metadata"):
        await RetryingObjects(Forgetful(), CLOCK).check()


async def test_an_outage_is_waited_for_until_it_is_too_long() -> None:
    """Then each further request is tried once."""

    service = MemoryService()
    service.before = unclear_times(1 << 30)
    objects = RetryingObjects(service, CLOCK)
    with pytest.raises(StorageError, match=r"failed [0-9]+ times within [0-9]+ s, last: key"):
        await objects.put_if_absent("key", [b"mine"])
    assert service.objects == {}
    before = service.creates
    with pytest.raises(StorageError, match="failed 1 times"):
        await objects.put_if_absent("other", [b"mine"])
    assert service.creates == before + 1
    service.before = unclear_times(0)
    assert await objects.put_if_absent("key", [b"mine"])


async def test_a_deletion_says_whether_something_was_there() -> None:
    objects = RetryingObjects(MemoryService(), CLOCK)
    await objects.put_if_absent("key", [b"1"])
    assert [
        await objects.delete("key"),
        await objects.delete("key"),
        await objects.exists("key"),
    ] == [True, False, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_exactly_one_of_many_puts_wins(troubles: list[tuple[int, int]]) -> None:
    """`troubles`: how often each put is lost before, and its answer after it took effect; they
    go one after another."""
    service = MemoryService()
    won = []
    for number, (before, after) in enumerate(troubles):
        service.before, service.after = unclear_times(before), unclear_times(after)
        won.append(put(service, b"%d" % number))
    assert won == [True] + [False] * (len(troubles) - 1)
    assert service.objects["key"][0] == b"0"
