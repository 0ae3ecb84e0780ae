"""What waits for the next flush of a log.

Owns: `Block`, the records of one group commit. Imports: places, volume.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.storage.log.places import RecordPlace
from magnetar.storage.volumes.volume import Buffer

Durable = Callable[[RecordPlace], object]


class Block:
    """Records that will be flushed together; callbacks and heads with the offset of their record
    in the body."""

    __slots__ = ("buffers", "callbacks", "heads", "records", "size")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.callbacks: list[tuple[int, Durable]] = []
        self.heads: list[tuple[int, bytes]] = []
        self.records = self.size = 0
