"""Strategies of compatibility.

Owns: `Strategy` and what each asks for. Imports: nothing. Source: Pulsar's
`SchemaCompatibilityStrategy`, and the older `SchemaAutoUpdateCompatibilityStrategy`. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Strategy(enum.StrEnum):
    """How a new schema must fit those before it. UNDEFINED leaves it to the level above."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_earlier(self) -> bool:
        """Whether the new schema must read what was written with earlier ones."""
        return self in _BACKWARD

    @property
    def is_read_by_earlier(self) -> bool:
        """Whether earlier schemas must read what is written with the new one."""
        return self in _FORWARD

    @property
    def transitive(self) -> bool:
        """Whether all earlier versions count, and not the last one alone."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def for_consumers(self) -> Strategy:
        """What a consumer's schema is checked by: it must read what is there. Where all versions
        count, Pulsar checks it as a producer's, except under FORWARD_TRANSITIVE."""
        if self in (Strategy.FORWARD, Strategy.FULL, Strategy.FORWARD_TRANSITIVE):
            return Strategy.BACKWARD
        return self


_BACKWARD = frozenset(
    {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE}
)
_FORWARD = frozenset(
    {Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE}
)
DEFAULT = Strategy.FULL
AUTO_UPDATE: Mapping[str, Strategy] = MappingProxyType(
    {
        "AutoUpdateDisabled": Strategy.ALWAYS_INCOMPATIBLE,
        "AlwaysCompatible": Strategy.ALWAYS_COMPATIBLE,
        "Backward": Strategy.BACKWARD,
        "Forward": Strategy.FORWARD,
        "Full": Strategy.FULL,
        "BackwardTransitive": Strategy.BACKWARD_TRANSITIVE,
        "ForwardTransitive": Strategy.FORWARD_TRANSITIVE,
        "FullTransitive": Strategy.FULL_TRANSITIVE,
    }
)
"""The older policy's names."""
