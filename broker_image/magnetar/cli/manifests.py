"""`magnetar apply`: manifests against a standalone server.

Owns: reading YAML, validating it with the operator's own models and turning it into REST requests. Imports: the operator's models, REST client.
Invariants: the same file is accepted or refused here and on Kubernetes, with the same words; applying twice changes nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from magnetar.cli.rest import AlreadyThere, request
from magnetar.errors import InvalidRequest

SUFFIXES = (".yaml", ".yml")


def run_apply(path: Path, http_url: str) -> None:
    """Apply every document below `path`, in file-name order."""
    from magnetar_operator.models import parse_manifest

    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
    documents = [(file, document) for file in files for document in yaml.safe_load_all(file.read_text()) if document]
    if not documents:
        raise InvalidRequest(f"filename: {path} holds no manifest; give a .yaml file or a directory of them")
    for file, document in documents:
        manifest = parse_manifest(document, str(file))  # every file is checked before the first one acts
        del manifest
    for _file, document in documents:
        name = f"{document['kind'].lower()}/{document['metadata']['name']}"
        print(f"{name} {_apply(document, http_url)}")


def _apply(document: dict[str, Any], http_url: str) -> str:
    kind, spec = document["kind"], document.get("spec", {})
    if kind == "BrokerCluster":
        return "unchanged (this server is the cluster)"
    if kind == "TopicNamespace":
        body = {"bundles": {"numBundles": spec.get("bundles", 4)}, **spec.get("policies", {})}
        try:
            request("PUT", f"{http_url}/admin/v2/namespaces/{spec['tenant']}/{spec['namespace']}", body)
        except AlreadyThere:
            return "unchanged"
        return "created"
    if kind == "DataJob":
        return _run_job(document, http_url)
    raise InvalidRequest(f"kind: {kind} cannot be applied to a standalone server")


def _run_job(document: dict[str, Any], http_url: str) -> str:
    """Run a job here and now, with a local Spark."""
    status = request("GET", f"{http_url}/magnetar/v1/status")
    name = document["metadata"]["name"]
    run = str(document["spec"].get("runRequest") or "once")
    topic = document["spec"]["compaction"]["topic"]
    command = [
        sys.executable, "-m", "magnetar_jobs.compact", "--topic", topic, "--broker-url", http_url, "--volume", status["volume"],
        "--job", f"default/{name}", "--run", run, "--master", "local[2]",
    ]  # fmt: skip
    result = subprocess.run(command, check=False)
    if result.returncode != 0:
        raise InvalidRequest(f"datajob/{name}: the run failed (exit {result.returncode}); its log is above")
    return f"completed (run {run})"
