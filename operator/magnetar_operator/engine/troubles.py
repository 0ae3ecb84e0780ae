"""What is wrong with an object: all of it.

Owns: the order of problems by gravity, what the conditions say of them, the list in the status.
Imports: conditions, resources.base. Pure. Invariants: conditions name the most serious problem and
count the others; `since` of a trouble changes only when no trouble of its reason and object was
there before; the list is bounded, and one reason with many objects leaves room for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from magnetar.resources.base import Trouble
from magnetar_operator.conditions import (
    MESSAGE_LENGTH_MAX,
    Finding,
    Problem,
    Reason,
    Type,
    timestamp,
)

TROUBLES_MAX = 20
PER_REASON_MAX = 5
TROUBLE_LENGTH_MAX = 400
_NOTHING = {Type.PROGRESSING: "Nothing is under way.", Type.DEGRADED: "Nothing needs repair."}
_STORE = frozenset(
    {
        Reason.ETCD_DATA_LOST,
        Reason.ETCD_NO_QUORUM,
        Reason.ETCD_CORRUPT,
        Reason.ETCD_NO_SPACE,
        Reason.ETCD_AUTHORITY_LOST,
        Reason.ETCD_CREDENTIALS,
        Reason.RESTORE_WAITS,
        Reason.RESTORE_FAILED,
        Reason.RESTORE_REFUSED,
        Reason.RESTORING,
        Reason.STORE_UNAVAILABLE,
    }
)
"""The most serious: nothing in the cluster can change."""
_LATER = frozenset(
    {
        Reason.BACKUP_FAILED,
        Reason.BACKUP_OVERDUE,
        Reason.CERTIFICATE_EXPIRES,
        Reason.ETCD_ACCESS,
        Reason.ETCD_CERTIFICATE_ENDS,
        Reason.ETCD_STRANGER,
        Reason.ETCD_VERSION,
        Reason.STORAGE_NOT_EXPANDABLE,
    }
)
"""The least: everything is served, and something asked for is not done or may fail later."""


def ranked(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Each problem once, the most serious first; of the same gravity in the order given, which has
    causes before what follows from them."""
    return tuple(sorted(dict.fromkeys(problems), key=_gravity))


def _gravity(problem: Problem) -> int:
    return 0 if problem.reason in _STORE else 2 if problem.reason in _LATER else 1


def standing(
    available: Finding, progress: Problem | None, troubles: Sequence[Problem], complete: str
) -> list[Finding]:
    """Available, Progressing, Degraded and Ready of something that runs: what is wrong outranks
    what is under way, and either keeps it from being Ready; `troubles` are ranked, `complete` is
    what Ready says otherwise."""
    degraded = _headline(troubles)
    blocker = degraded or progress
    return [
        available,
        _finding(Type.PROGRESSING, progress),
        _finding(Type.DEGRADED, degraded),
        Finding(Type.READY, False, blocker.reason, blocker.message)
        if blocker
        else Finding(Type.READY, True, Reason.AS_DESIRED, complete),
    ]


def availability(wanted: int, pods: int, ready: int, serving: str, none_serves: Reason) -> Finding:
    """Available of `wanted` pods of which some exist and are ready; `serving` says what they
    do."""
    if wanted == 0 and not pods:
        return Finding(Type.AVAILABLE, False, Reason.STOPPED)
    if ready:
        message = f"{ready} of {wanted} {serving}"
        return Finding(Type.AVAILABLE, True, Reason.AS_DESIRED, message)
    return Finding(Type.AVAILABLE, False, none_serves)


def obstructed(problem: Problem) -> list[Finding]:
    """For a resource that cannot act at all."""
    return [
        _finding(Type.DEGRADED, problem),
        Finding(Type.READY, False, problem.reason, problem.message),
    ]


def _headline(troubles: Sequence[Problem]) -> Problem | None:
    """The most serious of them, with the number of the others and what they are."""
    if len(troubles) < 2:
        return troubles[0] if troubles else None
    first, *others = troubles
    counts = Counter(problem.reason.value for problem in others)
    words = ", ".join(f"{count} x {word}" if count > 1 else word for word, count in counts.items())
    more = f" [and {len(others)} more in status.troubles: {words}]"
    return Problem(
        first.reason, first.message[: MESSAGE_LENGTH_MAX - len(more)] + more, first.about
    )


def _finding(kind: Type, problem: Problem | None) -> Finding:
    if problem is None:
        return Finding(kind, False, Reason.AS_DESIRED, _NOTHING[kind])
    return Finding(kind, True, problem.reason, problem.message)


def listed(
    previous: Iterable[Trouble], troubles: Sequence[Problem], wall_ms: int
) -> tuple[Trouble, ...]:
    """The list in the status, the most serious first."""
    since = {(trouble.reason, trouble.about): trouble.since for trouble in previous}
    return tuple(
        Trouble(
            reason=problem.reason.value,
            about=problem.about,
            message=problem.message[:TROUBLE_LENGTH_MAX],
            since=since.get((problem.reason.value, problem.about), timestamp(wall_ms)),
        )
        for problem in _bounded(troubles)
    )


def _bounded(troubles: Sequence[Problem]) -> list[Problem]:
    kept: list[Problem] = []
    counts: Counter[Reason] = Counter()
    for problem in troubles:
        counts[problem.reason] += 1
        if counts[problem.reason] <= PER_REASON_MAX:
            kept.append(problem)
    return kept[:TROUBLES_MAX]
