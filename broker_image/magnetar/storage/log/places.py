"""Places in a log.

Owns: `RecordPlace`. Imports: typing only.
"""

from __future__ import annotations

from typing import NamedTuple


class RecordPlace(NamedTuple):
    """Where a record lies in its incarnation's log: file number, and offset of the first byte of
    its payload in that file."""

    file: int
    offset: int
