"""What `magnetar status` shows of the custom resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.conditions import look, problems_of, rows_of
from magnetar.cli.failures import Unreachable
from magnetar.cli.kubectl import PROGRAM_VARIABLE

STORAGE = "5e" * 16


def resource(
    kind: str, name: str, *conditions: tuple[str, str, str], **fields: Any
) -> dict[str, Any]:
    told = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason}!"}
        for kind, status, reason in conditions
    ]
    spec = {} if kind == "BrokerCluster" else {"clusterRef": {"name": "main"}}
    metadata = {"namespace": "shop", "name": name}
    return {
        "kind": kind,
        "metadata": metadata,
        "spec": spec | fields.pop("spec", {}),
        "status": {"conditions": told, **fields},
    }


def acting(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    clusters: list[Any],
    others: list[Any] = [],  # noqa: B006
) -> Path:
    """Put a program in kubectl's place that lists these; where it writes down what it was asked."""
    program, asked = directory / "kubectl", directory / "asked"
    for name, items in (("clusters", clusters), ("others", others)):
        (directory / name).write_text(json.dumps({"items": items}))
    program.write_text(
        f'#!/bin/sh\necho "$@" >> "{asked}"\ncase "$*" in *brokerclusters*) cat '
        f'"{directory}/clusters";; *) cat "{directory}/others";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))
    return asked


def test_only_what_belongs_to_the_brokers_storage_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    asked = acting(tmp_path, monkeypatch, [main, stranger], [ours, theirs, elsewhere])
    found, unseen = look("", "", STORAGE)
    assert [(one["kind"], one["name"]) for one in found] == [
        ("BrokerCluster", "main"),
        ("TopicNamespace", "orders"),
    ]
    assert unseen == ""
    assert look("", "", "88" * 16) == ([], "no BrokerCluster of this namespace has this storage")
    assert asked.read_text().count("topicnamespaces") == 1, (
        "of a cluster that is not there nothing more is asked"
    )
    look("shop", "west", STORAGE)
    assert "--context west --namespace shop get brokerclusters.magnetar.io" in asked.read_text()


def test_what_cannot_be_seen_is_an_error_only_for_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'Unable to connect to the server: dial tcp' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))
    found, unseen = look("", "", STORAGE)
    assert found == []
    assert "Unable to connect" in unseen
    with pytest.raises(Unreachable, match="Unable to connect"):
        look("shop", "", STORAGE)
    monkeypatch.delenv(PROGRAM_VARIABLE)
    monkeypatch.setenv("PATH", "")
    assert look("", "", STORAGE) == ([], "kubectl was not found")


def test_what_is_wrong_is_a_problem_and_what_is_under_way_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    acting(tmp_path, monkeypatch, [scaling], others)
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


def test_every_trouble_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    acting(
        tmp_path,
        monkeypatch,
        [resource("BrokerCluster", "main", *conditions, storageId=STORAGE, troubles=troubles)],
    )
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
    acting(
        tmp_path,
        monkeypatch,
        [resource("BrokerCluster", "main", *unreadable, storageId=STORAGE, troubles=troubles[1:])],
    )
    assert problems_of(look("", "", STORAGE)[0]) == [
        "BrokerCluster shop/main: InvalidSpec: InvalidSpec!",
        "BrokerCluster shop/main: PodCrashing: exit code 1",
    ]
