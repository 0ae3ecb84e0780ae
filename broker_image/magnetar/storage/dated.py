"""Objects whose names say when they are from and how large they are.

Owns: which of them are kept. Imports: nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping


def surplus(
    places: Mapping[str, tuple[int, int]],
    since_ms: int,
    bytes_max: int,
    count_max: int | None = None,
) -> list[str]:
    """Names to delete, the oldest first: what is from before `since_ms`, or beyond so many bytes or
    objects. `places`: (time in milliseconds, bytes) by name; names sort by time."""
    size, gone = 0, []
    for number, (name, (at_ms, length)) in enumerate(sorted(places.items(), reverse=True)):
        size += length
        beyond = count_max is not None and number >= count_max
        if at_ms < since_ms or size > bytes_max or beyond:
            gone.append(name)
    return gone[::-1]
