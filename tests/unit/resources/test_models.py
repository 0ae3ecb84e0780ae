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
from magnetar.hosting.live_settings import LiveSettings
from magnetar.hosting.settings import BrokerSettings
from magnetar.resources import API_VERSION, KINDS, parse_manifest
from magnetar.resources.broker_config import SETTINGS
from magnetar.resources.data_job import DataJob
from magnetar.resources.definitions import definitions, root_schema
from magnetar_operator.builders.config_map import settings_of
from magnetar_operator.engine.world import as_manifest
from tests.support.samples import cluster

NO_DEFAULT_ON_PURPOSE = {
    "spec.etcd.external.tls",
    "spec.etcd.managed.restore",  # never unasked
    # One of two, or the condition of another field.
    "spec.etcd.managed",
    "spec.storage.volumeClaim",
    "spec.storage.s3",
    "spec.storage.s3.credentials",
    "spec.etcd.external",
    "spec.compaction",
    "spec.compaction.topic",
    "spec.compaction.namespace",
    "spec.loadAnalytics",
    "spec.pySpark",
    "spec.transactionLogCompaction",
    "spec.transactionLogCompaction.topic",
    "spec.transactionLogCompaction.namespace",
    # absent: once; however late; as long as the history, or as it takes
    "spec.schedule",
    "spec.startingDeadlineSeconds",
    "spec.ttlSecondsAfterFinished",
    "spec.deadlineSeconds",
    "spec.retries.startTimeoutSeconds",
    "spec.executors.cpu",  # as many as it has cores
    "spec.tls",
    "spec.auth",
    "spec.auth.users",
    "spec.auth.tokens",
    "spec.auth.tokens.secretKey",
    "spec.auth.tokens.publicKey",
    *(
        f"spec.networkPolicy.{field}[].{part}"
        for field in ("clientsFrom", "restFrom")
        for part in ("podSelector", "namespaceSelector", "ipBlock")
    ),
}
NOT_OWNED = "Absent: not owned here."

SETTING = ("spec.config.", "spec.loadBalancing.")
"""Without a value the broker's own default holds, a newer broker's as well."""


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(path, schema, required) of every field below."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in schema.get("required", [])
        yield from fields(child, f"{path}.{name}")
        yield from fields(child.get("items", {}), f"{path}.{name}[]")


def test_generated_definitions_match_the_models() -> None:
    """A change of a model without `make crds` fails here."""
    assert crds.differences() == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"keep_alife_s": 20}, "did you mean keep_alive_s?"),
        ({"KEEP_ALIVE_S": 20}, "did you mean keep_alive_s?"),
        ({"xyzzy": 1}, "docs/settings.md"),
        ({"drain_timeout_s": 20}, "comes from spec.drainTimeoutSeconds"),
        ({"volume": "/elsewhere"}, "comes from spec.storage"),
        (
            {"keep_alive_s": 0},
            "spec.config.keep_alive_s: Input should be greater than or equal to 1 (got 0)",
        ),
        ({"keep_alive_s": "20"}, "spec.config.keep_alive_s: Input should be a valid number"),
        ({"partitions_max": 1.5}, "spec.config.partitions_max: Input should be a valid integer"),
        (
            {"max_message_bytes": 16 << 20},
            "spec.config.max_message_bytes: Input should be less than or equal to 15728640",
        ),
        ({"log_file_bytes": 1 << 20}, "at least 4 times max_message_bytes"),
    ],
)
def test_a_setting_that_will_not_do_is_refused_with_what_would(
    config: dict[str, Any], said: str
) -> None:
    """Names and values are checked here, so that no broker is restarted only to refuse its
    settings."""
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(
            {
                "apiVersion": API_VERSION,
                "kind": "BrokerCluster",
                "metadata": {"name": "main"},
                "spec": {"config": config},
            }
        )
    assert said in str(refused.value)


