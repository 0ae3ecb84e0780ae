"""Which object stores pass the probe at start: what a lost answer leaves behind is none of their
faults, what they show in error is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from magnetar.errors import StorageError
from magnetar.storage.volumes import object_probe
from magnetar.storage.volumes.object_probe import probe_objects
from magnetar.storage.volumes.objects import Listed
from magnetar.storage.volumes.volume import Buffer
from tests.support.brokers import CLOCK


class Objects:
    """In memory; deletions of the first object are followed by `late` puts of it, and for `stale`
    looks it is shown although it is not there."""

    lists_at_once = True

    def __init__(self, *, late: int = 0, stale: int = 0) -> None:
        self.kept: dict[str, bytes] = {}
        self._late, self._stale, self._first = late, stale, ""

    async def check(self) -> None: ...

    async def close(self) -> None: ...

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> bool:
        self._first = self._first or key
        there = key in self.kept
        self.kept.setdefault(key, b"".join(buffers))
        return not there

    async def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.kept[key][offset : None if length is None else offset + length]

    async def exists(self, key: str) -> bool:
        if key == self._first and key not in self.kept and self._stale:
            self._stale -= 1
            return True
        return key in self.kept

    async def list(self, prefix: str) -> Listed:
        return [(key, len(body)) for key, body in sorted(self.kept.items()) if prefix in key]

    async def delete(self, key: str) -> bool:
        there = self.kept.pop(key, None) is not None
        if key == self._first and self._late:
            self._late -= 1
            self.kept[key] = b"late"
        return there


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_probe, "LATE_S", 0.0)


@pytest.mark.parametrize("late", [0, 1])
async def test_a_put_that_is_carried_out_behind_its_removal_is_removed_again(late: int) -> None:
    objects = Objects(late=late)
    await probe_objects(objects, CLOCK)
    assert objects.kept == {}


@pytest.mark.parametrize("stale", [1, 3, 100])
async def test_a_store_that_shows_what_is_not_there_is_refused(stale: int) -> None:
    """What is gone at a second look without a removal was not there; nor was what is shown after
    one."""
    with pytest.raises(StorageError, match="shows objects after their removal"):
        await probe_objects(Objects(stale=stale), CLOCK)
