"""Storage on S3 as pods see it: a location without credentials, credentials by reference, a
template that shows neither."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from magnetar.errors import InvalidRequest
from magnetar.resources import API_VERSION, parse_manifest
from magnetar.storage.volumes.opening import check_location
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.coordinator_set import desired_coordinators
from magnetar_operator.builders.job_pods import driver_pod, executor_pod
from magnetar_operator.builders.message_storage import (
    credentials_digest,
    credentials_of,
    credentials_problem,
    location,
)
from tests.support.samples import DEFAULTS, cluster, coordinators, job

CREDENTIALS: dict[str, Any] = {
    "secretRef": {"name": "keys"},
    "accessKeyId": "id",
    "sessionToken": "token",
}
S3: dict[str, Any] = {
    "bucket": "messages",
    "region": "eu-central-1",
    "endpoint": "http://minio.shop.svc:9000",
    "credentials": CREDENTIALS,
}
SECRET = {
    "data": {
        name: b64encode(value).decode()
        for name, value in {"id": b"AKIA", "AWS_SECRET_ACCESS_KEY": b"hush", "token": b"t"}.items()
    }
}


def of(digest: str = "", **s3: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        identity_of(item): item
        for item in desired(cluster(storage={"s3": {**S3, **s3}}), DEFAULTS, 2, {}, digest)
    }


def test_brokers_get_a_location_that_they_take_and_no_claim() -> None:
    """One that the broker itself accepts; without a prefix two clusters of one bucket do not
    meet."""
    made = of()
    pod = made["StatefulSet", "main-broker"]["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    found = arguments[arguments.index("--volume") + 1]
    assert (
        found == "s3://messages/shop/main?endpoint=http://minio.shop.svc:9000&region=eu-central-1"
    )
    check_location(found)
    assert (
        location(cluster(storage={"s3": {"bucket": "messages", "prefix": "a/b"}}))
        == "s3://messages/a/b"
    )
    assert not [kind for kind, _ in made if kind == "PersistentVolumeClaim"]
    assert "storage" not in {volume["name"] for volume in pod["volumes"]}
    assert "storage" not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


def test_credentials_are_references_and_appear_nowhere() -> None:
    """Not in the settings' ConfigMap, not in arguments, and of their content the template has a
    keyed digest only."""
    resource = cluster(storage={"s3": S3})
    chosen = credentials_of(resource)
    assert chosen is not None
    digest = credentials_digest(resource, chosen, SECRET)
    made = of(digest)
    environment = {
        item["name"]: item
        for item in made["StatefulSet", "main-broker"]["spec"]["template"]["spec"]["containers"][0][
            "env"
        ]
    }
    assert environment["AWS_ACCESS_KEY_ID"]["valueFrom"] == {
        "secretKeyRef": {"name": "keys", "key": "id"}
    }
    assert environment["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "keys", "key": "AWS_SECRET_ACCESS_KEY"}
    }
    assert environment["AWS_SESSION_TOKEN"]["valueFrom"] == {
        "secretKeyRef": {"name": "keys", "key": "token"}
    }
    assert all("value" not in item for name, item in environment.items() if name.startswith("AWS_"))
    text = json.dumps(list(made.values()))
    assert "hush" not in text
    assert SECRET["data"]["AWS_SECRET_ACCESS_KEY"] not in text
    assert digest in text


def test_new_credentials_change_the_template_and_nothing_else_does() -> None:
    """A label on the secret restarts nobody; the same keys in another cluster have another
    digest."""
    resource = cluster(storage={"s3": S3})
    chosen = credentials_of(resource)
    assert chosen is not None
    first = credentials_digest(resource, chosen, SECRET)
    assert first == credentials_digest(
        resource,
        chosen,
        {"data": {**SECRET["data"], "more": "eA=="}, "metadata": {"labels": {"a": "b"}}},
    )
    assert first != credentials_digest(resource, chosen, {"data": {**SECRET["data"], "id": "eA=="}})
    other = resource.model_copy(
        update={"metadata": resource.metadata.model_copy(update={"uid": "u-2"})}
    )
    assert first != credentials_digest(other, chosen, SECRET)
    assert of(first)["StatefulSet", "main-broker"] != of("0" * 16)["StatefulSet", "main-broker"]
    of_coordinators = [
        desired_coordinators(coordinators(), resource, DEFAULTS, 1, {}, digest)[-1]
        for digest in (first, "0" * 16, "")
    ]
    annotations = [
        item["spec"]["template"]["metadata"]["annotations"].get(names.CREDENTIALS_HASH)
        for item in of_coordinators
    ]
    assert annotations == [first, "0" * 16, None], "coordinators write to the same storage"


def job_pods_on_s3(**s3: Any) -> list[dict[str, Any]]:
    """A driver that runs, and its executor; a variable of the job has the name of a credential."""
    template = {"podTemplate": {"env": [{"name": "AWS_ACCESS_KEY_ID", "value": "own"}]}}
    on_s3, resource = (
        cluster(storage={"s3": {**S3, **s3}}),
        job(driver=template, executors=template),
    )
    driver = driver_pod(resource, on_s3, DEFAULTS, "once-01234567", 1)
    driver["metadata"]["uid"], driver["status"] = "d-1", {"phase": "Running", "podIP": "10.1.2.3"}
    return [driver, executor_pod(resource, on_s3, DEFAULTS, driver, 1)]


def test_a_jobs_pods_open_the_bucket_as_brokers_do() -> None:
    """The same location for the driver, which its executors get from it; the cluster's
    credentials by reference, whatever the job adds; no claim."""
    for pod in job_pods_on_s3():
        (container,) = pod["spec"]["containers"]
        last = {item["name"]: item for item in container["env"]}
        assert last["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "keys"
        assert {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} <= last.keys()
        assert "storage" not in {volume["name"] for volume in pod["spec"]["volumes"]}
        assert "storage" not in {mount["name"] for mount in container["volumeMounts"]}
        assert pod["spec"]["serviceAccountName"] == names.SPARK_ACCOUNT
    arguments = job_pods_on_s3()[0]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--volume") + 1] == location(cluster(storage={"s3": S3}))


def test_without_credentials_a_jobs_pods_have_the_identity_that_opens_the_bucket() -> None:
    """The brokers' account, which has no right in Kubernetes; a job on a volume does not get it."""
    assert {pod["spec"]["serviceAccountName"] for pod in job_pods_on_s3(credentials=None)} == {
        names.broker_set("main")
    }


