"""What a scrape says of schemas: each operation once, by namespace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.errors import StoreUnavailable
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.rest import Rest, broker_with_rest

SCHEMAS = "/admin/v2/schemas"
SCHEMA = f"{SCHEMAS}/public/default/t/schema"
A, OTHER_A = {"name": "a", "type": "int"}, {"name": "a", "type": "string"}
B = {"name": "b", "type": "string", "default": "x"}


def definition(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def avro(*fields: dict[str, Any]) -> api.Schema:
    return api.Schema(name="s", type=api.Schema.Avro, schema_data=definition(*fields).encode())


async def scraped(rest: Rest, namespace: str = "public/default") -> dict[str, float]:
    """The counts of a namespace that are not 0, without the common parts of their names; "" is the
    series of no namespace."""
    labels = {"cluster": "standalone"} | ({"namespace": namespace} if namespace else {})
    answer = await rest.ask("GET", "/metrics")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith("pulsar_schema_") and sample.labels == labels and sample.value
    }
    return {
        re.sub("pulsar_schema_|_ops|_latency_count|_total", "", name): value
        for name, value in found.items()
        if not name.endswith("_sum")
    }


async def refused(peer: Peer, producer_id: int, schema: api.Schema) -> None:
    answer = await peer.ask("producer", topic=TOPIC, producer_id=producer_id, schema=schema)
    assert answer.type == Type.ERROR, answer


async def test_what_clients_do_is_counted(tmp_path: Path) -> None:
    """A new version is put once; what is registered is neither put nor compared again."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        assert await scraped(rest) == await scraped(rest, "") == {}
        await peer.produce(1, schema=avro(A))
        await peer.produce(2, schema=avro(A))
        assert await scraped(rest) == {"put": 1}
        await refused(peer, 3, avro(OTHER_A))
        assert await scraped(rest) == {"put": 1, "incompatible": 1}
        await refused(peer, 3, api.Schema(name="s", type=api.Schema.Avro, schema_data=b"{"))
        assert await scraped(rest) == {"put": 1, "incompatible": 1}
        await peer.produce(3, schema=avro(A, B))
        assert await scraped(rest) == {"put": 2, "incompatible": 1, "compatible": 1}
        await peer.subscribe(4, schema=avro(A))
        assert await scraped(rest) == {"put": 2, "get": 1, "incompatible": 1, "compatible": 2}
        await peer.ask("get_schema", topic=TOPIC)
        assert await scraped(rest) == {"put": 2, "get": 2, "incompatible": 1, "compatible": 2}
        assert await scraped(rest, "") == {}


async def test_what_administrators_do_is_counted(tmp_path: Path) -> None:
    """Also how long it took; a deletion that finds nothing is none."""
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        payload = {"type": "AVRO", "schema": definition(A), "properties": {}}
        await rest("POST", SCHEMA, payload, status=200)
        await rest("POST", f"{SCHEMAS}/public/default/t/compatibility", payload, status=202)
        other = payload | {"schema": definition(OTHER_A)}
        await rest("POST", f"{SCHEMAS}/public/default/t/compatibility", other, status=202)
        assert await scraped(rest) == {"put": 1, "get": 2, "incompatible": 1}
        for query in ("", "", "?force=true", "?force=true"):
            await rest("DELETE", SCHEMA + query, status=200)
        assert await scraped(rest) == {"put": 1, "get": 2, "incompatible": 1, "del": 2}
        text = (await rest.ask("GET", "/metrics")).text
        [summary] = [
            family
            for family in text_string_to_metric_families(text)
            if family.name == "pulsar_schema_put_ops_latency"
        ]
        assert summary.type == "summary"
        took = {
            sample.name.rpartition("_")[2]: sample.value
            for sample in summary.samples
            if sample.labels.get("namespace") == "public/default"
        }
        assert took["count"] == 1
        assert 0 < took["sum"] < 60_000


async def test_what_the_store_refuses_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, peer):

        async def unavailable(*_values: Any, **_options: Any) -> Any:
            raise StoreUnavailable("gone")

        await peer.produce(1)
        for method in ("range", "transact"):
            with monkeypatch.context() as patched:
                patched.setattr(broker.context.store, method, unavailable)
                await refused(peer, 2, avro(A))
                await rest("GET", SCHEMA, status=503 if method == "range" else 404)
        assert await scraped(rest) == {"put_failed": 2, "get_failed": 1, "get": 1}
        await peer.produce(2, schema=avro(A))
        with monkeypatch.context() as patched:
            patched.setattr(broker.context.store, "transact", unavailable)
            await rest("DELETE", SCHEMA, status=503)
        found = await scraped(rest)
        assert (found["put"], found["put_failed"], found["del_failed"]) == (1, 2, 1)


async def test_names_that_do_not_exist_take_no_memory(tmp_path: Path) -> None:
    """Requests for them are counted together; a namespace that is deleted is forgotten."""
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        for number in range(3):
            await rest("GET", f"{SCHEMAS}/public/none{number}/t/schema", status=404)
        assert await scraped(rest, "") == {"get": 3}
        statistics = broker.service.schemas.statistics
        assert not statistics.by_namespace
        await rest("PUT", "/admin/v2/namespaces/public/brief")
        await rest("GET", f"{SCHEMAS}/public/brief/t/schema", status=404)
        assert await scraped(rest, "public/brief") == {"get": 1}
        await rest("DELETE", "/admin/v2/namespaces/public/brief")
        assert await scraped(rest, "public/brief") == {}
        assert not statistics.by_namespace
        assert await scraped(rest, "") == {"get": 3}
