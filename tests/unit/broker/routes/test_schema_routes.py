"""Schemas over REST: Pulsar's shapes and codes, and what becomes of a topic's schema with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from magnetar.schemas.types import SchemaType, version_bytes
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import TOPIC
from tests.support.rest import NAMESPACE, TOPICS, broker_with_rest

SCHEMAS = "/admin/v2/schemas/public/default/t"


def payload(*fields: dict[str, Any], kind: str = "AVRO", **properties: str) -> dict[str, Any]:
    document = {"type": "record", "name": "R", "fields": list(fields)}
    return {"type": kind, "schema": json.dumps(document), "properties": properties}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
STRING = {"type": "STRING", "schema": "", "properties": {}}


async def test_what_is_uploaded_comes_back_by_every_route(tmp_path: Path) -> None:
    """Before the topic exists, too; a producer of the same schema gets its version, though clients
    may register none."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        for path in ("schema", "schema/0", "metadata"):
            await rest("GET", f"{SCHEMAS}/{path}", status=404)
        assert await rest.get(f"{SCHEMAS}/schemas") == {"getSchemaResponses": []}
        await rest("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", False)
        first, second = payload(A, k="v"), payload(A, {**B, "default": 1})
        for version, body in enumerate((first, second)):
            assert await rest("POST", f"{SCHEMAS}/version", body, status=200) == {"version": -1}
            for _ in range(2):
                made = await rest("POST", f"{SCHEMAS}/schema", body, status=200)
                assert made == {"version": {"version": version}}
            answer = await rest("POST", f"{SCHEMAS}/version", body, status=200)
            assert answer == {"version": version}
        found = await rest.get(f"{SCHEMAS}/schema/0")
        assert found.pop("timestamp") > 0
        assert found == {
            "version": 0,
            "type": "AVRO",
            "data": first["schema"],
            "properties": {"k": "v"},
        }
        assert (await rest.get(f"{SCHEMAS}/schema"))["version"] == 1
        listed = (await rest.get(f"{SCHEMAS}/schemas"))["getSchemaResponses"]
        assert [one["version"] for one in listed] == [0, 1]
        assert (await rest.get(f"{SCHEMAS}/metadata"))["info"]["version"] == 1
        schema = api.Schema(name="s", type=api.Schema.Avro, schema_data=first["schema"].encode())
        assert (await peer.produce(schema=schema)).schema_version == version_bytes(0)


async def test_what_does_not_fit_is_409_and_what_is_none_422(tmp_path: Path) -> None:
    """The question answers what the upload would."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await rest("POST", f"{SCHEMAS}/schema", payload(A), status=200)
        await rest("PUT", f"{TOPICS}/t/schemaCompatibilityStrategy", "BACKWARD")
        for body, fits in ((payload(), True), (payload(A, B), False), (STRING, False)):
            answer = await rest("POST", f"{SCHEMAS}/compatibility", body, status=202)
            assert answer == {"compatibility": fits, "schemaCompatibilityStrategy": "BACKWARD"}
            if not fits:
                refused = await rest("POST", f"{SCHEMAS}/schema", body, status=409)
                assert refused["reason"].startswith(
                    "Incompatible schema: exists schema type AVRO, new schema type STRING"
                    if body is STRING
                    else "Error during schema compatibility check with strategy BACKWARD: "
                )
        await rest("POST", f"{SCHEMAS}/schema", payload(), status=200)
        for path in ("schema", "compatibility", "version"):
            for body, status in (
                ({"type": "AVRO", "schema": "{"}, 422),
                ({"type": "KEY_VALUE", "schema": "[]"}, 422),
                ({"type": "FANCY", "schema": ""}, 400),
                ({"type": "AVRO", "schema": {}}, 400),
                ({"type": "AVRO", "schema": "1", "properties": {"a": [1]}}, 400),
            ):
                await rest("POST", f"{SCHEMAS}/{path}", body, status=status)
        await rest("GET", f"{SCHEMAS}/schema/first", status=400)
        await rest("GET", f"{SCHEMAS}/schema/-1", status=404)
        nowhere = "/admin/v2/schemas/public/nowhere/t/schema"
        await rest("POST", nowhere, STRING, status=404)
        await rest("DELETE", nowhere, status=404)


async def test_a_pair_is_one_object_of_two_definitions(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        value = json.loads(payload(A)["schema"])
        body = {
            "type": "KEY_VALUE",
            "schema": json.dumps({"key": "", "value": value}),
            "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
        }
        await rest("POST", f"{SCHEMAS}/schema", body, status=200)
        found = await rest.get(f"{SCHEMAS}/schema")
        assert json.loads(found["data"]) == {"key": "", "value": value}
        answer = (await peer.ask("get_schema", topic=TOPIC)).get_schema_response
        assert answer.schema.type == SchemaType.KEY_VALUE.value
        assert answer.schema.schema_data[:8] == b"\0" * 4 + len(
            json.dumps(value, separators=(",", ":"))
        ).to_bytes(4, "big")


async def test_a_deletion_lets_anything_follow_and_keeps_what_messages_need(
    tmp_path: Path,
) -> None:
    """Numbers go on; with force they begin again."""
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        await rest("POST", f"{SCHEMAS}/schema", payload(A), status=200)
        assert await rest("DELETE", f"{SCHEMAS}/schema", status=200) == {"version": 1}
        assert await rest("DELETE", f"{SCHEMAS}/schema", status=200) == {"version": 1}
        await rest("GET", f"{SCHEMAS}/schema", status=404)
        await rest("GET", f"{SCHEMAS}/schema/1", status=404)
        assert (await rest.get(f"{SCHEMAS}/schema/0"))["type"] == "AVRO"
        made = await rest("POST", f"{SCHEMAS}/schema", STRING, status=200)
        assert made == {"version": {"version": 2}}
        assert await rest("DELETE", f"{SCHEMAS}/schema?force=true", status=200) == {"version": 2}
        await rest("GET", f"{SCHEMAS}/schema/0", status=404)
        made = await rest("POST", f"{SCHEMAS}/schema", payload(A), status=200)
        assert made == {"version": {"version": 0}}


async def test_deleting_a_topic_deletes_its_schema_unless_requested_otherwise(
    tmp_path: Path,
) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        for suffix, status in (("?deleteSchema=false", 200), ("", 404)):
            await rest("PUT", f"{TOPICS}/t")
            await rest("POST", f"{SCHEMAS}/schema", STRING, status=200)
            await rest("DELETE", f"{TOPICS}/t{suffix}")
            await rest("GET", f"{SCHEMAS}/schema", status=status)