def test_a_pods_own_identity_needs_no_secret() -> None:
    environment = of(credentials=None)["StatefulSet", "main-broker"]["spec"]["template"]["spec"][
        "containers"
    ][0]["env"]
    assert not [item for item in environment if item["name"].startswith("AWS_")]


def test_a_secret_that_will_not_do_is_named_with_what_it_lacks() -> None:
    chosen = credentials_of(cluster(storage={"s3": S3}))
    assert chosen is not None
    assert credentials_problem(chosen, None).startswith(
        "secret keys does not exist; make it with id and AWS_SECRET_ACCESS_KEY and token"
    )
    assert credentials_problem(chosen, {"data": {"id": "eA==", "token": ""}}).startswith(
        "secret keys has no AWS_SECRET_ACCESS_KEY and no token"
    )
    assert credentials_problem(chosen, SECRET) == ""


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ({}, "set exactly one of volumeClaim and s3"),
        ({"volumeClaim": {}, "s3": S3}, "set exactly one of volumeClaim and s3"),
        ({"s3": {"bucket": "Messages"}}, "bucket"),
        ({"s3": {"bucket": "messages", "prefix": "/a"}}, "prefix"),
        ({"s3": {"bucket": "messages", "endpoint": "http://user:secret@minio"}}, "endpoint"),
        ({"s3": {"bucket": "messages", "endpoint": "http://minio/path"}}, "endpoint"),
    ],
)
def test_a_storage_that_cannot_be_meant_is_refused(storage: dict[str, Any], said: str) -> None:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {"storage": storage},
    }
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(manifest)
    assert said in str(refused.value)
