"""Namespaces that soaks work in.

Owns: `create_namespace`. Imports: REST as the tests use it.
"""

from __future__ import annotations

from tests.clients.rest import Admin, HasRest

NUM_BUNDLES = 4
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def create_namespace(server: HasRest, name: str, *, deduplicated: bool) -> None:
    """One that keeps everything, so that it can be read back; with `deduplicated` a producer's repetitions do not count.

    Raises RestError for a refusal, OSError without an answer.
    """
    policies = {"bundles": {"numBundles": NUM_BUNDLES}, "retention_policies": FOR_EVER, "deduplicationEnabled": deduplicated}
    Admin(server).call("PUT", f"namespaces/{name}", policies)
