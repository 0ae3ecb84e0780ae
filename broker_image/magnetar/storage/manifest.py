"""Manifests of a bundle (version 2).

Owns: the immutable object that says which files hold a bundle's entries, and its commit through the
metadata store. Imports: errors, clock, names, metadata, volume. Invariants: an object is never
changed and its name never used twice; the store's pointer moves only by compare-and-swap,
generation by generation; a rewrite is committed only while its inputs are still listed, its topic's
compaction generation is what it started from, and its intent stands, which the same transaction
removes; however many topics and segments there are, the event loop serves other tasks in between.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from magnetar.clock import Clock
from magnetar.errors import CorruptData, StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.codec import built, members
from magnetar.metadata.records import ManifestPointer
from magnetar.metadata.store import Compare, Delete, MetadataStore, Operation, Put
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.document import close_document, decode_document, document_json, json_items
from magnetar.storage.segments.format import Footer
from magnetar.storage.turns import Turns
from magnetar.storage.volumes.volume import Volume

KIND, VERSION = "manifest", 2
COMMIT_ATTEMPTS_MAX = 64
TURN_BYTES = 32 << 10
TURN_PARSED = 200
"""A manifest is written in turns of this many bytes and parsed in turns of this many topics and
segments, one or two milliseconds each."""


@dataclass(frozen=True, slots=True)
class LevelZero:
    """A sealed log file that holds entries of this bundle, written in these epochs. Which
    topics: its index says."""

    incarnation: str
    file: int
    length: int
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SegmentReference:
    """A level-1 segment: object name and length in bytes, what it holds, (ledger, entry) of its
    first and last row.

    Segments of several small topics share one object: then each begins at its own `offset`, and is
    read as if it were alone.
    """

    object: str
    length: int
    entries: int
    bytes: int
    first: tuple[int, int]
    last: tuple[int, int]
    offset: int = 0

    @staticmethod
    def written(object: str, length: int, footer: Footer, offset: int = 0) -> SegmentReference:
        """The reference to a segment with this block index."""
        first, last = footer.blocks[0], footer.blocks[-1]
        return SegmentReference(
            object,
            length,
            footer.rows,
            sum(block.bytes for block in footer.blocks),
            (first.first_ledger, first.first_entry),
            (last.last_ledger, last.last_entry),
            offset,
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compacted view: the newest entry per key up to and including `horizon`. `generation`
    grows by one per compaction."""

    generation: int
    horizon: tuple[int, int]
    segments: tuple[SegmentReference, ...]

    @property
    def first(self) -> tuple[int, int] | None:
        """Position of the first entry that it holds; None if it holds none."""
        return self.segments[0].first if self.segments else None


