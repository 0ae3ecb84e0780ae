"""An object service in memory that answers as one asks it to.

Owns: `MemoryService`, an `ObjectClient` whose requests may be lost, answered late or refused;
`Laggard`, whose lists lag behind; and quick ways to a volume over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.storage.volumes.objects import Listed, ObjectTaken, ObjectUnclear, RetryingObjects
from magnetar.storage.volumes.volume import Buffer


class MemoryService:
    """`before` and `after` are called around what a create does, with the key: what they raise
    is its answer."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.before: Callable[[str], None] = lambda _key: None
        self.after: Callable[[str], None] = lambda _key: None
        self.creates = self.lists = self.gets = 0

    async def create(self, key: str, buffers: Sequence[Buffer], mark: str) -> None:
        self.creates += 1
        self.before(key)
        if key in self.objects:
            raise ObjectTaken(key)
        self.objects[key] = (b"".join(buffers), mark)
        self.after(key)

    def _found(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    async def mark_of(self, key: str) -> str:
        return self._found(key)[1]

    async def get(self, key: str, offset: int, length: int | None) -> bytes:
        self.gets += 1
        data = self._found(key)[0]
        return data[offset:] if length is None else data[offset : offset + length]

    async def list(self, prefix: str) -> Listed:
        self.lists += 1
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return sorted(
            (key, len(data)) for key, (data, _) in self.objects.items() if key.startswith(below)
        )

    async def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    async def close(self) -> None:
        """Nothing is held."""


def unclear_times(times: int) -> Callable[[str], None]:
    """Raises ObjectUnclear so many times."""
    left = [times]

    def strike(key: str) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise ObjectUnclear(key)

    return strike


class Laggard(MemoryService):
    """A service whose lists stop short of what was created last."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: set[str] = set()

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        return [item for item in await super().list(prefix) if item[0] not in self.hidden]


class LaggardObjects(RetryingObjects):
    lists_at_once = False
