"""What a refusal says of what is there: which status, the same words for what exists and what
does not, and who is asked first."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from magnetar.hosting.joining import incarnation_number
from magnetar.hosting.security.rest import RestGate
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.names import NamespaceName
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import CLOCK, TOPIC, Type, connected_peer, open_peer, running_broker
from tests.support.rest import rest_over
from tests.support.secured import peer_of, secured_broker, show, token

HERE, ABSENT = "here", "gone"
"""Two tenants of names of one length; the second is not there."""
ROUTES = (
    ("GET", "/admin/v2/tenants/{tenant}"),
    ("PUT", "/admin/v2/tenants/{tenant}"),
    ("DELETE", "/admin/v2/tenants/{tenant}"),
    ("GET", "/admin/v2/namespaces/{tenant}"),
    ("GET", "/admin/v2/namespaces/{tenant}/ns"),
    ("PUT", "/admin/v2/namespaces/{tenant}/ns"),
    ("POST", "/admin/v2/namespaces/{tenant}/ns/retention"),
    ("GET", "/admin/v2/namespaces/{tenant}/ns/topics"),
    ("GET", "/admin/v2/persistent/{tenant}/ns"),
    ("PUT", "/admin/v2/persistent/{tenant}/ns/t"),
    ("GET", "/admin/v2/persistent/{tenant}/ns/t/stats"),
    ("GET", "/admin/v2/persistent/{tenant}/ns/t/partitions"),
    ("PUT", "/admin/v2/persistent/{tenant}/ns/t/subscription/s"),
    ("GET", "/admin/v2/schemas/{tenant}/ns/t/schema"),
    ("GET", "/lookup/v2/topic/persistent/{tenant}/ns/t"),
    ("GET", "/admin/v3/transactions/transactionBufferStats/{tenant}/ns/t"),
)
COMMANDS: dict[str, dict[str, Any]] = {
    "lookup": {"topic": "persistent://{tenant}/ns/t"},
    "partitioned_metadata": {"topic": "persistent://{tenant}/ns/t"},
    "get_topics_of_namespace": {"namespace": "{tenant}/ns"},
    "watch_topic_list": {"namespace": "{tenant}/ns", "watcher_id": 1, "topics_pattern": ".*"},
    "get_schema": {"topic": "persistent://{tenant}/ns/t"},
    "producer": {"topic": "persistent://{tenant}/ns/t", "producer_id": 1},
    "subscribe": {
        "topic": "persistent://{tenant}/ns/t",
        "consumer_id": 1,
        "subscription": "s",
        "subType": 1,
    },
}


async def test_without_a_right_an_absent_tenant_looks_like_one_that_is_there(
    tmp_path: Path,
) -> None:
    """Status and words of every answer, over HTTP and the binary protocol, for a role with no
    right anywhere."""

    async with secured_broker(tmp_path) as (broker, found), AsyncExitStack() as stack:
        record = NamespaceRecord(boundaries=(0, 0xFFFFFFFF), policies={})
        await broker.context.store.put(keys.tenant(HERE), TenantRecord(("chief",)).encode())
        await broker.context.store.put(keys.namespace(NamespaceName(HERE, "ns")), record.encode())
        peer = await stack.enter_async_context(peer_of(broker))
        assert (await show(peer, token("nobody"))).type == Type.CONNECTED
        rest = await stack.enter_async_context(
            rest_over(tmp_path, broker, RestGate(found, lambda: broker.guard))
        )

        async def answers(tenant: str) -> dict[str, str]:
            seen = {}
            for method, path in ROUTES:
                answer = await rest.ask(
                    method,
                    path.format(tenant=tenant),
                    headers={"Authorization": f"Bearer {token('nobody')}"},
                )
                assert answer.status_code in (401, 403), (method, path, answer.text)
                seen[f"{method} {path}"] = f"{answer.status_code} {answer.text}"
            for name, values in COMMANDS.items():
                body = {
                    key: value.format(tenant=tenant) if isinstance(value, str) else value
                    for key, value in values.items()
                }
                answered = await peer.ask(name, **body)
                assert "Authorization" in str(answered), answered
                seen[name] = "".join(
                    line for line in str(answered).splitlines() if "request_id" not in line
                )
            return seen

        there, gone = await answers(HERE), await answers(ABSENT)
        assert {key: text.replace(HERE, ABSENT) for key, text in there.items()} == gone


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v2/brokers/standalone", 401),
        ("PUT", "/admin/v2/clusters/other", 401),
        ("GET", "/admin/v2/tenants", 401),
        ("PUT", "/admin/v2/tenants/new", 401),
        ("GET", "/admin/v2/tenants/public", 401),
        ("GET", "/admin/v2/namespaces/public", 401),
        ("PUT", "/admin/v2/namespaces/public/new", 401),
        ("DELETE", "/admin/v2/namespaces/public/default", 401),
        ("PUT", "/admin/v2/namespaces/public/default/unload", 401),
        ("GET", "/admin/v2/namespaces/public/default", 403),
        ("GET", "/admin/v2/namespaces/public/default/topics", 403),
        ("POST", "/admin/v2/namespaces/public/default/retention", 403),
        ("POST", "/admin/v2/namespaces/public/default/permissions/me", 403),
        ("POST", "/admin/v2/namespaces/public/default/clearBacklog", 403),
        ("GET", "/admin/v2/persistent/public/default", 403),
        ("PUT", "/admin/v2/persistent/public/default/t", 403),
        ("PUT", "/admin/v2/persistent/public/default/t/partitions", 403),
        ("GET", "/admin/v2/persistent/public/default/t/partitions", 401),
        ("POST", "/admin/v2/persistent/public/default/t/retention", 403),
        ("GET", "/admin/v2/persistent/public/default/t/backlogQuotaMap", 403),
        ("GET", "/admin/v2/persistent/public/default/t/stats", 401),
        ("PUT", "/admin/v2/persistent/public/default/t/unload", 401),
        ("POST", "/admin/v2/persistent/public/default/t/subscription/s/skip_all", 401),
        ("GET", "/admin/v2/schemas/public/default/t/schema", 401),
        ("GET", "/lookup/v2/topic/persistent/public/default/t", 401),
        ("GET", "/admin/v3/transactions/coordinators", 401),
        ("GET", "/magnetar/v1/status", 403),
    ],
)
async def test_a_known_role_without_the_right_gets_pulsars_status(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    """Nobody known gets 401 everywhere, also for names that are not valid: nothing is looked at
    before."""

    async with (
        secured_broker(tmp_path) as (broker, found),
        rest_over(tmp_path, broker, RestGate(found, lambda: broker.guard)) as rest,
    ):
        refused = await rest.ask(
            method, path, headers={"Authorization": f"Bearer {token('nobody')}"}
        )
        assert (refused.status_code, list(refused.json())[:1]) == (status, ["reason"]), refused.text
        for shown in ({}, {"Authorization": "Bearer x.y.z"}):
            assert (await rest.ask(method, path, headers=shown)).status_code == 401
            assert (
                await rest.ask(method, path.replace("public", "no$name"), headers=shown)
            ).status_code == 401


@pytest.mark.parametrize("name", ["", "  ", "pulsar.dedup", "x" * 5000])
async def test_a_subscription_name_that_cannot_be_has_pulsars_code_and_leaves_no_topic(
    tmp_path: Path, name: str
) -> None:
    """ProducerBusy: what the C++ client turns into InvalidConfiguration. A topic that did not
    exist is not created for it."""

    async with connected_peer(tmp_path) as (_, peer):
        refused = await peer.ask(
            "subscribe", topic=TOPIC, consumer_id=1, subscription=name, subType=1
        )
        assert refused.type == Type.ERROR
        assert refused.error.error == api.ProducerBusy
        listed = await peer.ask("get_topics_of_namespace", namespace="public/default")
        assert list(listed.get_topics_of_namespace_response.topics) == []


# --- names of producers ---------------------------------------------------------------------------


async def test_producers_names_are_short_and_no_incarnation_gives_one_again(tmp_path: Path) -> None:
    """They are in every entry; a second producer of a name would have its messages dropped as
    duplicates."""

    store, names = MemoryStore(CLOCK), []
    for _ in range(3):  # the same broker, started again and again over one store
        async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
            await peer.lookup()
            names += [(await peer.produce(number)).producer_name for number in range(3)]
    assert len({*names}) == 9
    assert max(map(len, names)) <= len("standalone-xx-1")
    assert [name.rpartition("-")[2] for name in names] == ["1", "2", "3"] * 3


def test_an_incarnations_number_is_another_for_each_revision_and_restore() -> None:
    numbers = {
        incarnation_number(restore, revision)
        for restore in range(12)
        for revision in range(1, 3000)
    }
    assert len(numbers) == 12 * 2999
    assert incarnation_number(0, 2_000_000_000) == "x2qxvk"
