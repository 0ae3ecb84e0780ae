"""What one round of manifest compaction knows of its bundle.

Owns: `RoundView`: which entries of listed log files and segments are alive, and which of them
segments may take; how the bundle forgets in memory what the manifest lists. Imports: storage
formats, topics, transactions. Pure but for `forget_runs`. Invariants: what is alive is what the
bundle's topics say; a transaction that stays open keeps its own entries in their log file, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.reading.entry_index import EntryIndex
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.transactions.linked import (
    committed_runs,
    complete_to,
    existing_bytes,
    is_wanted,
    listed_end,
    sidecar_share,
)
from magnetar.names import topic_of_sidecar
from magnetar.storage import names
from magnetar.storage.log.index import LevelZeroIndex, Run
from magnetar.storage.manifest import LevelZero, Manifest, SegmentReference, TopicSegments
from magnetar.storage.segments.level_one import outside
from magnetar.topics.ledger_ids import epoch_of


@dataclass(frozen=True, slots=True)
class FileShare:
    """What one listed file has of one topic, as of a state of that topic and the epochs it is
    listed with (`key`)."""

    key: tuple[int, int, tuple[int, ...]]
    bytes: int
    live_bytes: int
    last_append_ms: int
    pinned: bool = False


class RoundView:
    """A bundle and its manifest as of the start of a round."""

    def __init__(self, bundle: OwnedBundle, manifest: Manifest, now_ms: int, age_ms: int) -> None:
        """What was appended `age_ms` before `now_ms` is to be rewritten."""
        self.bundle, self.manifest, self.now_ms, self.age_ms = bundle, manifest, now_ms, age_ms
        self._ends: dict[str, int] = {}

    def segments(self, topic: str) -> tuple[SegmentReference, ...]:
        """A topic's level-1 segments, in order."""
        return self.manifest.topic(topic).level1

    def end_of(self, host: TopicHost) -> int:
        """The ordinal from which on nothing of a topic goes into segments yet."""
        name = str(host.name)
        if name not in self._ends:
            self._ends[name] = listed_end(host, self.manifest.covered)
        return self._ends[name]

    def loose_runs(self, file: LevelZero, index: LevelZeroIndex) -> Iterator[tuple[str, list[Run]]]:
        """What can be rewritten of a file and is in no segment, by topic; entries of sidecars as
        those of their topics."""
        for name in filter(self.bundle.catalog.holds, index.topics()):
            topic = topic_of_sidecar(name) or name
            host, runs = self.bundle.topics.get(topic), valid_runs(file, index, name)
            if topic != name:
                runs = committed_runs(host, runs, self.end_of(host)) if host is not None else []
            yield topic, [part for run in runs for part in outside(run, self.segments(topic))]

    def loose_bytes(self, file: LevelZero, index: LevelZeroIndex) -> int:
        """How much of it still exists."""
        hosts = self.bundle.topics
        return sum(
            existing_bytes(hosts[name], run)
            for name, runs in self.loose_runs(file, index)
            if name in hosts
            for run in runs
        )

    def wants(self, file: LevelZero, index: LevelZeroIndex, name: str) -> bool:
        """Whether a compaction waits for anything of this sidecar in a file."""
        topic = topic_of_sidecar(name)
        host = self.bundle.topics.get(topic) if topic is not None else None
        if (
            topic is None
            or host is None
            or host.transactions is None
            or not host.transactions.wanted_below
        ):
            return False
        return is_wanted(host, valid_runs(file, index, name), self.segments(topic))

    def asked(self) -> list[str]:
        """Topics for which a compaction waits, and of which there is more to say than the
        manifest does."""
        found = []
        for name, host in self.bundle.topics.items():
            if host.transactions is not None and host.transactions.wanted_below:
                known = self.manifest.topic(name).complete
                if complete_to(host, self.segments(name), known) != known:
                    found.append(name)
        return found

    def answer(self, manifest: Manifest) -> None:
        """No compaction waits any more for what this manifest has."""
        for name, host in self.bundle.topics.items():
            used, complete = host.transactions, manifest.topic(name).complete
            if (
                used is not None
                and complete is not None
                and host.core.ledgers.ordinal_after(complete) >= used.wanted_below
            ):
                used.wanted_below = 0

    def share(
        self, file: LevelZero, index: LevelZeroIndex, topic: str, known: FileShare | None
    ) -> FileShare:
        """What a file has of a topic; `known` if that is as it was."""
        sidecar_of = topic_of_sidecar(topic)
        host = self.bundle.topics.get(sidecar_of or topic)
        state = (host.core.created_ms, host.core.ledgers.first) if host is not None else (-1, -1)
        key = (*state, file.epochs)  # a file may be listed again with a later term of ours in it
        if known is not None and known.key == key and not known.pinned:
            return known
        runs = valid_runs(file, index, topic)
        size = sum(sum(run.lengths) for run in runs)
        last_ms = max((run.append_ms for run in runs), default=0)
        if sidecar_of is not None and host is not None:
            live, pinned = sidecar_share(host, runs, self.end_of(host), self.segments(sidecar_of))
            return FileShare(key, size, live, last_ms, pinned)
        live = sum(existing_bytes(host, run) for run in runs) if host is not None else 0
        return FileShare(key, size, live, last_ms)

    def dead_segments(self) -> dict[str, list[SegmentReference]]:
        """Level-1 segments in which nothing exists any more, and everything of topics that were
        deleted; by topic."""
        found: dict[str, list[SegmentReference]] = {}
        for topic, segments in self.manifest.topics.items():
            host = self.bundle.topics.get(topic)
            if host is None:
                if segments != TopicSegments(trimmed=segments.trimmed):
                    found[topic] = list(segments.level1)
                continue
            ledgers = host.core.ledgers
            gone = [
                segment
                for segment in segments.level1
                if ledgers.ordinal_after(segment.last) <= ledgers.first
            ]
            if gone:
                found[topic] = gone
        return found


def name_of(file: LevelZero) -> str:
    return names.log_file(file.incarnation, file.file)


def listed_names(manifest: Manifest) -> set[str]:
    """Everything that a round may read: log files, and objects of segments."""
    objects = {segment.object for topic in manifest.topics.values() for segment in topic.level1}
    return objects.union(map(name_of, manifest.level0))


def valid_runs(file: LevelZero, index: LevelZeroIndex, topic: str) -> list[Run]:
    """Runs of the terms that count."""
    return [run for run in index.runs(topic) if run.epoch in file.epochs]


def is_of_later_term(manifest: Manifest, epoch: int) -> bool:
    """Whether the manifest holds anything of a term after `epoch`, whose owner may not judge it
    then. By what it lists too: a merged one has taken in more than it covers."""
    return manifest.newest_term > epoch or any(
        epoch_of(found.level1[-1].last[0]) > epoch
        for found in manifest.topics.values()
        if found.level1
    )


def forget_runs(bundle: OwnedBundle) -> None:
    """Drop from memory where entries lie that the manifest knows as well, and those that do not
    exist any more."""
    covered = bundle.catalog.manifest.covered
    for host in bundle.topics.values():
        host.index.drop_before(_known_below(bundle, host.index, covered, host.core.ledgers.first))


def _known_below(
    bundle: OwnedBundle, index: EntryIndex, covered: tuple[int, int] | None, first: int
) -> int:
    incarnation, below = bundle.context.incarnation, first
    if covered is not None and covered[0] == bundle.epoch:
        # All terms before ours are covered, and of ours the files before this one.
        for run in index.runs:
            if (
                run.incarnation == incarnation and run.file >= covered[1]
            ) or run.payload is not None:
                break
            below = max(below, run.end)
    return below
