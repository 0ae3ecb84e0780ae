"""What storage holds of topics, for the choice of what to compact.

Owns: `stored_topics`, from manifests, and `with_keys`, which looks at keys of the largest ones.
Imports: pyspark, store, storage formats, planning, source. Invariants: manifests of at most so many
bundles are read as the analysis names; nothing is written; a topic that cannot be read (its files
are being replaced) is left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from magnetar.compaction.messages import Kind
from magnetar.errors import MagnetarError
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName
from magnetar.storage.manifest import SegmentReference, TopicSegments, load_manifest
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.analysis.measured import StoredTopic
from magnetar_jobs.cluster import bundle_of_topic
from magnetar_jobs.inputs import Group
from magnetar_jobs.planning import plan_topic
from magnetar_jobs.source import MESSAGES, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

LOOKED_AT_BYTES_MAX = 8 << 20
"""Of one topic: its newest messages."""
TOPICS_MAX = 5000


async def stored_topics(
    store: MetadataStore, volume: Volume, bundles: Iterable[str]
) -> tuple[StoredTopic, ...]:
    """The largest topics of these bundles that have segments. Raises StoreError."""
    found: list[StoredTopic] = []
    for name in bundles:
        try:
            manifest, _, _ = await load_manifest(store, volume, BundleName.parse(name))
        except MagnetarError as error:
            log.warning("load_analytics.manifest_unread", bundle=name, error=str(error))
            continue
        found += [stored_of(topic, segments) for topic, segments in manifest.topics.items()]
    found.sort(key=lambda one: (-one.behind_bytes, one.topic))
    return tuple(found[:TOPICS_MAX])


def stored_of(topic: str, segments: TopicSegments) -> StoredTopic:
    """By the manifest: a segment across the horizon counts on both sides, by half."""
    view = segments.compacted
    if view is None:
        behind: Sequence[SegmentReference] = segments.level1
        return StoredTopic(
            topic,
            behind_bytes=sum(segment.bytes for segment in behind),
            behind_entries=sum(segment.entries for segment in behind),
        )
    before_entries, behind_bytes, behind_entries = 0.0, 0.0, 0.0
    for segment in segments.level1:
        share = (
            0.0 if segment.last <= view.horizon else 1.0 if segment.first > view.horizon else 0.5
        )
        before_entries += (1 - share) * segment.entries
        behind_bytes += share * segment.bytes
        behind_entries += share * segment.entries
    return StoredTopic(
        topic,
        sum(segment.bytes for segment in view.segments),
        sum(segment.entries for segment in view.segments),
        round(before_entries),
        round(behind_bytes),
        round(behind_entries),
    )


async def with_keys(
    session: SparkSession,
    store: MetadataStore,
    volume: Volume,
    tasks_volume: str | Path,
    stored: Sequence[StoredTopic],
    count: int,
) -> tuple[StoredTopic, ...]:
    """The first `count` with how many of their messages have keys of their own."""
    found = [
        await _looked_at(session, store, volume, tasks_volume, topic) for topic in stored[:count]
    ]
    return (*found, *stored[count:])


async def _looked_at(
    session: SparkSession,
    store: MetadataStore,
    volume: Volume,
    tasks_volume: str | Path,
    stored: StoredTopic,
) -> StoredTopic:
    try:
        name = TopicName.parse(stored.topic)
        bundle = await bundle_of_topic(store, name)
        plan = await plan_topic(store, volume, bundle, name, LOOKED_AT_BYTES_MAX)
        groups = [group for group in plan.groups if group.pieces][-1:]
        if not groups:
            return stored
        sampled, keys = await asyncio.to_thread(_counted, session, tasks_volume, stored, groups)
        return replace(stored, sampled=sampled, keys=keys)
    except (MagnetarError, PySparkException, FileNotFoundError) as error:
        log.warning(
            "load_analytics.keys_unread", topic=stored.topic, error=str(error).splitlines()[0]
        )
        return stored


def _counted(
    session: SparkSession, tasks_volume: str | Path, stored: StoredTopic, groups: list[Group]
) -> tuple[int, int]:
    """Messages of these groups, and how many a compaction of them alone would keep."""
    messages = read_topic(session, tasks_volume, stored.topic, groups, view=MESSAGES)
    keyed = messages.where((F.col("kind") == int(Kind.KEYED)) & F.col("key").isNotNull())
    [row] = keyed.agg(
        F.count(F.lit(1)).alias("sampled"), F.count_distinct("key").alias("keys")
    ).collect()
    return row["sampled"], row["keys"]
