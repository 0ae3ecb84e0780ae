"""Kubernetes as the command line asks it: a refusal becomes two lines and an exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.failures import CommandFailed, Refused, Unreachable, exit_code_of
from magnetar.cli.kubernetes import CONFLICT, LAST_APPLIED, Kubernetes, merge_patch
from magnetar_operator.kube.kinds import BROKER_CLUSTER, POD
from tests.support.api_server import api_server, kubeconfig

CLUSTERS = "/apis/magnetar.io/v1alpha1/namespaces"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_context_and_namespace_choose_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_server(lambda *_: (200, {"items": [{"metadata": {"name": "a"}}]})) as (url, asked):
        path = kubeconfig(tmp_path / "config", url, east="depot", west="market")
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert Kubernetes("shop", "west").list(POD, "a=b") == [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        ]
        Kubernetes("", "west").list(POD)
        Kubernetes().list(POD)
    assert [path for _, path, _ in asked] == [
        "/api/v1/namespaces/shop/pods?labelSelector=a%3Db",
        "/api/v1/namespaces/market/pods",
        "/api/v1/namespaces/depot/pods",
    ]


def test_an_object_that_is_not_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_server(lambda *_: (404, {"message": "not found"})) as (url, _):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, east="x")))
        assert Kubernetes().get(POD, "x") is None


@pytest.mark.parametrize(
    ("answer", "message", "status"),
    [
        (403, "pods is forbidden", 403),
        (422, "The BrokerCluster is invalid: spec.replicas: 500", 422),
        (400, "strict decoding error", 422),
        (500, "something else", 500),
    ],
)
def test_its_refusals_keep_their_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, message: str, status: int
) -> None:
    with api_server(lambda *_: (answer, {"message": message})) as (url, _):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, east="x")))
        with pytest.raises(Refused) as caught:
            Kubernetes().list(POD)
    assert exit_code_of(caught.value) == 1
    assert message in str(caught.value)
    assert caught.value.status == status


def test_no_answer_and_no_kubeconfig_are_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_server(lambda *_: (200, {})) as (url, _):
        closed = url
    path = kubeconfig(tmp_path / "config", closed, east="x")
    monkeypatch.setenv("KUBECONFIG", str(path))
    for kubernetes, message in (
        (Kubernetes(), f"no answer from {closed}"),
        (Kubernetes(context="nowhere"), "no usable kubeconfig"),
    ):
        with pytest.raises(Unreachable, match=message) as caught:
            kubernetes.list(POD)
        assert exit_code_of(caught.value) == 3
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(Unreachable, match="no usable kubeconfig"):
        Kubernetes().list(POD)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(CommandFailed, match="cannot ask Kubernetes") as caught:
        Kubernetes().list(POD)
    assert "magnetar[kubernetes]" in caught.value.remedy


def test_an_annotation_is_written_to_the_version_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(_method: str, _path: str, body: Any) -> tuple[int, Any]:
        same = body["metadata"]["resourceVersion"] == "7"
        return (200, {}) if same else (409, {"message": "the object has been modified"})

    with api_server(answers) as (url, asked):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, east="x")))
        observed: Any = {"metadata": {"name": "main", "resourceVersion": "7"}}
        Kubernetes().annotate(BROKER_CLUSTER, observed, "a", "b")
        Kubernetes().annotate(BROKER_CLUSTER, observed, "a", "")
        observed["metadata"]["resourceVersion"] = "6"
        with pytest.raises(Refused) as caught:
            Kubernetes().annotate(BROKER_CLUSTER, observed, "a", "b")
    assert caught.value.status == CONFLICT
    assert [path for _, path, _ in asked] == [
        f"{CLUSTERS}/x/brokerclusters/main?fieldManager=magnetar-cli"
    ] * 3
    assert [body["metadata"]["annotations"] for _, _, body in asked] == [
        {"a": "b"},
        {"a": None},
        {"a": "b"},
    ]


def test_a_dry_run_sends_what_kubectl_apply_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"metadata": {"name": "main"}, "spec": {"replicas": 2}}
    applied = {"metadata": {"name": "main"}, "spec": {"replicas": 3, "image": "x"}}
    live = {"metadata": {"name": "main", "annotations": {LAST_APPLIED: json.dumps(applied)}}}
    with api_server(lambda *_: (200, {})) as (url, asked):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, east="x")))
        Kubernetes().apply_dry_run(BROKER_CLUSTER, None, manifest)
        Kubernetes().apply_dry_run(BROKER_CLUSTER, live, manifest)
    query = "dryRun=All&fieldManager=magnetar-cli"
    removed = {"metadata": {"name": "main"}, "spec": {"replicas": 2, "image": None}}
    assert asked == [
        ("POST", f"{CLUSTERS}/x/brokerclusters?{query}", manifest),
        ("PATCH", f"{CLUSTERS}/x/brokerclusters/main?{query}", removed),
    ]
    assert merge_patch({"a": {"b": 1}}, {"a": 5}) == {"a": 5}
    assert merge_patch({"a": 5}, {"a": {"b": 1}}) == {"a": {"b": 1}}
