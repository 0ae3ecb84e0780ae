"""Carrying out what was planned about a managed etcd.

Owns: the requests behind a step of the members' plan and behind upkeep. Imports: etcd.admin,
etcd.membership, etcd.upkeep. Invariants: changes of members are asked of the leader that was seen;
what was decided on one look is asked once, never repeated without another look.
"""

from __future__ import annotations

from magnetar.errors import StoreUnavailable
from magnetar_operator.etcd.admin import EtcdAdmin
from magnetar_operator.etcd.figures import Sighting
from magnetar_operator.etcd.membership import (
    AddLearner,
    CorrectAddress,
    MemberStep,
    MoveLeader,
    Promote,
    RemoveMember,
)
from magnetar_operator.etcd.upkeep import Upkeep


def leader_of(seen: Sighting) -> int:
    """Ordinal of the leader. Raises StoreUnavailable if none was seen."""
    for ordinal, figures in seen.figures.items():
        if figures.voice.leader == figures.voice.member:
            return ordinal
    raise StoreUnavailable("no member of etcd says that it leads; looking again")


async def change_members(admin: EtcdAdmin, seen: Sighting, step: MemberStep) -> None:
    """Carry `step` out. Raises StoreError, also when etcd finds that it is too early."""
    leader = leader_of(seen)
    match step:
        case AddLearner(ordinal):
            await admin.add_learner(leader, ordinal)
        case CorrectAddress(member, ordinal):
            await admin.correct_address(leader, member, ordinal)
        case Promote(member):
            await admin.promote(leader, member)
        case RemoveMember(member):
            await admin.remove(leader, member)
        case MoveLeader(_, target):
            await admin.move_leader(leader, target)


async def keep_up(admin: EtcdAdmin, seen: Sighting, upkeep: Upkeep) -> None:
    """Carry `upkeep` out. Raises StoreError."""
    if upkeep.compact_to:
        await admin.compact(leader_of(seen), upkeep.compact_to)
    if upkeep.defragment is not None:
        await admin.defragment(upkeep.defragment)
    for member, alarm in upkeep.end_alarms:
        await admin.end_alarm(leader_of(seen), member, alarm)
