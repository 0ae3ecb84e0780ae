"""What `magnetar status` shows of the custom resources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.conditions import look, problems_of, rows_of
from magnetar.cli.failures import Unreachable
from tests.support.api_server import api_server, kubeconfig

STORAGE = "5e" * 16


def resource(
    kind: str, name: str, *conditions: tuple[str, str, str], **fields: Any
) -> dict[str, Any]:
    entries = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason}!"}
        for kind, status, reason in conditions
    ]
    spec = {} if kind == "BrokerCluster" else {"clusterRef": {"name": "main"}}
    metadata = {"namespace": "shop", "name": name}
    return {
        "kind": kind,
        "metadata": metadata,
        "spec": spec | fields.pop("spec", {}),
        "status": {"conditions": entries, **fields},
    }


class Listed:
    """What an API server lists; may change while it runs."""

    def __init__(self) -> None:
        self.clusters: list[Any] = []
        self.others: list[Any] = []
        self.asked: list[tuple[str, str, Any]] = []

    def answer(self, _method: str, path: str, _body: Any) -> tuple[int, Any]:
        plural = path.rpartition("/")[2]
        others = [item for item in self.others if f"{item['kind'].lower()}s" == plural]
        return 200, {"items": self.clusters if plural == "brokerclusters" else others}


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listed]:
    """An API server that the kubeconfig points to."""
    found = Listed()
    with api_server(found.answer) as (url, found.asked):
        path = kubeconfig(tmp_path / "config", url, east="default", west="default")
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield found


def test_only_what_belongs_to_the_brokers_storage_is_shown(listed: Listed) -> None:
    """A kubeconfig may point anywhere: clusters of other storage, and what refers to them, are
    not ours."""
    main = resource("BrokerCluster", "main", ("Ready", "True", "AsDesired"), storageId=STORAGE)
    stranger = resource(
        "BrokerCluster", "other", ("Degraded", "True", "NodeLost"), storageId="77" * 16
    )
    ours = resource("TopicNamespace", "orders", ("Ready", "True", "AsDesired"))
    theirs = resource("TopicNamespace", "foreign", spec={"clusterRef": {"name": "other"}})
    elsewhere = resource(
        "TopicNamespace", "far", spec={"clusterRef": {"name": "main", "namespace": "another"}}
    )
    listed.clusters, listed.others = [main, stranger], [ours, theirs, elsewhere]
    found, unseen = look("", "", STORAGE)
    assert [(one["kind"], one["name"]) for one in found] == [
        ("BrokerCluster", "main"),
        ("TopicNamespace", "orders"),
    ]
    assert unseen == ""
    assert look("", "", "88" * 16) == ([], "no BrokerCluster of this namespace has this storage")
    paths = [path for _, path, _ in listed.asked]
    assert sum(path.endswith("topicnamespaces") for path in paths) == 1, (
        "of a cluster that is not there nothing more is asked"
    )
    look("shop", "west", STORAGE)
    assert "/namespaces/shop/brokerclusters" in listed.asked[len(paths)][1]


def test_what_cannot_be_seen_is_an_error_only_for_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with api_server(lambda *_: (200, {})) as (url, _):
        closed = url
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", closed, east="shop")))
    found, unseen = look("", "", STORAGE)
    assert found == []
    assert "no answer" in unseen
    with pytest.raises(Unreachable, match="no answer"):
        look("shop", "", STORAGE)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert look("", "", STORAGE) == ([], "this installation cannot ask Kubernetes")


def test_what_is_wrong_is_a_problem_and_what_is_under_way_is_not(listed: Listed) -> None:
    """Degraded counts, Progressing does not; a namespace that is not Ready counts; a job that
    runs does not."""
    scaling = resource(
        "BrokerCluster", "main", ("Available", "True", "AsDesired"), ("Progressing", "True", "ScalingUp"),
        ("Degraded", "False", "AsDesired"), ("Ready", "False", "ScalingUp"), storageId=STORAGE,
    )  # fmt: skip
    others = [
        resource(
            "TransactionCoordinator",
            "tx",
            ("Degraded", "True", "ImageUnavailable"),
            ("Ready", "False", "ImageUnavailable"),
        ),
        resource("TopicNamespace", "a", ("Ready", "True", "AsDesired")),
        resource("TopicNamespace", "b", ("Ready", "True", "AsDesired")),
        resource("TopicNamespace", "c", ("Ready", "False", "Conflict")),
        resource("DataJob", "j", ("Ready", "False", "Running")),
        resource("DataJob", "new"),
    ]
    listed.clusters, listed.others = [scaling], others
    found, _ = look("", "", STORAGE)
    assert problems_of(found) == [
        "TransactionCoordinator shop/tx: ImageUnavailable: ImageUnavailable!",
        "TopicNamespace shop/c: Conflict: Conflict!",
    ]
    rows, left_out = rows_of(found)
    assert [row[:4] for row in rows] == [
        ("BrokerCluster shop/main", "Ready", "False", "ScalingUp"),
        ("TransactionCoordinator shop/tx", "Ready", "False", "ImageUnavailable"),
        ("TopicNamespace shop/c", "Ready", "False", "Conflict"),
        ("DataJob shop/j", "Ready", "False", "Running"),
        ("DataJob shop/new", "Ready", "Unknown", ""),
    ]
    assert left_out == "2 TopicNamespaces Ready"


def test_every_trouble_is_shown(listed: Listed) -> None:
    """The condition names the most serious; the others are not hidden behind it."""
    troubles = [
        {"reason": "EtcdNoQuorum", "message": "one of three", "since": "2026-01-01T00:00:00Z"},
        {
            "reason": "PodCrashing",
            "about": "main-broker-0",
            "message": "exit code 1",
            "since": "2026-01-01T00:00:00Z",
        },
    ]
    conditions = ("Degraded", "True", "EtcdNoQuorum"), ("Ready", "False", "EtcdNoQuorum")
    listed.clusters = [
        resource("BrokerCluster", "main", *conditions, storageId=STORAGE, troubles=troubles)
    ]
    found, _ = look("", "", STORAGE)
    assert problems_of(found) == [
        "BrokerCluster shop/main: EtcdNoQuorum: one of three",
        "BrokerCluster shop/main: PodCrashing: exit code 1",
    ]
    assert [row[1:] for row in rows_of(found)[0]] == [
        ("Ready", "False", "EtcdNoQuorum", "EtcdNoQuorum!"),
        ("Degraded", "True", "PodCrashing", "exit code 1"),
    ]
    unreadable = ("Degraded", "True", "InvalidSpec"), ("Ready", "False", "InvalidSpec")
    listed.clusters = [
        resource("BrokerCluster", "main", *unreadable, storageId=STORAGE, troubles=troubles[1:])
    ]
    assert problems_of(look("", "", STORAGE)[0]) == [
        "BrokerCluster shop/main: InvalidSpec: InvalidSpec!",
        "BrokerCluster shop/main: PodCrashing: exit code 1",
    ]