def test_every_setting_of_a_broker_can_be_given_and_reaches_it() -> None:
    """At either bound: what the list admits a broker takes, under the same name, when it starts or
    while it runs."""
    for bound in ("minimum", "maximum"):
        given = {setting["name"]: setting[bound] for setting in SETTINGS if not setting["field"]}
        given |= {"max_message_bytes": 1 << 20, "log_file_bytes": 1 << 30}
        wanted = cluster(config=given)
        live = LiveSettings(BrokerSettings.from_environment(settings_of(wanted)))
        assert live.follow(wanted.spec.followed_settings) == {}
        settings = live.now
        assert {name: getattr(settings, name) for name in given} == given


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_field_has_a_description_and_a_default(kind: str) -> None:
    """What has no default is required, or says what its absence means."""
    spec = root_schema(KINDS[kind])["properties"]["spec"]
    for path, schema, required in fields(spec, "spec"):
        assert schema.get("description"), f"{path} has no description"
        if path.startswith(SETTING):
            continue
        if (
            not required
            and path not in NO_DEFAULT_ON_PURPOSE
            and not schema["description"].endswith(NOT_OWNED)
        ):
            assert "default" in schema, f"{path} has no default"


def test_a_status_has_no_field_that_says_nothing() -> None:
    """Neither written by the operator nor filled in by the API server."""
    for kind, model in KINDS.items():
        status = root_schema(model)["properties"]["status"]
        assert not [path for path, schema, _ in fields(status, "status") if "default" in schema], (
            kind
        )
    spec = {
        "clusterRef": {"name": "main"},
        "compaction": {"topic": "persistent://public/default/prices"},
    }
    run = {"run": "once", "state": "Pending", "result": {"keys": "", "topics": "0"}, "message": ""}
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "DataJob",
        "metadata": {"name": "prices"},
        "spec": spec,
    }
    found = parse_manifest(
        {**manifest, "status": {"history": [run], "driverPod": "", "run": "once"}}
    )
    assert isinstance(found, DataJob)
    written = as_manifest(found.status)
    assert written == {
        "observedGeneration": 0,
        "run": "once",
        "attempt": 0,
        "history": [{"run": "once", "state": "Pending", "attempts": 0, "result": {"topics": "0"}}],
        "conditions": [],
    }
    again = parse_manifest({**manifest, "status": written})
    assert isinstance(again, DataJob)
    assert as_manifest(again.status) == written


def test_permissions_are_said_to_be_checked() -> None:
    """Brokers do, since they know who clients are."""
    texts = [
        schema["description"]
        for kind in KINDS.values()
        for _, schema, _ in fields(root_schema(kind)["properties"]["spec"], "spec")
    ]
    mentioning = [text for text in texts if "spec.auth with authorization" in text]
    assert len(mentioning) == 2
    assert not [text for text in texts if "checks no permissions" in text]


def test_definitions_are_structural() -> None:
    """No reference, no null type, no title, and no closed object: the API server would refuse
    the whole definition."""

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
    wrong = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {"replica": 3},
    }
    with pytest.raises(
        InvalidRequest,
        match=r"cluster\.yaml: BrokerCluster/main: spec\.replica: is not a field of this kind",
    ):
        parse_manifest(wrong, "cluster.yaml")


@pytest.mark.parametrize(
    "document",
    [{"kind": "Pod", "apiVersion": "v1"}, {"apiVersion": API_VERSION, "kind": "Cluster"}, {}],
)
def test_foreign_kinds_are_refused_with_those_that_are_known(document: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidRequest, match="BrokerCluster, TransactionCoordinator, TopicNamespace, DataJob"
    ):
        parse_manifest(document)


@pytest.mark.slow
def test_checking_a_manifest_needs_no_kubernetes_library() -> None:
    """`magnetar apply` runs where the operator's extra is not installed."""
    program = (
        "import sys\n"
        "for name in ('kopf', 'kubernetes', 'aiohttp'): sys.modules[name] = None\n"
        "from magnetar.resources import parse_manifest"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(str(crds.ROOT / part) for part in ("broker_image", "operator")),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
