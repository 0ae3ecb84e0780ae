"""Numbers that order the messages of one compaction's input.

Owns: the layout of an order. Imports: nothing. Pure. An order is a signed 64-bit integer: group (17
bits) | row in the group (26) | index in the batch (19) | live (1). Groups are planned in position
order and rows are counted as they are read, so comparing orders compares positions, and the newest
message of a key is a plain `max`: Spark aggregates primitive longs in its fast hash aggregation,
and phase 1 shuffles keys and eight bytes. Invariants: the same input in the same plan gives the
same orders, on any executor, any attempt; the live bit is below everything else, so it never
decides which of two messages is newer.
"""

from __future__ import annotations

LIVE = 1
INDEX_BITS, ROW_BITS, GROUP_BITS = 19, 26, 17
INDEX_SHIFT = 1
ROW_SHIFT = INDEX_SHIFT + INDEX_BITS
GROUP_SHIFT = ROW_SHIFT + ROW_BITS
INDEXES_MAX, ROWS_MAX, GROUPS_MAX = 1 << INDEX_BITS, 1 << ROW_BITS, 1 << GROUP_BITS


def order_of(group: int, row: int, index: int, live: bool) -> int:
    """The order of one message."""
    assert 0 <= group < GROUPS_MAX
    assert 0 <= row < ROWS_MAX
    assert 0 <= index < INDEXES_MAX
    return group << GROUP_SHIFT | row << ROW_SHIFT | index << INDEX_SHIFT | (LIVE if live else 0)


def group_of(order: int) -> int:
    return order >> GROUP_SHIFT


def row_of(order: int) -> int:
    return order >> ROW_SHIFT & ROWS_MAX - 1


def index_of(order: int) -> int:
    return order >> INDEX_SHIFT & INDEXES_MAX - 1
