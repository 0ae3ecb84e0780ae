"""A volume in memory that may be broken."""

from __future__ import annotations

from magnetar.errors import StorageError


class Shelf:
    """A volume in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.broken = False

    def _check(self) -> None:
        if self.broken:
            raise StorageError("broken")

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check()
        return self.stored.setdefault(name, data) is data

    async def list(self, prefix: str) -> list[str]:
        self._check()
        return [name for name in self.stored if name.startswith(prefix)]

    async def remove(self, name: str) -> bool:
        return self.stored.pop(name, None) is not None

    async def exists(self, name: str) -> bool:
        return name in self.stored

    async def read(self, name: str) -> bytes:
        return self.stored[name]