@dataclass(frozen=True, slots=True)
class TopicSegments:
    """One topic: segments in position order; `trimmed` is the last position that retention or a
    deletion removed.

    `complete`, of a topic that was used with transactions: what they have published up to and
    including this position is in segments, as entries of the topic; what lies behind it may still
    have its bytes in the sidecar only. It never goes back. None: unknown.
    """

    level1: tuple[SegmentReference, ...] = ()
    compacted: Compacted | None = None
    trimmed: tuple[int, int] | None = None
    complete: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of `bundle` (its full name).

    `covered` is (epoch, file number): everything of terms before that epoch, and of that term in
    files before that number, has been taken in here; it only grows, and a merged bundle begins with
    the lesser of its parents'. What is taken in and not listed any more was rewritten, or trimmed:
    it is never listed again, since no chain reaches back to it.
    """

    bundle: str
    generation: int
    level0: tuple[LevelZero, ...] = ()
    topics: dict[str, TopicSegments] = field(default_factory=dict)
    covered: tuple[int, int] | None = None

    @property
    def newest_term(self) -> int:
        """The newest term of which anything is known to have been taken in. A merged manifest may
        have taken in more than it covers."""
        covered = self.covered[0] if self.covered is not None else -1
        return max((covered, *(epoch for file in self.level0 for epoch in file.epochs)))

    def topic(self, name: str) -> TopicSegments:
        """The segments of a topic, empty ones if it has none."""
        return self.topics.get(name, TopicSegments())

    def with_files(self, files: Sequence[LevelZero], reached: tuple[int, int]) -> Manifest:
        """This manifest with sealed log files taken in, up to `reached` (as `covered`); what was
        covered before is left as it is."""
        before = self.covered
        known = {(entry.incarnation, entry.file): entry for entry in self.level0}
        for file in files:
            listed = known.get((file.incarnation, file.file))
            epochs = {
                epoch for epoch in file.epochs if before is None or (epoch, file.file) >= before
            }
            if epochs:
                merged = tuple(sorted(epochs.union(listed.epochs if listed is not None else ())))
                known[file.incarnation, file.file] = dataclasses.replace(file, epochs=merged)
        return dataclasses.replace(
            self,
            level0=tuple(known.values()),
            covered=reached if before is None else max(before, reached),
        )

    def for_child(
        self, child: BundleName, generation: int, without: Collection[LevelZero]
    ) -> Manifest:
        """What a bundle that is split from this one begins with: its topics, and all log files
        but those `without` entries of it."""
        topics = {
            name: found
            for name, found in self.topics.items()
            if child.contains(TopicName.parse(name))
        }
        level0 = tuple(file for file in self.level0 if file not in without)
        return dataclasses.replace(
            self, bundle=str(child), generation=generation, level0=level0, topics=topics
        )

    def merged_with(self, other: Manifest, bundle: BundleName, generation: int) -> Manifest:
        """What a bundle that is merged from these two begins with: the topics and log files of
        both. It covers what both have covered, so that nothing of either is left out later."""
        known = {(file.incarnation, file.file): file for file in self.level0}
        for file in other.level0:
            listed = known.get((file.incarnation, file.file))
            epochs = {*file.epochs, *(listed.epochs if listed is not None else ())}
            known[file.incarnation, file.file] = dataclasses.replace(
                file, epochs=tuple(sorted(epochs))
            )
        covered = None
        if self.covered is not None and other.covered is not None:
            covered = min(self.covered, other.covered)
        topics = {**self.topics, **other.topics}
        return Manifest(str(bundle), generation, tuple(known.values()), topics, covered)

    def with_topic(self, name: str, segments: TopicSegments) -> Manifest:
        """This manifest with one topic replaced."""
        return dataclasses.replace(self, topics={**self.topics, name: segments})


async def encode_manifest(manifest: Manifest) -> bytes:
    """The object's bytes, made in turns."""
    turns: list[bytes] = []
    pieces, made = [], 0
    for piece in _pieces(manifest):
        pieces.append(piece)
        made += len(piece)
        if made >= TURN_BYTES:
            turns.append(b"".join(pieces))
            pieces, made = [], 0
            await asyncio.sleep(0)
    return close_document([*turns, *pieces])


def _pieces(manifest: Manifest) -> Iterator[bytes]:
    """The object's JSON in pieces that take a millisecond or so each, as `document_json` has it."""
    head = members(manifest)
    topics: dict[str, TopicSegments] = head.pop("topics")
    level0 = list(map(members, manifest.level0))
    yield document_json({**head, "kind": KIND, "level0": level0})[:-1] + b',"topics":{'
    separator = b""
    for name in sorted(topics):
        found = topics[name]
        yield b'%s%s:{"compacted":' % (separator, document_json(name))
        separator = b","
        yield from _compacted_pieces(found.compacted)
        yield b',"complete":%s,"level1":[' % document_json(found.complete)
        yield from json_items(found.level1, members)
        yield b'],"trimmed":%s}' % document_json(found.trimmed)
    yield b"}," + document_json({"version": VERSION})[1:]


def _compacted_pieces(view: Compacted | None) -> Iterator[bytes]:
    if view is None:
        yield b"null"
        return
    yield b'{"generation":%d,"horizon":%s,"segments":[' % (
        view.generation,
        document_json(view.horizon),
    )
    yield from json_items(view.segments, members)
    yield b"]}"


