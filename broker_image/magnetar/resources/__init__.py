"""The custom resources as typed models, and the way from a manifest to one.

Owns: which kinds there are and `parse_manifest`. Imports: the resources, errors; neither kopf nor a
Kubernetes client, so that `magnetar apply` can check a file without them. Invariant: what
`parse_manifest` refuses, the API server refuses too, with the same sentence (both come from the
same rules).
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from magnetar.errors import InvalidRequest
from magnetar.resources.base import API_VERSION, GROUP, VERSION, CustomResource, sentence_of
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob
from magnetar.resources.topic_namespace import TopicNamespace
from magnetar.resources.transaction_coordinator import TransactionCoordinator

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "BrokerCluster",
    "DataJob",
    "TopicNamespace",
    "TransactionCoordinator",
    "parse_manifest",
]

KINDS: dict[str, type[CustomResource]] = {
    model.__name__: model
    for model in (BrokerCluster, TransactionCoordinator, TopicNamespace, DataJob)
}


def parse_manifest(
    document: dict[str, Any], source: str = "manifest"
) -> BrokerCluster | TransactionCoordinator | TopicNamespace | DataJob:
    """The typed resource in `document`. Raises InvalidRequest that names `source`, the field,
    its value and the remedy."""
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"{source}: a manifest is a mapping with apiVersion, kind, metadata and spec; this is "
            f"{document!r:.80}"
        )
    kind, version = document.get("kind"), document.get("apiVersion")
    if version != API_VERSION or kind not in KINDS:
        raise InvalidRequest(
            f"{source}: {version}/{kind} is not known here; use {API_VERSION} with kind "
            f"{', '.join(KINDS)}"
        )
    try:
        resource = KINDS[str(kind)].model_validate(document)
    except ValidationError as error:
        name = (
            document.get("metadata", {}).get("name", "?")
            if isinstance(document.get("metadata"), dict)
            else "?"
        )
        raise InvalidRequest(f"{source}: {kind}/{name}: {sentence_of(error)}") from error
    assert isinstance(resource, BrokerCluster | TransactionCoordinator | TopicNamespace | DataJob)
    return resource
