"""What logs say about bundles.

Owns: the reading of TERM and RELEASE records, and of topics' creations and schemas, from whole logs,
for the day that the metadata store is lost. Imports: storage formats, fencing, metadata records.
Invariants: nothing is read before its file is sealed, and what was read of a sealed file stays
true; copies that a term wrote after its RELEASE are void; damage is noted, and reading continues in
the next file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.errors import CorruptData
from magnetar.metadata.records import BundleRecord, LogPosition
from magnetar.metadata.topic_schemas import kept_in
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import SealedFile, fence, lost_file
from magnetar.storage.log.format import (
    RecordType,
    ReleaseRecord,
    TermRecord,
    TopicOperation,
    TopicRecord,
    decode_records,
)
from magnetar.storage.log.recovery import LogBlocks
from magnetar.storage.log.seals import read_whole_seal
from magnetar.storage.volumes.volume import Volume

KINDS = frozenset({RecordType.TOPIC, RecordType.RELEASE, RecordType.TERM})
Place = tuple[int, int, int]
"""Orders what was said of one bundle or topic: epoch, file, offset of the block."""

BEGINNING: Place = (-1, -1, -1)
Said = tuple[TopicRecord | ReleaseRecord | TermRecord, Place, LogPosition]
"""A record, its place, and where its block ends."""
Files = dict[tuple[str, SealedFile], list[Said]]
"""What intact sealed files say, by incarnation and file."""


class _Damaged(CorruptData):
    """A sealed file is damaged; `before` is what it says before the damage."""

    def __init__(self, message: str, before: list[Said]) -> None:
        super().__init__(message)
        self.before = before


@dataclass(frozen=True, slots=True)
class TermCopy:
    """A TERM record: the bundle's record as its owner knew it, and where the owner wrote it
    down."""

    bundle: str
    record: BundleRecord
    incarnation: str
    place: Place


@dataclass(slots=True)
class LogFacts:
    """What sealed logs say.

    `releases` are the ends of RELEASE records by (bundle, epoch); `topics` says whether a topic was
    there last; `schemas` has the newest record of each version of a topic; `lost` has the number of
    a missing file in which a log continues by its seals.
    """

    sealed: Mapping[str, Sequence[SealedFile]]
    terms: list[TermCopy] = field(default_factory=list)
    releases: dict[tuple[str, int], LogPosition] = field(default_factory=dict)
    topics: dict[str, tuple[Place, bool]] = field(default_factory=dict)
    schemas: dict[str, dict[int, tuple[Place, bytes]]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)

    def changed(self, topic: str) -> Place:
        """Where the topic was created or deleted last."""
        return self.topics[topic][0] if topic in self.topics else BEGINNING


async def fence_all(volume: Volume) -> dict[str, list[SealedFile]]:
    """End every incarnation that has a claim or a log; their sealed files. Raises StorageError;
    CorruptData for what cannot be sealed."""
    known = {name.rpartition("/")[2] for name in await volume.list(names.CLAIMS)}
    known |= {name.split("/")[1] for name in await volume.list(names.LOGS)}
    return {incarnation: await fence(volume, incarnation) for incarnation in sorted(known)}


async def read_sealed(volume: Volume, files: Files) -> None:
    """Read into `files` all that is sealed already. Brokers may serve, and delete files,
    concurrently. Raises StorageError."""
    for name in await volume.list(names.LOGS):
        number, incarnation = names.sealed_number(name), name.split("/")[1]
        if number is None:
            continue
        try:
            found = await read_whole_seal(volume, incarnation, number)
            if found is not None:
                await _read_file(
                    volume, incarnation, SealedFile(number, found.length, found.accepted), files
                )
        except (FileNotFoundError, CorruptData):
            continue  # it is looked at again when everything is fenced


async def read_logs(
    volume: Volume, sealed: Mapping[str, Sequence[SealedFile]], files: Files
) -> LogFacts:
    """Everything that these logs say about bundles; `files` has what was read already. Raises
    StorageError."""
    facts = LogFacts(sealed)
    for incarnation, found in sorted(sealed.items()):
        if (number := await lost_file(volume, incarnation, found)) is not None:
            facts.lost[incarnation] = number
        for file in found:
            try:
                _note(facts, incarnation, await _read_file(volume, incarnation, file, files))
            except _Damaged as damage:
                _note(facts, incarnation, damage.before)
                facts.damaged.append(str(damage))
    facts.terms.sort(key=lambda copy: copy.place)
    return facts


async def _read_file(
    volume: Volume, incarnation: str, file: SealedFile, files: Files
) -> list[Said]:
    """What a sealed file says, in its order. Raises _Damaged, StorageError."""
    if file.length <= FILE_HEADER_BYTES:
        return []
    if (known := files.get((incarnation, file))) is not None:
        return known
    blocks, said = (
        LogBlocks(volume, incarnation, file.number, FILE_HEADER_BYTES, file.length),
        list[Said](),
    )
    try:
        async for body_at, body in blocks:
            for _, record in decode_records(body, kinds=KINDS):
                assert isinstance(record, TopicRecord | ReleaseRecord | TermRecord)
                said.append(
                    (
                        record,
                        (record.epoch, file.number, body_at),
                        LogPosition(file.number, body_at + len(body)),
                    )
                )
            await asyncio.sleep(0)
    except CorruptData as error:
        raise _Damaged(f"{blocks.name}: {error}", said) from error
    if blocks.end != file.length:
        raise _Damaged(
            f"{blocks.name}: damaged at {blocks.end}, below its sealed length {file.length}", said
        )
    files[incarnation, file] = said
    return said


def _note(facts: LogFacts, incarnation: str, said: list[Said]) -> None:
    for record, place, end in said:
        if isinstance(record, TopicRecord):
            _note_topic(facts, record, place)
        elif isinstance(record, ReleaseRecord):
            facts.releases[record.bundle, record.epoch] = end
        elif (record.bundle, record.epoch) not in facts.releases:
            facts.terms.append(
                TermCopy(record.bundle, BundleRecord.decode(record.state), incarnation, place)
            )


def _note_topic(facts: LogFacts, record: TopicRecord, place: Place) -> None:
    for version, value in kept_in(record.properties).items():
        versions = facts.schemas.setdefault(record.topic, {})
        if version not in versions or versions[version][0] <= place:
            versions[version] = place, value
    if record.operation is TopicOperation.UPDATE:
        return
    known = facts.topics.get(record.topic)
    if known is None or known[0] <= place:
        facts.topics[record.topic] = (place, record.operation is TopicOperation.CREATE)
