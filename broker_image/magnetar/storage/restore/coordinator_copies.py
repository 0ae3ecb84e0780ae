"""What storage says of transaction coordinators, for the day that the metadata store is lost.

Owns: the reading of their checkpoints, and the records of their numbers that follow from these.
Imports: storage formats, names, metadata records.

Why it loses nothing. An incarnation writes a checkpoint of all that the incarnations before it,
which it has fenced, have acknowledged, before it answers anything; from then on its own log since
its newest checkpoint has the rest. So the newest checkpoint of a number, and the log that it names
from there on, hold all that was answered, whatever the store's record said last. Invariant: a
number that had transactions never begins again: without its checkpoint or log there is a problem
for an operator to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from magnetar.errors import CorruptData
from magnetar.metadata import keys
from magnetar.metadata.records import (
    CheckpointPointer,
    CoordinatorRecord,
    CoordinatorState,
    LogPosition,
    LogRange,
)
from magnetar.storage import names
from magnetar.storage.log.fencing import SealedFile
from magnetar.storage.transactions.coordinator_format import decode_checkpoint
from magnetar.storage.volumes.volume import Volume


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """A number's newest checkpoint: its object, whose it is, and where its log continues."""

    object: str
    epoch: int
    incarnation: str
    position: LogPosition


@dataclass(frozen=True, slots=True)
class CoordinatorFacts:
    """The newest checkpoint of each number, and what cannot be read."""

    newest: Mapping[int, CheckpointFact] = field(default_factory=dict)
    damaged: Sequence[str] = ()


async def read_coordinators(volume: Volume) -> CoordinatorFacts:
    """The newest checkpoint of every coordinator that ever had a log. Raises StorageError."""
    newest: dict[int, str] = {}
    for name in await volume.list(names.COORDINATORS):  # sorted: later ones of a number come later
        if (tcid := names.coordinator_of(name)) is not None:
            newest[tcid] = name
    facts: dict[int, CheckpointFact] = {}
    damaged: list[str] = []
    for tcid, name in newest.items():
        try:
            found = decode_checkpoint(await volume.read(name), name)
        except CorruptData as error:
            damaged.append(str(error))
        else:
            facts[tcid] = CheckpointFact(name, found.epoch, found.incarnation, found.position)
    return CoordinatorFacts(facts, damaged)


def rebuilt_coordinators(
    facts: CoordinatorFacts, sealed: Mapping[str, Sequence[SealedFile]], kept: Mapping[str, bytes]
) -> tuple[dict[str, bytes], list[str]]:
    """The records of the numbers that storage knows, and what must be looked at; `kept` are the
    keys that a backup has."""
    items: dict[str, bytes] = {}
    problems = [
        f"{damage}: a transaction coordinator cannot begin without it; restore this file"
        for damage in facts.damaged
    ]
    for tcid, fact in facts.newest.items():
        key = keys.coordinator(tcid)
        before = (
            CoordinatorRecord.decode(kept[key])
            if key in kept
            else CoordinatorRecord("", 0, CoordinatorState.RECOVERING)
        )
        record = replace(
            before,
            incarnation=before.incarnation or fact.incarnation,
            epoch=max(before.epoch, fact.epoch),
            state=CoordinatorState.RECOVERING,
            checkpoint=CheckpointPointer(fact.object, fact.incarnation, fact.position),
            chain=(LogRange(fact.incarnation, fact.position, None),),
        )
        items[key] = record.encode()
        there = {file.number for file in sealed.get(fact.incarnation, ())}
        first = fact.position.file  # is there since before the checkpoint
        missing = sorted(set(range(first, max([first, *there]) + 1)) - there)
        problems += [
            f"transaction coordinator {tcid} cannot be recovered without "
            f"{names.log_file(fact.incarnation, number)}: restore it"
            for number in missing
        ]
    return items, problems
