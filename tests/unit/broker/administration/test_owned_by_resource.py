"""What a TopicNamespace owns, over REST and a real broker: refused with its name, whatever the
route; everything else stays anybody's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import ADMIN_ROLES
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import NamespaceName, initial_boundaries
from tests.support.rest import NAMESPACE, Rest, broker_with_rest, refusal_text

Script = Callable[[Broker, Rest, MetadataStore], Coroutine[Any, Any, None]]
NAME = NamespaceName("public", "default")
QUOTA = {"limit": 5, "limitSize": 5, "limitTime": -1, "policy": "producer_exception"}
OWNED: dict[str, Any] = {
    "message_ttl_in_seconds": 60,
    "backlog_quota_map": {"destination_storage": QUOTA},
    "auth_policies": {"namespace_auth": {"alice": ["consume"]}},
    "properties": {"team": "blue"},
}
FIELDS = (
    "permissions.alice",
    "policies.backlog_quota_map.destination_storage",
    "policies.message_ttl_in_seconds",
    "properties.team",
)

CHANGES: tuple[tuple[str, str, Any, str], ...] = (
    ("POST", "messageTTL", 5, "policies.message_ttl_in_seconds"),
    ("DELETE", "messageTTL", None, "policies.message_ttl_in_seconds"),
    ("POST", "backlogQuota", {"limitSize": 9}, "policies.backlog_quota_map.destination_storage"),
    ("DELETE", "backlogQuota", None, "policies.backlog_quota_map.destination_storage"),
    ("POST", "permissions/alice", ["produce"], "permissions.alice"),
    ("DELETE", "permissions/alice", None, "permissions.alice"),
    ("PUT", "properties", {"team": "red"}, "properties.team"),
    ("DELETE", "properties", None, "properties.team"),
    ("PUT", "property/team/red", None, "properties.team"),
    ("DELETE", "property/team", None, "properties.team"),
)


async def play(directory: Path, script: Script) -> None:
    async with broker_with_rest(directory) as (broker, rest, _peer):
        store = broker.context.store
        record = NamespaceRecord(initial_boundaries(4), OWNED, "shop/orders", FIELDS)
        await broker.views.namespaces.reach(await store.put(keys.namespace(NAME), record.encode()))
        await script(broker, rest, store)


async def record_in(store: MetadataStore) -> NamespaceRecord:
    item = await store.get(keys.namespace(NAME))
    assert item is not None
    return NamespaceRecord.decode(item.value)


async def test_a_change_of_an_owned_field_is_refused_with_the_owner(tmp_path: Path) -> None:
    """By every route that could make one; nothing of the record has changed afterwards."""

    async def script(_broker: Broker, rest: Rest, store: MetadataStore) -> None:
        for method, path, body, field in CHANGES:
            answer = await rest(method, f"{NAMESPACE}/{path}", body, status=409)
            assert (
                refusal_text(answer)
                == f"TopicNamespace shop/orders owns {field}; edit that resource instead"
            ), (method, path)
        assert (await record_in(store)).policies == OWNED

    await play(tmp_path, script)


async def test_fields_of_nobody_stay_anybodys_and_the_same_value_is_no_change(
    tmp_path: Path,
) -> None:
    """Beside owned ones: another policy, quota, role and property; the record keeps its owner
    through all of it."""

    async def script(_broker: Broker, rest: Rest, store: MetadataStore) -> None:
        await rest("POST", f"{NAMESPACE}/messageTTL", 60)
        await rest("POST", f"{NAMESPACE}/maxProducersPerTopic", 3)
        await rest(
            "POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 9}
        )
        await rest("POST", f"{NAMESPACE}/permissions/bob", ["produce"])
        await rest("PUT", f"{NAMESPACE}/property/cost/low")
        changes = {"message_ttl_in_seconds": 60, "deduplicationEnabled": True}
        await rest("PATCH", "/magnetar/v1/namespaces/public/default/policies", changes)
        await rest(
            "PATCH",
            "/magnetar/v1/namespaces/public/default/policies",
            {"message_ttl_in_seconds": 1},
            status=409,
        )
        record = await record_in(store)
        assert (record.owner, record.owned) == ("shop/orders", FIELDS)
        assert record.policies["max_producers_per_topic"] == 3
        assert record.policies["backlog_quota_map"]["destination_storage"] == QUOTA
        assert record.policies["backlog_quota_map"]["message_age"]["limitTime"] == 9
        assert record.policies["auth_policies"]["namespace_auth"] == {
            "alice": ["consume"],
            "bob": ["produce"],
        }
        assert record.policies["properties"] == {"team": "blue", "cost": "low"}

    await play(tmp_path, script)


async def test_an_owned_namespace_is_not_deleted_by_rest_until_it_is_released(
    tmp_path: Path,
) -> None:
    """Not by force either, nor with its tenant; the owner is shown, and can be taken away where
    its resource is gone."""

    async def script(_broker: Broker, rest: Rest, store: MetadataStore) -> None:
        for path in (NAMESPACE, f"{NAMESPACE}?force=true"):
            refused = await rest("DELETE", path, status=409)
            assert (
                refusal_text(refused)
                == "TopicNamespace shop/orders owns namespace public/default; delete that resource "
                "instead"
            )
        await rest("DELETE", "/admin/v2/tenants/public?force=true", status=409)
        owner = "/magnetar/v1/namespaces/public/default/owner"
        assert await rest.get(owner) == {
            "owner": "TopicNamespace shop/orders",
            "owned": list(FIELDS),
        }
        assert await rest.get("/magnetar/v1/namespaces/owners") == {
            "public/default": "TopicNamespace shop/orders"
        }
        owned_tenant = TenantRecord(("root",), ("standalone",), "shop/orders", (ADMIN_ROLES,))
        await store.put(keys.tenant("public"), owned_tenant.encode())
        await rest("DELETE", owner)
        item = await store.get(keys.tenant("public"))
        assert item is not None
        assert TenantRecord.decode(item.value) == TenantRecord(("root",), ("standalone",))
        assert await rest.get(owner) == {"owner": "", "owned": []}
        assert (await record_in(store)).policies == OWNED
        await rest("POST", f"{NAMESPACE}/messageTTL", 5)
        await rest("DELETE", "/magnetar/v1/namespaces/no/where/owner", status=404)
        await rest("DELETE", f"{NAMESPACE}?force=true")

    await play(tmp_path, script)


async def test_who_takes_a_field_while_it_is_edited_is_not_written_over(tmp_path: Path) -> None:
    """The owner is compared in the transaction that would change the field, not before it."""

    async def script(_broker: Broker, rest: Rest, store: MetadataStore) -> None:
        mine = NamespaceRecord(initial_boundaries(4), {"message_ttl_in_seconds": 60})
        await store.put(keys.namespace(NAME), mine.encode())
        real, owned = (
            store.get,
            NamespaceRecord(
                mine.boundaries, mine.policies, "shop/orders", ("policies.message_ttl_in_seconds",)
            ),
        )

        async def get(key: str) -> Any:
            found = await real(key)
            if key == keys.namespace(NAME) and found is not None and found.value == mine.encode():
                await store.put(key, owned.encode())  # between reading and writing
            return found

        store.get = get  # type: ignore[method-assign]
        try:
            await rest("POST", f"{NAMESPACE}/messageTTL", 5, status=409)
        finally:
            del store.get
        assert await record_in(store) == owned

    await play(tmp_path, script)


async def test_a_tenant_that_is_owned_keeps_what_the_owner_sets(tmp_path: Path) -> None:
    """The field that the resource sets is refused, the other one is not, and the tenant is not
    deleted."""

    async def script(_broker: Broker, rest: Rest, store: MetadataStore) -> None:
        tenant = "/admin/v2/tenants/acme"
        await rest("PUT", "/admin/v2/clusters/west", {"serviceUrl": "http://w"}, status=200)
        await rest("PUT", tenant, {"adminRoles": ["root"], "allowedClusters": ["standalone"]})
        owned = TenantRecord(("root",), ("standalone",), "shop/orders", (ADMIN_ROLES,))
        await store.put(keys.tenant("acme"), owned.encode())
        refused = await rest(
            "POST", tenant, {"adminRoles": ["other"], "allowedClusters": ["standalone"]}, status=409
        )
        assert refusal_text(refused) == (
            "TopicNamespace shop/orders owns tenantConfig.adminRoles of tenant acme; edit that "
            "resource instead"
        )
        await rest(
            "POST", tenant, {"adminRoles": ["root"], "allowedClusters": ["standalone", "west"]}
        )
        item = await store.get(keys.tenant("acme"))
        assert item is not None
        assert TenantRecord.decode(item.value) == TenantRecord(
            ("root",), ("standalone", "west"), "shop/orders", (ADMIN_ROLES,)
        )
        refused = await rest("DELETE", tenant, status=409)
        assert (
            refusal_text(refused)
            == "TopicNamespace shop/orders owns tenant acme; delete that resource instead"
        )

    await play(tmp_path, script)
