"""Amounts in words.

Owns: how sizes and durations are written for people, in the command line and in explanations.
Imports: nothing. Pure.
"""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: float) -> str:
    """Bytes for people: 0 B, 4.0 KiB, 1.5 MiB."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{int(count)} B"


def age_text(seconds: float) -> str:
    """A duration for people: 12 s, 5 min, 3.2 h, 4.1 days."""
    if seconds < 120:
        return f"{max(0, int(seconds))} s"
    if seconds < 7200:
        return f"{int(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
