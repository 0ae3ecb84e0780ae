"""Versions of topics' schemas, as storage knows them.

Owns: the decision which of them a restored store holds beside those of a backup. Imports: metadata
records and keys, names, log_copies. Pure. Invariants: every version that a message may carry is
there, since it was in the topic's log before a producer got it; a backup is never contradicted; what
an earlier topic of the same name had is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, SchemaRecord
from magnetar.names import TopicName
from magnetar.storage import names
from magnetar.storage.restore.log_copies import LogFacts


def rebuilt_schemas(
    topics: Collection[str],
    records: Iterable[BundleRecord],
    checkpoints: Mapping[str, Mapping[str, Mapping[int, bytes]]],
    logs: LogFacts,
    items: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Keys that `items` lacks, of topics that exist in namespaces that it has."""
    found: dict[str, dict[int, bytes]] = {}
    for record in records:
        if record.checkpoint is not None:
            epoch = names.checkpoint_epoch(record.checkpoint.object) or 0
            made = epoch, record.checkpoint.position.file, record.checkpoint.position.offset
            for topic, versions in checkpoints.get(record.checkpoint.object, {}).items():
                if logs.changed(topic) <= made:
                    found.setdefault(topic, {}).update(versions)
    for topic, placed in logs.schemas.items():
        begun = logs.changed(topic)
        own = {number: value for number, (place, value) in placed.items() if place >= begun}
        found.setdefault(topic, {}).update(own)
    added: dict[str, bytes] = {}
    for topic in sorted(found.keys() & set(topics)):
        name = TopicName.parse(topic)
        if keys.namespace(name.namespace_name) in items:
            for number, value in found[topic].items():
                key = keys.schema_version(name, number)
                if key not in items and _made_ms(value) > _made_ms(added.get(key)):
                    added[key] = value
    return added


def _made_ms(record: bytes | None) -> int:
    """Of two records of one version, which differ after a deletion by force, the younger one is in
    force."""
    return SchemaRecord.decode(record).timestamp_ms if record is not None else -1