async def decode_manifest(data: bytes, name: str) -> Manifest:
    """Parse the object `name`, in turns. Raises CorruptData."""
    body = decode_document(KIND, VERSION, data, name)
    try:
        listed = built(dict[str, Any], body.pop("topics", {}))
        # checks the type of every field, as all that follows
        manifest: Manifest = built(Manifest, body)
        topics = await _topics(listed)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{name}: does not hold a manifest: {error!r}") from error
    return dataclasses.replace(manifest, topics=topics)


async def _topics(listed: dict[str, Any]) -> dict[str, TopicSegments]:
    turns = Turns(TURN_PARSED)
    return {
        topic: await _topic(built(dict[str, Any], fields), turns)
        for topic, fields in listed.items()
    }


async def _topic(fields: dict[str, Any], turns: Turns) -> TopicSegments:
    await turns.after(1)
    level1 = await _segments(fields.pop("level1", ()), turns)
    view = fields.pop("compacted", None)
    found: TopicSegments = built(TopicSegments, fields)
    compacted = None
    if view is not None:
        segments = await _segments(view["segments"], turns)
        compacted = dataclasses.replace(
            built(Compacted, {**view, "segments": ()}), segments=segments
        )
    return dataclasses.replace(found, level1=level1, compacted=compacted)


async def _segments(rows: Sequence[Any], turns: Turns) -> tuple[SegmentReference, ...]:
    found: list[SegmentReference] = []
    for at in range(0, len(rows), TURN_PARSED):
        part = rows[at : at + TURN_PARSED]
        found += built(tuple[SegmentReference, ...], part)
        await turns.after(len(part))
    return tuple(found)


async def write_manifest(volume: Volume, clock: Clock, manifest: Manifest) -> str:
    """Write the manifest as a new object; its name. Raises StorageError."""
    bundle = BundleName.parse(manifest.bundle)
    data = await encode_manifest(manifest)
    while True:
        name = names.manifest(bundle, manifest.generation, clock.random_bits(64))
        if await volume.put_if_absent(name, data):
            return name


async def read_manifest(volume: Volume, name: str) -> Manifest:
    """Read the object `name`. Raises CorruptData, StorageError, FileNotFoundError."""
    return await decode_manifest(await volume.read(name), name)


# --- commits --------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """COMMITTED; DECLINED: the edit returned None; REFUSED: an extra comparison failed."""

    COMMITTED = "committed"
    DECLINED = "declined"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Outcome of a commit, with the manifest that holds after it and its object's name ("" if
    the bundle has none yet)."""

    outcome: Outcome
    manifest: Manifest
    object: str


async def committed_generation(store: MetadataStore, bundle: BundleName) -> int:
    """That of the bundle's manifest, which is not read; 0 if there is none. Raises StoreError."""
    item = await store.get(keys.manifest(bundle))
    return ManifestPointer.decode(item.value).generation if item is not None else 0


async def load_manifest(
    store: MetadataStore, volume: Volume, bundle: BundleName
) -> tuple[Manifest, str, int]:
    """The bundle's manifest, its object's name and the pointer's mod_revision; an empty one of
    generation 0, "" and 0 if there is none.

    A pointer that moves on while its object is collected is read again. Raises StoreError,
    StorageError, CorruptData.
    """
    seen = -1
    while True:
        item = await store.get(keys.manifest(bundle))
        if item is None:
            return Manifest(str(bundle), 0), "", 0
        pointer = ManifestPointer.decode(item.value)
        try:
            return await read_manifest(volume, pointer.object), pointer.object, item.mod_revision
        except FileNotFoundError as error:
            if item.mod_revision == seen:
                raise CorruptData(
                    f"{pointer.object} is missing; restore it from a backup", file=pointer.object
                ) from error
            seen = item.mod_revision


