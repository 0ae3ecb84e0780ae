"""What recovery and readers need, and whether it is in storage.

Owns: `missing_files`: every file that a bundle's record or manifest names and the volume does not
have, as violations of invariant 1. Imports: the kernel, the tracer's cluster, the formats of
records and manifests; none of the collector's decisions, which it judges. Invariant: a file counts
as missing only if what names it still does afterwards: brokers may be at work concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.errors import MagnetarError
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.manifest import Manifest, load_manifest
from tests.simulation.kernel.checks import Violation
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_cluster import Cluster

LOOKS_MAX = 20


async def missing_files(cluster: Cluster, environment: Environment) -> list[Violation]:
    """1: what was acknowledged lies in files that recovery and readers find by records and
    manifests; so these files are there."""
    found: list[Violation] = []
    for name, record in cluster.bundle_records().items():
        if record.state is not BundleState.DELETED:
            found += await _missing_of(cluster, environment, name, record)
    return found


async def _missing_of(
    cluster: Cluster, environment: Environment, name: str, record: BundleRecord
) -> list[Violation]:
    """Of one bundle; looks again while it changes."""
    for _ in range(LOOKS_MAX):
        missing = [
            Violation(1, name, f"its {what} is gone") for what in _recovered_from(cluster, record)
        ]
        try:
            manifest, _, revision = await load_manifest(
                environment.store, environment.volume, BundleName.parse(name)
            )
            missing += [
                Violation(1, name, f"its manifest lists {file}, which is gone")
                for file in _read_from(cluster, manifest)
            ]
            _, _, now = await load_manifest(
                environment.store, environment.volume, BundleName.parse(name)
            )
        except (MagnetarError, OSError) as failure:
            return [*missing, Violation(1, name, f"its manifest cannot be read: {failure}")]
        current = cluster.bundle_records().get(name)
        if (current, now) == (record, revision):
            return missing
        if current is None or current.state is BundleState.DELETED:
            return []
        record = current
    return []  # it never stands still: what it lacks shows when it is read


def _recovered_from(cluster: Cluster, record: BundleRecord) -> Iterator[str]:
    """What a new owner would look for in vain."""
    if record.checkpoint is not None and not cluster.stored(record.checkpoint.object):
        yield f"checkpoint {record.checkpoint.object}"
    for span in record.chain:
        last = span.start.file if span.end is None else span.end.file
        for number in range(span.start.file, last + 1):
            if not cluster.stored(file := names.log_file(span.incarnation, number)):
                yield f"log file {file}, in the chain,"


def _read_from(cluster: Cluster, manifest: Manifest) -> Iterator[str]:
    """What readers would look for in vain."""
    for entry in manifest.level0:
        if not cluster.stored(file := names.log_file(entry.incarnation, entry.file)):
            yield file
    for segments in manifest.topics.values():
        compacted = segments.compacted.segments if segments.compacted is not None else ()
        for segment in (*segments.level1, *compacted):
            if not cluster.stored(segment.object):
                yield segment.object
