"""Fields that only newer definitions have: skipped where a default may have put them, reported
once, and never where a user must have set them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.errors import InvalidRequest
from magnetar.resources import API_VERSION, parse_manifest
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob
from magnetar.resources.topic_namespace import TopicNamespace
from magnetar.resources.transaction_coordinator import TransactionCoordinator
from magnetar_operator.engine.world import InvalidResource, parsed, parsed_json


def resource(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "main"}, "spec": spec}


def test_a_field_of_newer_definitions_is_skipped_and_reported_once() -> None:
    """At the top, in a part, in an item of a list; what is known is read as ever."""
    listeners = [{"name": "known"}, {"name": "other", "novelB": 1}]
    found = resource(
        "BrokerCluster",
        replicas=5,
        novelA={"x": 1},
        listeners=listeners,
        podTemplate={"novelC": "y"},
    )
    before = json.dumps(found)
    with capture_logs() as logs:
        for _ in range(2):
            for cluster in (
                parsed(found, BrokerCluster),
                parsed_json(json.dumps(found).encode(), BrokerCluster),
            ):
                assert (
                    cluster.spec.replicas,
                    [listener.name for listener in cluster.spec.listeners],
                ) == (5, ["known", "other"])
    assert json.dumps(found) == before
    fields = ["spec.novelA", "spec.listeners.*.novelB", "spec.podTemplate.novelC"]
    assert sorted(entry["field"] for entry in logs if entry["event"] == "field.unknown") == sorted(
        fields
    )


def test_what_is_wrong_beside_it_is_named() -> None:
    """Not the field that may be there by a default."""
    with pytest.raises(InvalidResource, match=r"^spec\.replicas: ") as refused:
        parsed(resource("BrokerCluster", aNovelty=1, replicas=-1), BrokerCluster)
    assert "aNovelty" not in str(refused.value)


def test_a_policy_that_this_operator_does_not_know_is_refused() -> None:
    """It has no default, so a user set it; a newer operator owns it in the record, and without
    it this one would remove it there."""
    spec = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"}
    for part in ({"policies": {"novel": 1}}, {"tenantConfig": {"adminRoles": ["a"], "novel": 1}}):
        with pytest.raises(InvalidResource, match=r"\.novel: is not a field of this kind"):
            parsed(resource("TopicNamespace", **spec, **part), TopicNamespace)
    assert (
        parsed(resource("TopicNamespace", **spec, novel=1), TopicNamespace).spec.namespace
        == "orders"
    )


def test_a_reference_with_a_field_that_this_operator_does_not_know_is_refused() -> None:
    """Without it another cluster might be addressed, one of the resource's own namespace for
    instance."""
    reference = {"name": "main", "novel": "elsewhere"}
    with pytest.raises(
        InvalidResource, match=r"spec\.clusterRef\.novel: is not a field of this kind"
    ):
        parsed(
            resource("TopicNamespace", clusterRef=reference, tenant="acme", namespace="orders"),
            TopicNamespace,
        )
    with pytest.raises(
        InvalidResource, match=r"spec\.clusterRef\.novel: is not a field of this kind"
    ):
        parsed(resource("TransactionCoordinator", clusterRef=reference), TransactionCoordinator)
    compaction = {"topic": "persistent://acme/orders/all"}
    with pytest.raises(
        InvalidResource, match=r"spec\.clusterRef\.novel: is not a field of this kind"
    ):
        parsed(resource("DataJob", clusterRef=reference, compaction=compaction), DataJob)


def test_a_manifest_of_a_person_is_read_strictly() -> None:
    with pytest.raises(InvalidRequest, match="novel"):
        parse_manifest(resource("BrokerCluster", novel=1))
