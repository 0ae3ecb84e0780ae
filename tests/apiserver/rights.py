"""Rights, as the chart grants them and as the operator uses them.

Owns: reading rules into (group, resource, verb), whether the API server goes by them, reading its
audit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dev.testbed.control_plane import ControlPlane

WHOLE_TIER = pytest.StashKey[bool]()
"""Whether every test of the tier runs in this session."""


class Right(NamedTuple):
    """One verb on one kind of object; `resource` carries its subresource after a slash."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


class Request(NamedTuple):
    """One request of the audit log."""

    right: Right
    namespace: str
    status: int
    path: str

    @property
    def rights(self) -> set[Right]:
        """What it needed: a server-side apply that makes an object is a `patch` in the log, and
        needs `create` as well."""
        made = self.right.verb == "patch" and self.status == 201
        return {self.right, self.right._replace(verb="create")} if made else {self.right}


def granted(rendered: str, account: str) -> set[Right]:
    """What the roles that are bound to `account` allow."""
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    bound = {
        document["roleRef"]["name"]
        for document in documents
        if document["kind"].endswith("RoleBinding") and document["subjects"][0]["name"] == account
    }
    roles = [
        document
        for document in documents
        if document["kind"].endswith("Role") and document["metadata"]["name"] in bound
    ]
    return set(flattened(rule for role in roles for rule in role["rules"]))


def flattened(rules: Iterable[dict[str, Any]]) -> Iterator[Right]:
    """What rules allow, one by one."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb)


def rules_of(plane: ControlPlane, account: str, namespace: str) -> list[dict[str, Any]]:
    """What the API server lets an account do in a namespace, by its own words."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status, answer = plane.request(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, account=account
    )
    assert status == 201, answer
    assert not answer["status"]["incomplete"]
    rules: list[dict[str, Any]] = answer["status"]["resourceRules"]
    return rules


def are_in_force(plane: ControlPlane, rendered: str) -> bool:
    """Whether the API server goes by all roles and bindings of these documents: it sees what was
    written a moment later, each kind on its own."""
    documents = [document for document in yaml.safe_load_all(rendered) if document]

    def place(kind: str, document: dict[str, Any], name: str) -> tuple[str, str, str]:
        namespace = document["metadata"].get("namespace", "") if kind == "Role" else ""
        return kind, namespace, name

    roles = {
        place(document["kind"], document, document["metadata"]["name"]): document["rules"]
        for document in documents
        if document["kind"].endswith("Role")
    }
    return all(
        set(
            flattened(roles[place(binding["roleRef"]["kind"], binding, binding["roleRef"]["name"])])
        )
        <= set(
            flattened(
                rules_of(
                    plane,
                    f"system:serviceaccount:{subject['namespace']}:{subject['name']}",
                    binding["metadata"].get("namespace", "default"),
                )
            )
        )
        for binding in documents
        if binding["kind"].endswith("RoleBinding")
        for subject in binding["subjects"]
    )


UNKNOWN_YET = "cannot find RESTMapping"
"""The API server looks for definitions every half a minute: until then it refuses an owner of a kind
that another test has defined again."""


def requests(audit_log: Path, user: str) -> list[Request]:
    """Every finished request of `user` about objects; discovery is everybody's right."""
    found = []
    with audit_log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                break  # still being written
            event = json.loads(line)
            about = event.get("objectRef")
            if (
                event["user"]["username"] != user
                or about is None
                or event["stage"] not in ("ResponseComplete", "ResponseStarted")
                or UNKNOWN_YET in event["responseStatus"].get("message", "")
            ):
                continue
            resource = about["resource"] + (
                f"/{about['subresource']}" if "subresource" in about else ""
            )
            right = Right(about.get("apiGroup", ""), resource, event["verb"])
            found.append(
                Request(
                    right,
                    about.get("namespace", ""),
                    event["responseStatus"]["code"],
                    event["requestURI"],
                )
            )
    return found
