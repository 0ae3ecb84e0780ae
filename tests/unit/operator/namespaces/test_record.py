"""What a TopicNamespace wants of its records: only its own fields, the same at every look, and
nothing lost that holds messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.owned_fields import value_of, with_fields
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    LogPosition,
    LogRange,
    NamespaceRecord,
    TenantRecord,
)
from magnetar.metadata.store import KeyValue
from magnetar.names import BundleName, NamespaceName, bundles_of, initial_boundaries
from magnetar.policies import KEPT_POLICIES
from magnetar_operator.namespaces.record import (
    Change,
    changes_text,
    desired_record,
    desired_tenant,
    differing_tenant_fields,
    living_bundles,
    number_of_topics,
    record_changes,
    released_record,
    tenant_changes,
    unknown_contents,
)
from tests.support.namespaces import FULL, specs, topic_namespace

NAME = NamespaceName("acme", "orders")
OTHERS = st.dictionaries(
    st.sampled_from(("resource_group_name", "anti_affinity")), st.sampled_from(("x", "y"))
)
BEFORE = st.builds(
    lambda own, others: with_fields(others, topic_namespace(**own).spec.fields()),
    specs(),
    OTHERS,
)


@given(specs(), st.none() | BEFORE)
def test_wanting_twice_is_wanting_once(spec: dict[str, Any], before: dict[str, Any] | None) -> None:
    """A steady state has nothing to write: what is wanted of the wanted record is that record."""
    current = NamespaceRecord(initial_boundaries(3), before) if before is not None else None
    resource = topic_namespace(**spec)
    wanted = desired_record(resource, current)
    assert desired_record(resource, wanted) == wanted
    assert NamespaceRecord.decode(wanted.encode()) == wanted
    assert record_changes(wanted, wanted) == []


@given(specs(), BEFORE)
def test_only_fields_that_the_resource_sets_change(
    spec: dict[str, Any], before: dict[str, Any]
) -> None:
    """Every field of anybody else, and the boundaries, are as they were; every own field is as
    the spec says."""
    current = NamespaceRecord(initial_boundaries(3), before)
    resource = topic_namespace(**spec)
    wanted = desired_record(resource, current)
    fields = resource.spec.fields()
    assert wanted.owned == tuple(sorted(fields))
    assert all(value_of(wanted.policies, field) == value for field, value in fields.items())
    assert wanted.boundaries == current.boundaries
    untouched = with_fields(wanted.policies, dict.fromkeys(fields))
    assert untouched == with_fields(current.policies, dict.fromkeys(fields))


@given(specs(), specs(), OTHERS)
def test_what_a_resource_sets_no_longer_is_removed(
    first: dict[str, Any], then: dict[str, Any], others: dict[str, Any]
) -> None:
    """The way to a spec does not matter: after an edit the record is as if the resource had
    never said anything else."""
    current = NamespaceRecord(initial_boundaries(3), others)
    edited = desired_record(
        topic_namespace(**then), desired_record(topic_namespace(**first), current)
    )
    assert edited == desired_record(topic_namespace(**then), current)


def test_fields_of_a_former_owner_stay_as_they_are() -> None:
    """Who takes a namespace over takes its own fields only; the others are anybody's from then
    on."""
    current = desired_record(topic_namespace("first", policies=FULL), None)
    assert current.owner == "shop/first"
    taken = desired_record(
        topic_namespace("second", policies={"message_ttl_in_seconds": 5}), current
    )
    assert (taken.owner, taken.owned) == ("shop/second", ("policies.message_ttl_in_seconds",))
    assert taken.policies == {**current.policies, "message_ttl_in_seconds": 5}
    assert changes_text(record_changes(current, taken)) == (
        'policies.message_ttl_in_seconds: 3600 -> 5; owner: "shop/first" -> "shop/second"'
    )
    assert released_record(taken) == NamespaceRecord(
        taken.boundaries, taken.policies, bundles_created=taken.bundles_created
    )


def test_changes_are_reported_field_by_field_and_within_bounds() -> None:
    old = NamespaceRecord(
        (0, 1), {"message_ttl_in_seconds": 5}, "shop/orders", ("policies.message_ttl_in_seconds",)
    )
    new = desired_record(topic_namespace(properties={"team": "blue"}), old)
    assert (
        changes_text(record_changes(old, new))
        == 'policies.message_ttl_in_seconds: 5 -> unset; properties.team: unset -> "blue"'
    )
    many = changes_text([Change(f"properties.{number}", None, "x" * 4096) for number in range(50)])
    assert many.endswith("; and 30 more")
    assert len(many) < 6000


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_lost_record_is_made_again_around_bundles_that_hold_messages(
    before: int, asked: int, data: st.DataObject
) -> None:
    """Every living bundle is a bundle of the new record, however many the spec asks for, and
    nothing expires in it."""
    living = data.draw(
        st.lists(st.sampled_from(bundles_of(NAME, initial_boundaries(before))), unique=True)
    )
    wanted = desired_record(
        topic_namespace(bundles=asked, policies={"message_ttl_in_seconds": 5}), None, living
    )
    assert set(living) <= set(bundles_of(NAME, wanted.boundaries))
    if not living:
        assert wanted.boundaries == initial_boundaries(asked)
    assert wanted.policies == {**(KEPT_POLICIES if living else {}), "message_ttl_in_seconds": 5}


# --- the tenant -----------------------------------------------------------------------------------


@given(specs(), specs())
def test_a_tenant_is_as_the_spec_says_whatever_it_said_before(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    """Idempotent, and what is set no longer is as if nobody had set it; no owner without a
    field."""
    before = desired_tenant(topic_namespace(**first), None)
    wanted = desired_tenant(topic_namespace(**then), before)
    assert wanted == desired_tenant(topic_namespace(**then), None)
    assert desired_tenant(topic_namespace(**then), wanted) == wanted
    assert bool(wanted.owner) == bool(wanted.owned) == ("tenantConfig" in then)
    assert TenantRecord.decode(wanted.encode()) == wanted


def test_differences_of_tenants_are_named() -> None:
    old = TenantRecord(("x",), ("standalone",))
    resource = topic_namespace(tenantConfig={"adminRoles": ["b", "a"]})
    assert differing_tenant_fields(resource, old) == ["tenantConfig.adminRoles"]
    new = desired_tenant(resource, old)
    assert new == TenantRecord(
        ("a", "b"), ("standalone",), "shop/orders", ("tenantConfig.adminRoles",)
    )
    assert (
        changes_text(tenant_changes(old, new))
        == 'tenantConfig.adminRoles: ["x"] -> ["a", "b"]; owner: unset -> "shop/orders"'
    )
    assert differing_tenant_fields(resource, new) == []


# --- what a namespace holds -----------------------------------------------------------------------


def _item(key: str, value: bytes = b"") -> KeyValue:
    return KeyValue(key, value, 1, 1, 1)


def test_partitions_count_as_their_topic() -> None:
    names = (
        "persistent/a",
        "persistent/b",
        "persistent/b-partition-0",
        "persistent/b-partition-11",
        "non-persistent/a",
    )
    assert number_of_topics(NAME, [_item(f"topics/acme/orders/{name}") for name in names]) == 3


def test_a_bundle_that_nobody_serves_may_hold_anything() -> None:
    """Only brokers know the topics of a bundle; one that was never owned, or was split, holds
    none."""
    held = (LogRange("broker-0.1", LogPosition(0, 0), LogPosition(0, 9)),)
    records = {
        BundleName(NAME, 0, 1): BundleRecord(BundleState.OWNED, 1, "broker-0.1", chain=held),
        BundleName(NAME, 1, 2): BundleRecord(BundleState.FREE, 1),
        BundleName(NAME, 2, 3): BundleRecord(BundleState.FREE, 1, chain=held),
        BundleName(NAME, 3, 4): BundleRecord(BundleState.ASSIGNING, 1, "broker-0.1"),
        BundleName(NAME, 4, 5): BundleRecord(BundleState.DELETED, 1, chain=held),
    }
    living = living_bundles(
        [_item(f"bundles/{name}", record.encode()) for name, record in records.items()]
    )
    assert set(living) == set(list(records)[:4])
    assert unknown_contents(living) == [BundleName(NAME, 2, 3), BundleName(NAME, 3, 4)]
