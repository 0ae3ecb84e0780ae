"""What a member of etcd reports.

Owns: `Figures` and `Sighting`. Imports: members. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar_operator.etcd.membership import Member, Voice


@dataclass(frozen=True, slots=True)
class Figures:
    """What one member reports. Sizes in bytes; `used` is what a defragmentation would
    leave of `size`."""

    voice: Voice
    cluster: int
    version: str
    revision: int
    size: int
    used: int
    learner: bool


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look: the members as a quorum confirmed them (None: it did not), and what each that
    answered says of itself, by ordinal.

    `alarms`: (member id, NOSPACE or CORRUPT).
    """

    members: tuple[Member, ...] | None
    figures: Mapping[int, Figures]
    alarms: tuple[tuple[int, str], ...] = ()

    @property
    def voices(self) -> dict[int, Voice]:
        return {ordinal: figures.voice for ordinal, figures in self.figures.items()}
