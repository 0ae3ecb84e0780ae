"""Namespaces that soaks work in.

Owns: `create_namespace`. Imports: REST as the tests use it.
"""

from __future__ import annotations

from typing import Any

from dev.testbed.rest import Admin, HasRest

NUM_BUNDLES = 4
WITHOUT_LIMIT = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def create_namespace(server: HasRest, name: str, *, deduplicated: bool, **more: Any) -> None:
    """One that keeps everything, so that it can be read back; with `deduplicated` a producer's
    repetitions do not count.

    `more`: policies beside these.

    Raises RestError for a refusal, OSError without an answer.
    """
    policies = {
        "bundles": {"numBundles": NUM_BUNDLES},
        "retention_policies": WITHOUT_LIMIT,
        "deduplicationEnabled": deduplicated,
        **more,
    }
    Admin(server).call("PUT", f"namespaces/{name}", policies)
