"""The comparison of wanted and observed objects."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.planning import (
    Create,
    Remove,
    Taken,
    Update,
    deferred,
    describe,
    differences,
    plan,
    sealed,
)

OURS = {"app.kubernetes.io/managed-by": "magnetar-operator"}
OWNER = [{"uid": "u-1", "controller": True, "kind": "BrokerCluster", "name": "main"}]


def service(selector: str = "main", **metadata: Any) -> dict[str, Any]:
    base = {"name": "main", "namespace": "shop", "labels": OURS, "ownerReferences": OWNER}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": base | metadata,
        "spec": {"selector": {"c": selector}},
    }


def test_what_is_missing_is_created() -> None:
    (step,) = plan([service()], {}, "u-1")
    assert isinstance(step, Create)


def test_drift_is_distinguished_from_a_new_wish() -> None:
    """The hash says whether it is the wish that changed."""
    drifted = sealed(service())
    drifted["spec"] = {"selector": {"c": "other"}}
    (step,) = plan([service()], {("Service", "main"): drifted}, "u-1")
    assert isinstance(step, Update)
    assert step.drift
    assert describe(step.changes) == "spec.selector.c: 'other' -> 'main'"
    (step,) = plan([service("new")], {("Service", "main"): sealed(service())}, "u-1")
    assert isinstance(step, Update)
    assert not step.drift


def test_a_field_that_is_no_longer_wanted_is_noticed() -> None:
    """Everything wanted is there, and still the object must be applied again: something else has
    to go."""
    before = service()
    before["spec"]["sessionAffinity"] = "ClientIP"
    (step,) = plan([service()], {("Service", "main"): sealed(before)}, "u-1")
    assert isinstance(step, Update)


@pytest.mark.parametrize(
    "change",
    [
        {
            "ownerReferences": [
                {"uid": "other", "controller": True, "kind": "BrokerCluster", "name": "x"}
            ]
        },
        {"ownerReferences": [], "labels": {}},
    ],
)
def test_objects_of_others_are_left_alone(change: dict[str, Any]) -> None:
    (step,) = plan([service()], {("Service", "main"): service(**change)}, "u-1")
    assert isinstance(step, Taken)


def test_only_what_holds_no_data_is_removed() -> None:
    """And only what this very cluster owns."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "x", "labels": OURS, "ownerReferences": OWNER},
    }
    have = {
        ("Service", "main"): service(),
        ("PersistentVolumeClaim", "x"): claim,
        ("Service", "theirs"): service(
            name="theirs", ownerReferences=[{"uid": "other", "controller": True}]
        ),
    }
    (step,) = plan([], have, "u-1")
    assert isinstance(step, Remove)
    assert step.observed["metadata"]["name"] == "main"


@pytest.mark.parametrize(
    ("wanted", "observed", "same"),
    [
        ({"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}, True),
        ({"requests": {"cpu": "0.5"}}, {"requests": {"cpu": "500m"}}, True),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}}, False),
        ({"data": {"a": "1024Mi"}}, {"data": {"a": "1Gi"}}, False),
        (
            {"items": [{"name": "a", "x": 1}]},
            {"items": [{"name": "sidecar"}, {"name": "a", "x": 1, "y": 2}]},
            True,
        ),
        ({"items": [1, 2]}, {"items": [1, 2, 3]}, False),
        ({"labels": {}}, {}, True),
        ({"flag": False}, {}, False),
        ({"flag": 0}, {"flag": 0}, True),
    ],
)
def test_only_real_differences_count(
    wanted: dict[str, Any], observed: dict[str, Any], same: bool
) -> None:
    assert (not list(differences(wanted, observed))) == same


def test_while_new_pods_could_not_start_a_stateful_set_keeps_its_template_and_follows_the_number_of_pods() -> (
    None
):
    """A pod that ends by itself comes back as it was. One that is made first, and those of
    others, are what they should be."""

    def brokers(image: str, replicas: int, name: str = "main-broker") -> dict[str, Any]:
        template = {"spec": {"containers": [{"name": "broker", "image": image}]}}
        return {
            "kind": "StatefulSet",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "template": template},
        }

    missing = [Problem(Reason.TOKEN_KEY_MISSING, "secret tokens does not exist")]
    etcd = brokers("new", 1, "main-etcd")
    have = {
        ("StatefulSet", "main-broker"): brokers("old", 2),
        ("StatefulSet", "main-etcd"): brokers("old", 1, "main-etcd"),
    }
    want = [service(), etcd, brokers("new", 2)]
    assert deferred(want, have, "main-broker", missing) == [service(), etcd]
    assert deferred([brokers("new", 3)], have, "main-broker", missing) == [brokers("old", 3)]
    assert (
        deferred(want, {}, "main-broker", missing)
        == deferred(want, have, "main-broker", [])
        == want
    )
    removed = [
        step
        for step in plan(deferred(want, have, "main-broker", missing), have, "u-1")
        if isinstance(step, Remove)
    ]
    assert removed == [], "what is left out of the plan stays"


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ({"publicKeyFile": "/etc/token.key"}, True),
        ({"secretKeyFile": "/etc/token.key"}, False),
        ({}, True),
    ],
)
def test_while_a_template_is_kept_so_are_its_settings_and_a_document_that_names_other_files(
    tokens: dict[str, str], kept: bool
) -> None:
    """A pod that ends by itself finds what its template was made for; who may do what changes at
    once if it needs no other file."""

    def brokers(image: str) -> dict[str, Any]:
        template = {"spec": {"containers": [{"name": "broker", "image": image}]}}
        return {
            "kind": "StatefulSet",
            "metadata": {"name": "main-broker"},
            "spec": {"replicas": 1, "template": template},
        }

    def config(name: str, text: str) -> dict[str, Any]:
        return {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": text}}

    def all_of(age: str, tokens: dict[str, str]) -> list[dict[str, Any]]:
        document = yaml.safe_dump({"token": tokens, "superUserRoles": [age]}, sort_keys=False)
        return [
            config("main-broker", age),
            config("main-security", document),
            config("main-listeners", age),
            brokers(age),
        ]

    have = {
        (found["kind"], found["metadata"]["name"]): found
        for found in all_of("old", {"secretKeyFile": "/etc/token.key"})
    }
    want = all_of("new", tokens)
    missing = [Problem(Reason.TOKEN_KEY_MISSING, "secret tokens does not exist")]
    settings, document, listeners = deferred(want, have, "main-broker", missing, "main-security")
    assert (settings["data"]["x"], listeners["data"]["x"]) == ("old", "new")
    assert document == (have["ConfigMap", "main-security"] if kept else want[1])
    assert deferred(want, {}, "main-broker", missing, "main-security") == want
