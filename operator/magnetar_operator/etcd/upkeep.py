"""What keeps a managed etcd within its quota.

Owns: the decision about compaction, defragmentation and alarms. Imports: conditions,
etcd.figures. Pure. Invariants: one member is defragmented at a time, the leader last, because it
serves no request until then; without an alarm only while every member is healthy and only when it
gives back much; the space alarm is ended only when every member has room again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar_operator.conditions import Reason
from magnetar_operator.etcd.figures import Figures, Sighting

FREE_BYTES_MIN = 64 << 20
"""Less is not worth a member's pause."""
FREE_SHARE_MIN = 0.5
FREE_SHARE_MIN_ALARMED = 0.02
"""Of the quota: with the alarm on no write is accepted anyway, and little may suffice."""
ROOM_SHARE = 0.9
"""Of the quota: below it the alarm is ended."""
NO_SPACE, CORRUPT = "NOSPACE", "CORRUPT"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What to do now: forget history first (`compact_to`, 0 = no), then at most one of the
    others. `reason` None = etcd is well."""

    compact_to: int = 0
    defragment: int | None = None
    end_alarms: tuple[tuple[int, str], ...] = ()
    reason: Reason | None = None
    message: str = ""

    @property
    def is_idle(self) -> bool:
        return not (self.compact_to or self.end_alarms) and self.defragment is None


def plan_upkeep(seen: Sighting, quota_bytes: int, at_rest: bool) -> Upkeep:
    """`at_rest`: every member is healthy and nothing about members or pods is under way."""
    if not seen.figures or seen.members is None:
        return Upkeep()
    corrupt = sorted(member for member, alarm in seen.alarms if alarm == CORRUPT)
    if corrupt:
        which = ", ".join(_name(seen, member) for member in corrupt)
        return Upkeep(
            reason=Reason.ETCD_CORRUPT,
            message=f"the data of member {which} of etcd differs from the others'",
        )
    alarms = tuple(alarm for alarm in seen.alarms if alarm[1] == NO_SPACE)
    if alarms:
        return _out_of_space(seen, quota_bytes, alarms)
    if not at_rest:
        return Upkeep()
    wasteful = {
        ordinal: figures
        for ordinal, figures in seen.figures.items()
        if figures.size - figures.used >= max(FREE_BYTES_MIN, FREE_SHARE_MIN * figures.size)
    }
    return Upkeep(defragment=_leader_last(wasteful))


def _out_of_space(seen: Sighting, quota_bytes: int, alarms: tuple[tuple[int, str], ...]) -> Upkeep:
    fullest = max(seen.figures.values(), key=lambda figures: figures.size)
    message = (
        f"etcd takes no writes: its database has reached the quota of {quota_bytes >> 20} MiB "
        f"({fullest.size >> 20} MiB, {fullest.used >> 20} MiB of them in use)"
    )
    revision = max(figures.revision for figures in seen.figures.values())
    wasteful = {
        ordinal: figures
        for ordinal, figures in seen.figures.items()
        if figures.size - figures.used >= FREE_SHARE_MIN_ALARMED * quota_bytes
    }
    if wasteful:
        return Upkeep(revision, _leader_last(wasteful), (), Reason.ETCD_NO_SPACE, message)
    if fullest.size < ROOM_SHARE * quota_bytes:
        return Upkeep(
            revision,
            None,
            alarms,
            Reason.ETCD_NO_SPACE,
            f"{message}; there is room again, and the alarm is ended",
        )
    return Upkeep(revision, None, (), Reason.ETCD_NO_SPACE, message)


def _leader_last(members: Mapping[int, Figures]) -> int | None:
    if not members:
        return None
    return min(
        members,
        key=lambda ordinal: (
            members[ordinal].voice.leader == members[ordinal].voice.member,
            -ordinal,
        ),
    )


def _name(seen: Sighting, member: int) -> str:
    known = next(
        (
            str(item.ordinal)
            for item in seen.members or ()
            if item.id == member and item.ordinal is not None
        ),
        "",
    )
    return known or f"{member:x}"
