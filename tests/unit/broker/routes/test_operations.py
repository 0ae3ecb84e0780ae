"""Routes for operators: cordons, damage of the whole cluster, policies in one request,
explanations; what is malformed is 4xx with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from magnetar.broker.routes.application import create_application
from magnetar.errors import NamespaceNotFound
from magnetar.names import BundleName, NamespaceName, TopicName
from tests.support.resources import every_resource

CORDON = "/magnetar/v1/brokers/broker-1/cordon"
BUNDLE = "public/default/0x00000000_0x40000000"


class OperationsInMemory:
    """The broker's side: cordons and policies in dictionaries."""

    def __init__(self) -> None:
        self.cordons: dict[str, tuple[bool, str, bool]] = {}
        self.stored: dict[str, Any] = {"message_ttl_in_seconds": 5, "deduplicationEnabled": True}
        self.application = create_application(every_resource(self))

    def damage(self) -> list[dict[str, Any]]:
        return [{"what": "read"}]

    def short_of_space(self) -> str:
        return "no room"

    async def cluster_damage(self) -> dict[str, Any]:
        return {"damage": [{"broker": "broker-1", "what": "read"}], "unreachable": ["broker-2"]}

    async def cordon(self, broker: str, *, drain: bool, reason: str, force: bool) -> None:
        self.cordons[broker] = (drain, reason, force)

    async def uncordon(self, broker: str) -> None:
        del self.cordons[broker]

    async def edit_policies(
        self, target: NamespaceName, edit: Callable[[dict[str, Any]], None]
    ) -> None:
        if target.tenant == "no":
            raise NamespaceNotFound(f"Namespace {target} does not exist")
        edit(self.stored)

    async def explain(self, topic: TopicName | None, bundle: BundleName | None) -> dict[str, Any]:
        return {"topic": str(topic) if topic else None, "bundle": str(bundle) if bundle else None}

    def explain_owned(self, topic: TopicName | None, bundle: BundleName) -> dict[str, Any]:
        return {"topic": str(topic) if topic else None, "serving": True, "bundle": str(bundle)}


async def ask(port: OperationsInMemory, method: str, path: str, body: Any = None) -> httpx.Response:
    """One request through the whole application."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(port.application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, json=body)

    return await run()


async def test_a_cordon_drains_unless_it_says_otherwise() -> None:
    """Defaults without a body; every field as it was given; lifted again."""
    port = OperationsInMemory()
    assert (await ask(port, "PUT", CORDON)).status_code == 204
    assert port.cordons == {"broker-1": (True, "cordoned by REST", False)}
    assert (
        await ask(port, "PUT", CORDON, {"drain": False, "reason": "r", "force": True})
    ).status_code == 204
    assert port.cordons == {"broker-1": (False, "r", True)}
    assert (await ask(port, "DELETE", CORDON)).status_code == 204
    assert port.cordons == {}


@pytest.mark.parametrize(
    "body", [{"drain": 1}, {"force": "yes"}, {"reason": 5}, {"reason": "x" * 501}, [1]]
)
async def test_a_malformed_cordon_is_refused(body: Any) -> None:
    """400 with a reason that names the field; nothing is written."""
    port = OperationsInMemory()
    answer = await ask(port, "PUT", CORDON, body)
    assert answer.status_code == 400
    assert answer.json()["reason"]
    assert port.cordons == {}


async def test_damage_is_one_brokers_or_everybodys() -> None:
    port = OperationsInMemory()
    assert (await ask(port, "GET", "/magnetar/v1/damage")).json() == {
        "damage": [{"what": "read"}],
        "short_of_space": "no room",
    }
    assert (await ask(port, "GET", "/magnetar/v1/damage?cluster=true")).json()["unreachable"] == [
        "broker-2"
    ]


async def test_policies_change_together_and_others_stay() -> None:
    """A merge: what is named is replaced, null is handed on as such, the rest is untouched."""
    port = OperationsInMemory()
    path = "/magnetar/v1/namespaces/public/default/policies"
    assert (
        await ask(port, "PATCH", path, {"message_ttl_in_seconds": 7, "retention_policies": None})
    ).status_code == 204
    assert port.stored == {
        "message_ttl_in_seconds": 7,
        "deduplicationEnabled": True,
        "retention_policies": None,
    }
    assert (
        await ask(port, "PATCH", "/magnetar/v1/namespaces/no/where/policies", {})
    ).status_code == 404
    assert (await ask(port, "PATCH", path, [1])).status_code == 400


async def test_explanations_are_of_a_topic_or_a_bundle() -> None:
    """Names are parsed before the broker is asked; from broker to broker the bundle must be
    named."""
    port = OperationsInMemory()
    assert (await ask(port, "GET", "/magnetar/v1/explain?topic=t")).json() == {
        "topic": "persistent://public/default/t",
        "bundle": None,
    }
    assert (await ask(port, "GET", f"/magnetar/v1/explain?bundle={BUNDLE}")).json() == {
        "topic": None,
        "bundle": BUNDLE,
    }
    assert (await ask(port, "GET", f"/magnetar/v1/explain/owned?bundle={BUNDLE}")).json()[
        "serving"
    ] is True
    for query in ("explain?topic=x://y", "explain?bundle=a/b/c", "explain/owned"):
        answer = await ask(port, "GET", f"/magnetar/v1/{query}")
        assert answer.status_code in (400, 412)
        assert answer.json()["reason"]
