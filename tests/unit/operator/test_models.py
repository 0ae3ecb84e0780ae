"""The models: descriptions, defaults, drift of the generated files, sentences of refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dev import crds
from magnetar.errors import InvalidRequest
from magnetar_operator.models import API_VERSION, KINDS, parse_manifest
from magnetar_operator.models.definitions import definitions, root_schema

NO_DEFAULT_ON_PURPOSE = {
    "spec.etcd.external.tls",
    # One of two, or the condition of another field.
    "spec.etcd.managed",
    "spec.etcd.external",
    "spec.compaction",
}
NOT_OWNED = "Absent: not owned here."


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(path, schema, required) of every field below."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in schema.get("required", [])
        yield from fields(child, f"{path}.{name}")
        yield from fields(child.get("items", {}), f"{path}.{name}[]")


def test_generated_definitions_match_the_models() -> None:
    """A change of a model without `make crds` fails here."""
    assert crds.differences() == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_field_has_a_description_and_a_default(kind: str) -> None:
    """What has no default is required, or says what its absence means."""
    spec = root_schema(KINDS[kind])["properties"]["spec"]
    for path, schema, required in fields(spec, "spec"):
        assert schema.get("description"), f"{path} has no description"
        if not required and path not in NO_DEFAULT_ON_PURPOSE and not schema["description"].endswith(NOT_OWNED):
            assert "default" in schema, f"{path} has no default"


def test_definitions_are_structural() -> None:
    """No reference, no null type, no title, and no closed object: the API server would refuse the whole definition."""

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            assert "$ref" not in node, path
            assert node.get("type") != "null", path
            assert node.get("additionalProperties") is not False, path
            for key, value in node.items():
                walk(value, f"{path}.{key}")
        elif isinstance(node, list):
            for item in node:
                walk(item, path)

    for name, definition in definitions().items():
        walk(definition["spec"]["versions"][0]["schema"], name)
        assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_typing_error_is_named() -> None:
    """An unknown field is refused with its path and file."""
    wrong = {"apiVersion": API_VERSION, "kind": "BrokerCluster", "metadata": {"name": "main"}, "spec": {"replica": 3}}
    with pytest.raises(InvalidRequest, match=r"cluster\.yaml: BrokerCluster/main: spec\.replica: is not a field of this kind"):
        parse_manifest(wrong, "cluster.yaml")


@pytest.mark.parametrize("document", [{"kind": "Pod", "apiVersion": "v1"}, {"apiVersion": API_VERSION, "kind": "Cluster"}, {}])
def test_foreign_kinds_are_refused_with_those_that_are_known(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="BrokerCluster, TopicNamespace, DataJob"):
        parse_manifest(document)


@pytest.mark.slow
def test_checking_a_manifest_needs_no_kubernetes_library() -> None:
    """`magnetar apply` runs where the operator's extra is not installed."""
    program = (
        "import sys\n"
        "for name in ('kopf', 'kubernetes', 'aiohttp'): sys.modules[name] = None\n"
        "from magnetar_operator.models import parse_manifest"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(str(crds.ROOT / part) for part in ("broker_image", "operator"))}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
