"""The command line against a standalone server: manifests are applied without Kubernetes, a drain
is refused, scripts read YAML and shells complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from tests.clients.program import ROOT, Program
from tests.support.namespaces import FULL

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("standalone")) as process:
        yield process


@pytest.fixture
def alone(standalone: ServerProcess) -> Program:
    return Program(standalone.http_url, standalone.service_url)


def test_manifests_on_a_standalone_server(alone: Program, tmp_path: Path) -> None:
    """The quickstart is applied, again without a change, then changed; a bad file changes
    nothing and is named with its field."""
    first = alone.json("apply", "-f", "examples/quickstart")
    assert [row["outcome"].partition(" ")[0] for row in first] == [
        "unchanged",
        "created",
        "skipped",
    ]
    again = alone.json("apply", "-f", "examples/quickstart")
    assert [row["outcome"].partition(" ")[0] for row in again] == [
        "unchanged",
        "unchanged",
        "skipped",
    ]
    text = (ROOT / "examples/quickstart/2-namespace.yaml").read_text()
    changed = tmp_path / "namespace.yaml"
    changed.write_text(text.replace("retentionTimeInMinutes: 60", "retentionTimeInMinutes: 61"))
    assert (
        alone.ok("apply", "-f", str(changed))
        == "topicnamespace/demo configured (retention_policies)\n"
    )
    assert (
        alone.json("namespaces", "policies", "get", "public/demo")["retention_policies"][
            "retentionTimeInMinutes"
        ]
        == 61
    )
    changed.write_text(
        f"{text.replace('retentionTimeInMinutes: 60', 'retentionTimeInMinutes: 62')}---\n{text.replace('bundles: 4', 'bundles: 0')}"
    )
    assert "bundles" in alone.refused("apply", "-f", str(changed))
    assert (
        alone.json("namespaces", "policies", "get", "public/demo")["retention_policies"][
            "retentionTimeInMinutes"
        ]
        == 61
    )
    outcomes = {
        row["resource"]: row["outcome"]
        for row in alone.json("apply", "--dry-run", "-f", "examples")
    }
    assert outcomes["datajob/topic-report"] == "valid"
    assert outcomes["configmap/topic-report"].startswith("skipped (only Kubernetes")
    assert "does not exist" in alone.refused("apply", "-f", str(tmp_path / "none.yaml"), code=2)


def test_a_manifest_means_the_same_without_kubernetes(alone: Program, tmp_path: Path) -> None:
    """Every policy, permissions, properties and the tenant; what it does not name stays; owners
    are shown, and nothing has an owner here."""
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1", "kind": "TopicNamespace", "metadata": {"name": "full"},
        "spec": {
            "clusterRef": {"name": "main"}, "tenant": "full", "namespace": "all", "policies": FULL,
            "permissions": {"alice": ["produce"]}, "properties": {"team": "blue"}, "tenantConfig": {"adminRoles": ["root"]},
        },
    }  # fmt: skip
    file = tmp_path / "full.yaml"
    file.write_text(json.dumps(manifest))
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == "created"
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == "unchanged"
    found = alone.json("namespaces", "policies", "get", "full/all")
    assert found["retention_policies"] == FULL["retention_policies"]
    assert found["backlog_quota_map"]["message_age"]["limitTime"] == 86400
    assert found["properties"] == {"team": "blue"}

    alone.ok(
        "namespaces",
        "policies",
        "set",
        "full/all",
        "message_ttl_in_seconds=1",
        "properties={team: red, cost: low}",
        "anti_affinity=g",
    )
    done = "configured (message_ttl_in_seconds, properties.team)"
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == done
    found = alone.json("namespaces", "policies", "get", "full/all")
    assert (found["message_ttl_in_seconds"], found["anti_affinity"]) == (3600, "g")
    assert found["properties"] == {"team": "blue", "cost": "low"}

    assert alone.json("namespaces", "owner", "full/all") == {"owner": "", "owned": []}
    assert alone.ok("namespaces", "owner", "full/all", "--release") == "full/all has no owner\n"
    assert {row["owner"] for row in alone.json("namespaces", "list")} == {""}


def test_a_drain_that_nobody_could_take_is_refused(alone: Program) -> None:
    """A standalone server has nobody to transfer to; the plan says so too."""
    assert "no broker but standalone takes bundles" in alone.refused("drain", "standalone")
    plan = alone.run("drain", "standalone", "--dry-run", "-o", "json")
    assert (plan.returncode, json.loads(plan.stdout)["possible"]) == (1, False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(alone: Program, shell: str) -> None:
    assert "_MAGNETAR_COMPLETE" in alone.ok("completion", shell)


def test_scripts_may_read_yaml_too(alone: Program) -> None:
    assert "healthy: true" in alone.ok("status", "-o", "yaml")
