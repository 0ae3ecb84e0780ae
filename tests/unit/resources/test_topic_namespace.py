"""TopicNamespace: which manifests are accepted, and that brokers accept what they say."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from pydantic import AfterValidator, Field

from magnetar import policies as broker_policies
from magnetar.errors import InvalidRequest
from magnetar.metadata.owned_fields import with_fields
from magnetar.names import CLUSTER_NAME, SYSTEM_NAMESPACE
from magnetar.resources.base import Model
from magnetar.resources.namespace_policies import Policies
from magnetar.resources.schema import structural_schema
from tests.support.namespaces import FULL, policies, topic_namespace

NOT_DECLARED = {
    # Stored and shown by REST only: such a promise does not belong in a manifest.
    "deduplicationSnapshotIntervalSeconds",
    # An older form of schema_compatibility_strategy.
    "schema_auto_update_compatibility_strategy",
    # Set by REST alone: how much may go through, and whose share that is.
    "publishMaxMessageRate", "topicDispatchRate", "subscriptionDispatchRate",
    "clusterSubscribeRate", "resource_group_name",
    # Not a policy of Pulsar's namespaces.
    "max_message_size",
}  # fmt: skip


def test_the_manifest_has_every_policy_that_brokers_honour() -> None:
    """One that is added to the broker is missed here; one that has no effect is not offered."""
    assert set(Policies.model_fields) == set(broker_policies.READERS) - NOT_DECLARED
    assert set(FULL) == set(Policies.model_fields)


def test_policies_are_stored_as_rest_stores_them() -> None:
    """The same value given by both is no change, whatever a manifest leaves out."""
    with_nested = {
        "autoTopicCreationOverride": {"allowAutoTopicCreation": True},
        "delayed_delivery_policies": {"active": False},
    }
    for manifest in (FULL, with_nested):
        stored = Policies.model_validate(manifest).declared()
        simple = {key: value for key, value in stored.items() if "." not in key}
        assert simple == broker_policies.checked(simple)
        quotas = {key: value for key, value in stored.items() if "." in key}
        nested = with_fields({}, {f"policies.{key}": value for key, value in quotas.items()})
        assert broker_policies.checked(nested) == nested


def test_the_namespace_of_the_brokers_is_no_resources() -> None:
    """The operator refuses it as well, for definitions may be older; other namespaces of the
    tenant are anybody's."""
    with pytest.raises(InvalidRequest, match="namespace pulsar/system belongs to the brokers"):
        topic_namespace(
            tenant="pulsar",
            namespace="system",
            policies={"message_ttl_in_seconds": 1},
            deletionPolicy="Delete",
        )
    assert topic_namespace(tenant="pulsar", namespace="mine").spec.name != SYSTEM_NAMESPACE


def test_policies_keep_pulsars_names_and_only_what_is_set_is_owned() -> None:
    resource = topic_namespace(
        policies={
            "message_ttl_in_seconds": 0,
            "backlog_quota_map": {"message_age": {"limitTime": 9}},
        },
        permissions={"alice": ["produce", "consume"]},
        properties={"team.name": "blue"},
    )
    assert resource.spec.fields() == {
        "policies.message_ttl_in_seconds": 0,
        "policies.backlog_quota_map.message_age": {
            "limit": -1, "limitSize": -1, "limitTime": 9, "policy": "producer_request_hold",
        },
        "permissions.alice": ["consume", "produce"],
        "properties.team.name": "blue",
    }  # fmt: skip
    assert resource.spec.tenant_fields() == {}
    assert topic_namespace(
        tenantConfig={"allowedClusters": [CLUSTER_NAME]}
    ).spec.tenant_fields() == {"tenantConfig.allowedClusters": (CLUSTER_NAME,)}


@given(policies())
def test_brokers_read_every_policy_that_a_manifest_may_have(chosen: dict[str, Any]) -> None:
    """What passes the model passes the broker's check, and is effective under the name that it
    has."""
    stored = with_fields({}, topic_namespace(policies=chosen).spec.fields())
    broker_policies.checked(stored)
    assert set(stored) == {key for key, value in chosen.items() if value != {}}
    broker_policies.effective(broker_policies.Policies(), stored, {})


def test_limits_of_a_list_that_would_be_those_of_a_text_are_noticed() -> None:
    """The API server would ignore them."""

    class Wrong(Model):
        names: Annotated[
            tuple[str, ...], AfterValidator(lambda value: value), Field(max_length=3)
        ] = Field(default=(), description="x")

    with pytest.raises(ValueError, match=r"Wrong\.names has the limits of a text"):
        structural_schema(Wrong)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"policies": {"retention_policies": {"retentionTimeInMinutes": 5}}},
            "set both retentionTimeInMinutes and retentionSizeInMB",
        ),
        ({"policies": {"message_ttl_in_seconds": -1}}, "message_ttl_in_seconds"),
        (
            {"policies": {"publishMaxMessageRate": {}}},
            "publishMaxMessageRate: is not a field of this kind",
        ),
        ({"policies": {"backlog_quota_map": {"destination_storage": {}}}}, "limitSize"),
        (
            {
                "policies": {
                    "autoTopicCreationOverride": {
                        "allowAutoTopicCreation": True,
                        "defaultNumPartitions": 3,
                    }
                }
            },
            "defaultNumPartitions is for topicType partitioned",
        ),
        (
            {"policies": {"subscription_types_enabled": ["Shared", "Shared"]}},
            'Duplicate value: "Shared"; write each once',
        ),
        ({"policies": {"subscription_types_enabled": []}}, "at least 1"),
        ({"permissions": {"alice": ["write"]}}, "'produce', 'consume'"),
        ({"permissions": {"alice": []}}, "at least 1"),
        ({"permissions": {"": ["produce"]}}, "a role has a name of 1 to 200 characters"),
        ({"properties": {"x" * 201: "y"}}, "a property has a name of 1 to 200 characters"),
        ({"tenantConfig": {}}, "set adminRoles, allowedClusters or both"),
    ],
)
def test_a_wrong_manifest_is_refused_with_what_to_write(
    spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        topic_namespace(**spec)
