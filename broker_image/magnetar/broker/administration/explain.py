"""Why a bundle is where it is, and what would happen if it moved: the facts.

Owns: what `GET /magnetar/v1/explain` answers, gathered from the store, the volume and the bundle's
owner. Imports: metadata, storage formats, ownership, names. The sentences are `explanation`'s.
Invariants: asking changes nothing: no bundle is assigned and no topic created for it; whatever a
broker can read from store and volume is answered without the owner, so a bundle without an owner,
or whose owner hangs, is explained too; every list is bounded and says if it was cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlencode

from magnetar.broker.administration.balance import Balance
from magnetar.broker.administration.explanation import explain_in_words
from magnetar.broker.administration.load_words import load_in_words
from magnetar.broker.administration.owned_facts import owned_facts
from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.site import Site
from magnetar.broker.reading.log_keys import sealed_files
from magnetar.errors import (
    InvalidRequest,
    MagnetarError,
    ServiceNotReady,
    StorageError,
    StoreError,
)
from magnetar.metadata import keys
from magnetar.metadata.election import LeaderRecord
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    BundleRecord,
    IncarnationRecord,
    IntentRecord,
    LogFileRecord,
    LogRange,
    PartitionedTopicRecord,
)
from magnetar.names import BundleName, TopicName, bundle_of, bundles_of
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.manifest import Manifest, load_manifest

OWNER_TIMEOUT_S = 5.0
FILES_MAX = 200
MANIFESTS_READ_MAX = 32
PARTITIONS_SHOWN_MAX = 100
SCAN_BYTES_PER_S = 200 << 20
"""About what replaying a log costs on one core; an estimate that people read."""
RECOVERY_BASE_MS = 20
LogFile = tuple[str, int]


class Explanations:
    """Explains bundles and topics."""

    def __init__(self, site: Site, balance: Balance) -> None:
        self._site, self._balance = site, balance

    async def explain(self, topic: TopicName | None, bundle: BundleName | None) -> dict[str, Any]:
        """All facts and the sentences made of them. Raises NamespaceNotFound, InvalidRequest for
        a bundle that the namespace does not have."""
        name, place = await self._located(topic, bundle)
        facts: dict[str, Any] = {"topic": str(topic) if topic is not None else None, **place}
        item = await self._site.broker.context.store.get(keys.bundle(name))
        record = BundleRecord.decode(item.value) if item is not None else None
        facts["record"] = _record(record, item.mod_revision if item is not None else 0)
        facts["owner"] = await self._owner(record)
        facts["leader"] = await self._leader()
        facts["owned"], facts["owner_silent"] = await self._from_owner(facts["owner"], name, topic)
        facts["exists"], facts["partitions"] = await self._existence(topic)
        manifest, facts["manifest"] = await self._manifest(name, topic)
        sealed = await self._sealed(record, manifest)
        facts["recovery"] = self._recovery(record, facts["owned"], sealed)
        facts["log_files"] = await self._log_files(name, record, manifest, sealed)
        facts["jobs"] = await self._jobs(name)
        facts["new owners"] = await self._candidates(str(name), record)
        facts["load"] = await self._balance.explain(name) if record is not None else None
        facts["lease_s"] = self._site.broker.context.settings.lease_ttl_s
        facts["now_ms"] = self._site.broker.context.clock.wall_ms()
        by_load = load_in_words(facts["load"], facts["now_ms"])
        return {**facts, **explain_in_words(facts), "by_load": by_load}

    def explain_owned(self, topic: TopicName | None, bundle: BundleName) -> dict[str, Any]:
        """What only the owner of a bundle knows, as this broker sees it."""
        return owned_facts(self._site.broker, bundle, topic)

    # --- where it is ------------------------------------------------------------------------------

    async def _located(
        self, topic: TopicName | None, bundle: BundleName | None
    ) -> tuple[BundleName, dict[str, Any]]:
        """The bundle, and where it lies in its namespace."""
        if (topic is None) == (bundle is None):
            raise InvalidRequest(
                "topic, bundle: name one of them; topic=persistent://tenant/namespace/topic"
            )
        namespace = topic.namespace_name if topic is not None else bundle.namespace  # type: ignore[union-attr]
        record = await self._site.namespace_record(namespace)
        parts = bundles_of(namespace, record.boundaries)
        if topic is not None:
            bundle = bundle_of(namespace, record.boundaries, topic.hash)
        assert bundle is not None
        if bundle not in parts:
            raise InvalidRequest(
                f"bundle: {bundle.range} is not one of the {len(parts)} of namespace {namespace}; "
                "it was split, or never was"
            )
        return bundle, {
            "hash": f"0x{topic.hash:08x}" if topic is not None else None,
            "namespace": str(namespace),
            "boundaries": [f"0x{boundary:08x}" for boundary in record.boundaries],
            "bundle": str(bundle),
            "number": parts.index(bundle) + 1,
            "bundles": len(parts),
        }

    async def _owner(self, record: BundleRecord | None) -> dict[str, Any] | None:
        """The incarnation that the record names, dead or alive."""
        if record is None or not record.incarnation:
            return None
        item = await self._site.broker.context.store.get(keys.incarnation(record.incarnation))
        found: dict[str, Any] = {
            "incarnation": record.incarnation,
            "broker": record.incarnation.rpartition(".")[0],
            "alive": item is not None,
        }
        if item is not None:
            live = IncarnationRecord.decode(item.value)
            cordon = self._site.broker.views.cordons.get(live.broker)
            found |= {
                "service_url": live.service_url,
                "http_url": live.http_url,
                "draining": live.draining,
            }
            found["cordon"] = cordon.record.reason if cordon is not None else None
        return found

    async def _leader(self) -> dict[str, Any] | None:
        item = await self._site.broker.context.store.get(keys.LEADER)
        if item is None:
            return None
        candidate = LeaderRecord.decode(item.value).candidate
        return {
            "incarnation": candidate,
            "broker": candidate.rpartition(".")[0],
            "term": item.mod_revision,
        }

    async def _from_owner(
        self, owner: dict[str, Any] | None, bundle: BundleName, topic: TopicName | None
    ) -> tuple[dict[str, Any] | None, str]:
        """What the owner says, or why it says nothing."""
        if owner is None or not owner["alive"]:
            return None, ""
        if owner["incarnation"] == self._site.broker.incarnation:
            return owned_facts(self._site.broker, bundle, topic), ""
        query = urlencode(
            {"bundle": str(bundle), **({"topic": str(topic)} if topic is not None else {})}
        )
        context, path = self._site.broker.context, f"/magnetar/v1/explain/owned?{query}"
        try:
            found: dict[str, Any] = await ask_broker(
                context, owner["http_url"], "GET", path, timeout_s=OWNER_TIMEOUT_S
            )
        except MagnetarError as error:
            return None, str(error)
        return found, ""

    async def _existence(self, topic: TopicName | None) -> tuple[bool | None, list[dict[str, Any]]]:
        """Whether the topic's entry is there, and the bundles of its partitions."""
        if topic is None:
            return None, []
        item = await self._site.broker.context.store.get(keys.partitioned_topic(topic))
        if item is None:
            return False, []
        count = PartitionedTopicRecord.decode(item.value).partitions
        record = await self._site.namespace_record(topic.namespace_name)
        parts = [topic.with_partition(index) for index in range(min(count, PARTITIONS_SHOWN_MAX))]
        owners = self._site.broker.views.bundles
        shown = []
        for part in parts:
            bundle = str(bundle_of(topic.namespace_name, record.boundaries, part.hash))
            viewed = owners.get(bundle)
            shown.append(
                {
                    "topic": str(part),
                    "bundle": bundle,
                    "owner": viewed.record.incarnation if viewed is not None else "",
                }
            )
        return True, shown

    # --- what is stored ---------------------------------------------------------------------------

    async def _manifest(
        self, bundle: BundleName, topic: TopicName | None
    ) -> tuple[Manifest, dict[str, Any]]:
        """The bundle's manifest, and what of it people ask for."""
        context = self._site.broker.context
        try:
            manifest, name, revision = await load_manifest(context.store, context.volume, bundle)
        except (StorageError, StoreError) as error:
            return Manifest(str(bundle), 0), {"error": str(error)}
        segments = [found for topics in manifest.topics.values() for found in topics.level1]
        own = manifest.topic(str(topic)) if topic is not None else None
        compacted = own.compacted if own is not None else None
        return manifest, {
            "error": "",
            "object": name,
            "generation": manifest.generation,
            "revision": revision,
            "covered": list(manifest.covered) if manifest.covered is not None else None,
            "files": len(manifest.level0),
            "file_bytes": sum(found.length for found in manifest.level0),
            "segments": len(segments),
            "segment_bytes": sum(found.bytes for found in segments),
            "topic_segments": len(own.level1) if own is not None else 0,
            "topic_segment_bytes": sum(found.bytes for found in own.level1)
            if own is not None
            else 0,
            "compaction": compacted.generation if compacted is not None else 0,
            "compacted_to": _shown(compacted.horizon if compacted is not None else None),
            "complete_to": _shown(own.complete if own is not None else None),
        }

    async def _sealed(
        self, record: BundleRecord | None, manifest: Manifest
    ) -> dict[LogFile, LogFileRecord]:
        """Sealed files, by the store's keys, of every incarnation that the chain or the manifest
        names."""
        incarnations = {span.incarnation for span in record.chain} if record is not None else set()
        incarnations |= {found.incarnation for found in manifest.level0}
        store = self._site.broker.context.store
        found = await asyncio.gather(
            *(sealed_files(store, keys.logs_of(name)) for name in sorted(incarnations))
        )
        return {file: noted for files in found for file, noted in files.items()}

    def _recovery(
        self,
        record: BundleRecord | None,
        owned: dict[str, Any] | None,
        sealed: dict[LogFile, LogFileRecord],
    ) -> dict[str, Any]:
        """What a new owner would read now."""
        end = (
            (owned["log_position"]["file"], owned["log_position"]["offset"])
            if owned is not None
            else None
        )
        chain = record.chain if record is not None else ()
        epochs = record.epochs if record is not None else ()
        spans = [
            self._span(span, epoch, end, sealed) for span, epoch in zip(chain, epochs, strict=False)
        ]
        total = sum(span["bytes"] for span in spans)
        return {
            "checkpoint": record.checkpoint.object
            if record is not None and record.checkpoint is not None
            else None,
            "chain": spans,
            "files": sum(span["files"] for span in spans),
            "bytes": total,
            "exact": all(span["exact"] for span in spans),
            "estimated_ms": RECOVERY_BASE_MS + total * 1000 // SCAN_BYTES_PER_S,
        }

    def _span(
        self,
        span: LogRange,
        epoch: int,
        open_end: tuple[int, int] | None,
        sealed: dict[LogFile, LogFileRecord],
    ) -> dict[str, Any]:
        """One range of the chain; `exact` unless its end is known to its owner only, who is
        silent."""
        start = (span.start.file, span.start.offset)
        if span.end is not None:
            end, exact = (span.end.file, span.end.offset), True
        elif open_end is not None:
            end, exact = open_end, True
        else:
            numbers = [
                number
                for incarnation, number in sealed
                if incarnation == span.incarnation and number >= span.start.file
            ]
            end, exact = (max(numbers, default=span.start.file) + 1, FILE_HEADER_BYTES), False
        size = 0
        for number in range(start[0], end[0] + 1):
            known = sealed.get((span.incarnation, number))
            length = (
                end[1]
                if number == end[0]
                else known.length
                if known is not None
                else self._site.broker.context.settings.log_file_bytes
            )
            size += max(0, length - (start[1] if number == start[0] else FILE_HEADER_BYTES))
        return {
            "incarnation": span.incarnation,
            "epoch": epoch,
            "from": {"file": start[0], "offset": start[1]},
            "to": {"file": end[0], "offset": end[1]} if span.end is not None else None,
            "files": max(0, end[0] - start[0] + 1) if size else 0,
            "bytes": size,
            "exact": exact,
        }

    async def _log_files(
        self,
        bundle: BundleName,
        record: BundleRecord | None,
        manifest: Manifest,
        sealed: dict[LogFile, LogFileRecord],
    ) -> dict[str, Any]:
        """Sealed files that this bundle has a share in, and what keeps each of them."""
        listed = {(found.incarnation, found.file): found.length for found in manifest.level0}
        replayed = {
            file: found.length
            for file, found in sealed.items()
            if record is not None and _replays(record, file)
        }
        files = sorted(listed.keys() | replayed.keys())
        shown = files[:FILES_MAX]
        others = sorted(
            {name for file in shown if file in sealed for name in sealed[file].bundles}
            - {str(bundle)}
        )
        manifests = {
            name: await self._listed_by(BundleName.parse(name))
            for name in others[:MANIFESTS_READ_MAX]
        }
        manifests[str(bundle)] = set(listed)
        rows = []
        for file in shown:
            keepers = [
                {"bundle": name, "why": "recovery"}
                for name, viewed in sorted(self._site.broker.views.bundles.items.items())
                if _replays(viewed.record, file)
            ]
            keepers += [
                {"bundle": name, "why": "messages"}
                for name, held in sorted(manifests.items())
                if file in held
            ]
            length = listed.get(file, replayed.get(file, 0))
            rows.append(
                {"incarnation": file[0], "file": file[1], "bytes": length, "kept_by": keepers}
            )
        return {
            "count": len(files),
            "bytes": sum((listed | replayed).values()),
            "files": rows,
            "unread_manifests": max(0, len(others) - MANIFESTS_READ_MAX),
        }

    async def _listed_by(self, bundle: BundleName) -> set[LogFile]:
        """Files in the manifest of another bundle; none if it cannot be read."""
        context = self._site.broker.context
        try:
            manifest, _, _ = await load_manifest(context.store, context.volume, bundle)
        except (StorageError, StoreError):
            return set()
        return {(found.incarnation, found.file) for found in manifest.level0}

    async def _jobs(self, bundle: BundleName) -> list[str]:
        """Jobs that work on this bundle's files now, which keeps all of them."""
        items = (await self._site.broker.context.store.range(keys.INTENTS)).items
        intents = [IntentRecord.decode(item.value) for item in items]
        return sorted(
            {
                f"{found.job}/{found.run}"
                for found in intents
                if found.bundle == str(bundle) and found.job
            }
        )

    async def _candidates(self, name: str, record: BundleRecord | None) -> dict[str, Any]:
        """Who may be given the bundle if its owner goes, the most likely one first."""
        assigner, first = self._site.broker.ownership.assigner, ""
        owner = {record.incarnation} if record is not None else set()
        with contextlib.suppress(ServiceNotReady):
            first = await assigner.placer.choose(name, owner, keep=False)
        candidates = assigner.candidates() - owner
        return {"first": _broker_of(first), "all": sorted(map(_broker_of, candidates))}


def _broker_of(incarnation: str) -> str:
    return incarnation.rpartition(".")[0]


def _replays(record: BundleRecord, file: LogFile) -> bool:
    """Whether a recovery of the bundle reads the file."""
    return any(
        span.incarnation == file[0]
        and span.start.file <= file[1]
        and (span.end is None or file[1] <= span.end.file)
        for span in record.chain
    )


def _shown(position: tuple[int, int] | None) -> str:
    """A position as people write it, ledger:entry; "" for none."""
    return f"{position[0]}:{position[1]}" if position is not None else ""


def _record(record: BundleRecord | None, revision: int) -> dict[str, Any] | None:
    """The bundle's record, with what its epoch is made of."""
    if record is None:
        return None
    return {
        "state": str(record.state),
        "epoch": record.epoch,
        "restore": record.epoch // RESTORE_STRIDE,
        "epoch_revision": record.epoch % RESTORE_STRIDE,
        "incarnation": record.incarnation,
        "source": record.source,
        "destination": record.destination,
        "reason": record.reason,
        "revision": revision,
        "terms": list(record.epochs),
        "pinned_until_ms": record.pinned_until_ms,
    }
