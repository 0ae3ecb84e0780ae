"""`magnetar apply`: manifests against a server without Kubernetes.

Owns: reading YAML, validating it by `resources` and turning it into REST requests.
Imports: resources, REST client, owned_fields, policy_shapes. Invariants: the same file is
accepted or refused here and on Kubernetes, with the same words; nothing is changed before every
document has been checked; applying twice changes nothing; fields that a manifest does not name are
left alone, and what another resource owns is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from magnetar.cli.failures import Refused, WrongUsage
from magnetar.cli.rest import (
    NOT_FOUND,
    Rest,
    create_namespace,
    create_tenant,
    namespace_path,
    tenant_path,
)
from magnetar.cli.session import Session
from magnetar.job_drivers import SCRIPT
from magnetar.metadata.owned_fields import POLICIES, TENANT, place_of, value_of, with_fields
from magnetar.policy_shapes import canonical

if TYPE_CHECKING:
    from magnetar.resources import BrokerCluster, DataJob, TopicNamespace, TransactionCoordinator

    Resource = BrokerCluster | TransactionCoordinator | DataJob | TopicNamespace

SUFFIXES = (".yaml", ".yml")
STANDALONE = "standalone"


def run_apply(session: Session, path: Path, dry_run: bool) -> None:
    """Apply every document below `path`, in file-name order."""
    from magnetar.resources import parse_manifest

    documents = documents_of(path)
    if not documents:
        raise WrongUsage(
            f"--filename: {path} holds no manifest", "give a .yaml file or a directory of them"
        )
    resources = [
        None if is_script(document) else parse_manifest(document, str(file))
        for file, document in documents
    ]
    rows = []
    for (_, document), resource in zip(documents, resources, strict=True):
        name = f"{document['kind'].lower()}/{document['metadata']['name']}"
        if resource is None:
            outcome = "skipped (only Kubernetes has ConfigMaps: kubectl apply)"
        elif dry_run:
            outcome = "valid"
        else:
            outcome = _apply(session, resource)
        rows.append({"resource": name, "outcome": outcome})
    session.screen.show(
        rows,
        lambda: session.screen.line(
            "\n".join(f"{row['resource']} {row['outcome']}" for row in rows)
        ),
    )


def is_script(document: dict[str, Any]) -> bool:
    """Whether it is a ConfigMap, which has the script of a DataJob beside it."""
    return (document.get("apiVersion"), document.get("kind")) == ("v1", "ConfigMap") and bool(
        isinstance(document.get("metadata"), dict) and document["metadata"].get("name")
    )


def documents_of(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Every document of a file or directory, in file-name order, each with its file. Raises
    WrongUsage."""
    return [(file, document) for file in _files(path) for document in _documents(file)]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise WrongUsage(
            f"--filename: {path} does not exist", "give a .yaml file or a directory of them"
        )
    return (
        sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if path.is_dir()
        else [path]
    )


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        return [document for document in yaml.safe_load_all(file.read_text()) if document]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"{file} is not YAML ({' '.join(str(error).split())})", "correct the file"
        ) from error


def _apply(session: Session, resource: Resource) -> str:
    from magnetar.resources import DataJob, TopicNamespace, TransactionCoordinator

    if isinstance(resource, TransactionCoordinator):
        return (
            "skipped (coordinators are pods that only Kubernetes makes: kubectl apply; a "
            "standalone server has transactions without it)"
        )
    if isinstance(resource, TopicNamespace):
        return _apply_namespace(session.rest, resource)
    if isinstance(resource, DataJob):
        return _run_job(session, resource)
    if _is_standalone(session.rest.get("/magnetar/v1/status")):
        return _outcome_alone(resource)
    return "skipped (brokers are pods that only Kubernetes makes: kubectl apply)"


def _outcome_alone(resource: BrokerCluster) -> str:
    """Nothing of a manifest that lets people in or keeps them out is passed over in silence."""
    options = {
        "spec.auth": ("--security", resource.spec.auth),
        "spec.tls": ("--tls", resource.spec.tls),
    }
    wanted = {field: option for field, (option, value) in options.items() if value is not None}
    if wanted:
        fields, named = " and ".join(wanted), " and ".join(wanted.values())
        return (
            f"unchanged (this server is the cluster; instead of {fields} it has the options "
            f"{named}: docs/security.md)"
        )
    return (
        "unchanged (this server is the cluster; its size is Kubernetes' to change: kubectl apply)"
    )


def _is_standalone(status: dict[str, Any]) -> bool:
    return [row["broker"] for row in status["brokers"]] == [STANDALONE]


def _apply_namespace(rest: Rest, resource: TopicNamespace) -> str:
    path, fields = namespace_path(resource.spec.name), resource.spec.fields()
    of_tenant = _apply_tenant(rest, resource)
    found = _get_or_none(rest, path)
    if found is None:
        bundles = {"numBundles": resource.spec.bundles}
        create_namespace(rest, resource.spec.name, {"bundles": bundles, **with_fields({}, fields)})
        return "created"
    # with the defaults of absent fields, as brokers store them
    formed = {key: canonical(key, value) for key, value in with_fields({}, fields).items()}
    changed = {
        field: value
        for field, value in fields.items()
        if value_of(found, field) != value_of(formed, field)
    }
    if changed:
        wanted = with_fields(found, changed)
        touched = {place_of(field)[0] for field in changed}
        rest.patch(
            f"/magnetar/v1/namespaces/{resource.spec.name}/policies",
            {key: wanted[key] for key in sorted(touched)},
        )
    done = sorted([*(field.removeprefix(POLICIES) for field in changed), *of_tenant])
    return f"configured ({', '.join(done)})" if done else "unchanged"


def _apply_tenant(rest: Rest, resource: TopicNamespace) -> list[str]:
    """Give the tenant the configuration that the manifest names, if it names one; the fields
    changed."""
    wanted = {
        field.removeprefix(TENANT): list(value)
        for field, value in resource.spec.tenant_fields().items()
    }
    if not wanted:
        return []
    path = tenant_path(resource.spec.tenant)
    found = _get_or_none(rest, path)
    if found is None:
        create_tenant(rest, resource.spec.tenant, wanted)
    elif any(found[key] != value for key, value in wanted.items()):
        rest.post(path, {**found, **wanted})
    return [
        f"{TENANT}{key}" for key, value in wanted.items() if found is None or found[key] != value
    ]


def _get_or_none(rest: Rest, path: str) -> dict[str, Any] | None:
    try:
        return cast(dict[str, Any], rest.get(path))
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _run_job(session: Session, resource: DataJob) -> str:
    """Run a job here and now, with a local Spark."""
    from magnetar.cli.local_jobs import driven

    status = session.rest.get("/magnetar/v1/status")
    if not _is_standalone(status):
        return "skipped (its driver is a pod that only Kubernetes makes: kubectl apply)"
    spec = resource.spec
    if spec.type == SCRIPT:
        return "skipped (the script is in a ConfigMap, which only Kubernetes has: kubectl apply)"
    run = str(spec.run_request or "once")
    place = [
        "--broker-url", session.rest.urls[0],
        "--volume", status["volume"], "--job", f"default/{resource.metadata.name}", "--run", run,
    ]  # fmt: skip
    done = driven(spec.type, [*spec.driver_options(), *place], session)
    return f"completed (run {run}: {_DONE[spec.type].format_map(done)})"


_DONE = {
    "Compaction": "{keys} keys of {messages_in} messages",
    "LoadAnalytics": "advice from {samples} samples",
    "TransactionLogCompaction": "{files} log files, {entries_out} entries",
}
"""What a run of each type did, in the fields of its result."""