async def commit_manifest(
    store: MetadataStore,
    volume: Volume,
    clock: Clock,
    bundle: BundleName,
    edit: Callable[[Manifest], Manifest | None],
    extra_compares: Sequence[Compare] = (),
    extra_operations: Sequence[Operation] = (),
) -> CommitResult:
    """Replace the bundle's manifest by `edit` of it, again until no other commit came in between.

    `edit` returns None to decline; it is called afresh for every attempt and must decline what it
    finds already done. `generation` is set here. `extra_operations` are part of the transaction.
    Raises StoreUnavailable when the outcome is unknown, StoreError after COMMIT_ATTEMPTS_MAX
    conflicts, StorageError.
    """
    key = keys.manifest(bundle)
    written: set[str] = set()
    for _ in range(COMMIT_ATTEMPTS_MAX):
        manifest, name, revision = await load_manifest(store, volume, bundle)
        if name in written:
            # the answer to an earlier attempt was lost
            return CommitResult(Outcome.COMMITTED, manifest, name)
        edited = edit(manifest)
        if edited is None:
            return CommitResult(Outcome.DECLINED, manifest, name)
        edited = dataclasses.replace(edited, generation=manifest.generation + 1)
        new_name = await write_manifest(volume, clock, edited)
        written.add(new_name)
        pointer = ManifestPointer(edited.generation, new_name)
        try:
            result = await store.transact(
                [Compare(key, "mod", "=", revision), *extra_compares],
                [Put(key, pointer.encode()), *extra_operations],
            )
        except StoreUnavailable as unknown:
            # By the pointer alone: a read of the object may fail as well, and a caller that learns
            # of that error takes it for a commit that failed.
            try:
                found = await store.get(key)
            except StoreError:
                raise unknown from None
            if found is not None and ManifestPointer.decode(found.value).object == new_name:
                return CommitResult(Outcome.COMMITTED, edited, new_name)
            raise
        if result.succeeded:
            return CommitResult(Outcome.COMMITTED, edited, new_name)
        current = next((item.mod_revision for item in result.current if item.key == key), 0)
        if current == revision:
            return CommitResult(Outcome.REFUSED, manifest, name)
    raise StoreError(
        f"manifest of {bundle}: {COMMIT_ATTEMPTS_MAX} commits in a row met a conflict; try again "
        "later"
    )


class AnyRewrite(Protocol):
    """A change that replaces files by others written under an intent."""

    @property
    def intent(self) -> str: ...

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with this rewrite in it, or None if what it was made from has changed."""
        ...


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewriting of one topic: what it read, what it wrote, and the intent under which it wrote.

    `level0` and `segments` are the inputs; they must still be listed. `replaced` are level-1
    segments (by object name) that `level1` replaces; `compacted`, if given, becomes the compacted
    view, with the generation after `compaction_generation` (0 = none yet).
    """

    topic: str
    intent: str
    compaction_generation: int
    level0: tuple[tuple[str, int], ...] = ()
    segments: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    level1: tuple[SegmentReference, ...] = ()
    compacted: Compacted | None = None

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with this rewrite in it, or None if its inputs are gone or another
        compaction came first."""
        found = manifest.topic(self.topic)
        listed = {segment.object for segment in found.level1}
        if found.compacted is not None:
            listed |= {segment.object for segment in found.compacted.segments}
        files = {(entry.incarnation, entry.file) for entry in manifest.level0}
        generation = found.compacted.generation if found.compacted is not None else 0
        if not (
            listed.issuperset(self.segments)
            and listed.issuperset(self.replaced)
            and files.issuperset(self.level0)
        ):
            return None
        if generation != self.compaction_generation:
            return None
        kept = [segment for segment in found.level1 if segment.object not in self.replaced]
        level1 = tuple(sorted([*kept, *self.level1], key=lambda segment: segment.first))
        compacted = found.compacted
        if self.compacted is not None:
            assert self.compacted.generation == generation + 1, (
                self.compacted.generation,
                generation,
            )
            compacted = self.compacted
        return manifest.with_topic(
            self.topic, dataclasses.replace(found, level1=level1, compacted=compacted)
        )


async def commit_rewrite(
    store: MetadataStore, volume: Volume, clock: Clock, bundle: BundleName, rewrite: AnyRewrite
) -> CommitResult:
    """Commit a rewrite; compares and deletes its intent in the same transaction, so that a
    collected intent means no commit.

    DECLINED: start again from the manifest in the result. REFUSED: the intent is gone, the outputs
    may be deleted any time.
    """
    intent = keys.intent(rewrite.intent)
    return await commit_manifest(
        store,
        volume,
        clock,
        bundle,
        rewrite.apply,
        [Compare(intent, "create", "!=", 0)],
        [Delete(intent)],
    )
