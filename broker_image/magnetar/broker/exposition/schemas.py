"""Metrics of the schemas of a namespace, by Pulsar's names.

Owns: the names, and how each is read. Imports: schema statistics, sheet. Source: Pulsar's
SchemaRegistryStats. Invariants: as of `topics`; a summary has no quantiles, since those of several
brokers cannot be combined.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.broker.exposition.sheet import Family
from magnetar.broker.schema_statistics import Kind, SchemaCounts


def _operations(kind: Kind, what: str) -> Iterator[Family[SchemaCounts]]:
    latency = f"pulsar_schema_{kind}_ops_latency"
    yield Family(
        f"{latency}_sum",
        f"Milliseconds that successful {what} took, added up",
        lambda found: found.operations[kind].ms,
        summary=latency,
    )
    yield Family(
        f"{latency}_count",
        f"Successful {what}",
        lambda found: found.operations[kind].succeeded,
        summary=latency,
    )
    yield Family(
        f"pulsar_schema_{kind}_ops_failed_total",
        f"Failed {what}",
        lambda found: found.operations[kind].failed,
    )


SCHEMA_FAMILIES: tuple[Family[SchemaCounts], ...] = (
    *_operations(Kind.GET, "reads of a topic's schema"),
    *_operations(Kind.PUT, "registrations of a new version"),
    *_operations(Kind.DELETE, "deletions of a topic's schema"),
    Family(
        "pulsar_schema_compatible_total",
        "Schemas that were compared with those of their topic and fit",
        lambda found: found.compatible,
    ),
    Family(
        "pulsar_schema_incompatible_total",
        "Schemas that were compared with those of their topic and do not fit",
        lambda found: found.incompatible,
    ),
)
