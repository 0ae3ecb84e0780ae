"""Kubernetes with the rights of the user who runs the command.

Owns: requests to the API server with the user's kubeconfig and context, and mapping its refusals to
ours. Imports: the `kubernetes` package, when a command asks for Kubernetes; kinds, failures.
Invariants: the package reads the kubeconfig with its plugins, certificates and proxies; an absent
object is None, never an error; an installation without the package gets a sentence that says so.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from magnetar.cli.failures import CommandFailed, Refused, Unreachable

if TYPE_CHECKING:
    from magnetar_operator.kube.kinds import Resource

Manifest = dict[str, Any]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Kubernetes namespace; default: the context's.")
]
Context = Annotated[
    str, typer.Option("--context", help="Context of the kubeconfig; default: the current one.")
]

TIMEOUT_S = 60.0
FIELD_MANAGER = "magnetar-cli"
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 400, 403, 404, 409, 422
JSON, MERGE = "application/json", "application/merge-patch+json"
DRY_RUN = {"dryRun": "All", "fieldManager": FIELD_MANAGER}
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API server, the client that knows its credentials, and the context's namespace."""

    server: str
    client: Any
    namespace: str


@dataclass(frozen=True)
class Kubernetes:
    """One user, one context, one namespace ("" = as the kubeconfig says); how long an answer may
    take."""

    namespace: str = ""
    context: str = ""
    timeout_s: float = TIMEOUT_S

    @cached_property
    def _endpoint(self) -> Endpoint:
        """Raises CommandFailed without the package, Unreachable without a usable kubeconfig."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise CommandFailed(
                "this installation cannot ask Kubernetes",
                "pip install 'magnetar[kubernetes]' adds what is missing",
            ) from error
        configuration, path = client.Configuration(), os.environ.get("KUBECONFIG") or None
        configuration.retries = False  # the user decides what to repeat
        try:
            config.load_kube_config(path, self.context or None, configuration)
            contexts, current = config.list_kube_config_contexts(path)
        except (config.ConfigException, OSError, ValueError, TypeError) as error:
            raise Unreachable(
                f"Kubernetes: no usable kubeconfig: {error}", "check --context and KUBECONFIG"
            ) from error
        chosen = next((found for found in contexts if found["name"] == self.context), current)
        namespace = self.namespace or chosen["context"].get("namespace") or "default"
        return Endpoint(configuration.host, client.ApiClient(configuration), namespace)

    def within(self, namespace: str) -> Kubernetes:
        """The same user in another namespace."""
        return replace(self, namespace=namespace)

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> str:
        """The answer's text. Raises CommandFailed, Unreachable, Refused."""
        endpoint = self._endpoint
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*", "Content-Type": content_type}
        headers["User-Agent"] = FIELD_MANAGER
        url = endpoint.server + path + (f"?{urlencode(query)}" if query else "")
        authentication = (headers, None, ("BearerToken",), path, method, body)
        try:
            endpoint.client.update_params_for_auth(*authentication)
            answer = endpoint.client.call_api(
                method, url, headers, body, _request_timeout=self.timeout_s
            )
            text: str = answer.read().decode(errors="replace")
        except (HTTPError, OSError) as error:
            raise Unreachable(
                f"Kubernetes: no answer from {endpoint.server}: {error}",
                "check --context, KUBECONFIG and `kubectl cluster-info`",
            ) from error
        if not 200 <= answer.status < 300:
            raise _refusal(answer.status, method, path, text)
        return text

    def get(self, resource: Resource, name: str) -> Manifest | None:
        """One object. Raises as `request`."""
        try:
            return self._object("GET", self._path(resource, name))
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def list(self, resource: Resource, selector: str = "") -> list[Manifest]:
        """Objects of one kind. Raises as `request`."""
        query = {"labelSelector": selector} if selector else {}
        found = self._object("GET", self._path(resource), query)
        # Items of a list carry neither kind nor version.
        common = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**common, **item} for item in found["items"]]

    def raw(self, path: str) -> str:
        """A GET of any path of the API server. Raises as `request`."""
        return self.request("GET", path)

    def logs(self, pod: str, query: dict[str, Any]) -> str:
        """A container's log. Raises as `request`."""
        from magnetar_operator.kube.kinds import POD

        return self.request("GET", self._path(POD, pod, "log"), query)

    def annotate(self, resource: Resource, observed: Manifest, name: str, value: str) -> None:
        """Set an annotation, or remove it ("" = remove), if the object is still the one that was
        read. Raises as `request`, Refused with CONFLICT if it is not."""
        metadata = observed["metadata"]
        change = {
            "annotations": {name: value or None},
            "resourceVersion": metadata["resourceVersion"],
        }
        path = self._path(resource, metadata["name"])
        query = {"fieldManager": FIELD_MANAGER}
        self.request("PATCH", path, query, {"metadata": change}, MERGE)

    def apply_dry_run(
        self, resource: Resource, live: Manifest | None, manifest: Manifest
    ) -> Manifest:
        """The object as `kubectl apply` of `manifest` would leave it; nothing changes. Raises as
        `request`."""
        if live is None:
            return self._object("POST", self._path(resource), DRY_RUN, manifest)
        applied = live["metadata"].get("annotations", {}).get(LAST_APPLIED, "{}")
        patch = merge_patch(json.loads(applied), manifest)
        path = self._path(resource, live["metadata"]["name"])
        return self._object("PATCH", path, DRY_RUN, patch, MERGE)

    def _object(self, method: str, path: str, *request: Any) -> Manifest:
        found: Manifest = json.loads(self.request(method, path, *request))
        return found

    def _path(self, resource: Resource, name: str = "", subresource: str = "") -> str:
        return resource.path(self.namespace or self._endpoint.namespace, name, subresource)


def merge_patch(applied: Manifest, manifest: Manifest) -> Manifest:
    """What `kubectl apply` sends: all of `manifest`, and null for what the manifest applied last
    had besides."""
    patch: Manifest = {name: None for name in applied if name not in manifest}
    for name, value in manifest.items():
        before = applied.get(name)
        both = isinstance(value, dict) and isinstance(before, dict)
        patch[name] = merge_patch(before, value) if both else value  # type: ignore[arg-type]
    return patch


def _refusal(status: int, method: str, path: str, text: str) -> Refused:
    """The API server's own sentence, as the error that says what to do."""
    try:
        sentence = json.loads(text)["message"]
    except (ValueError, LookupError, TypeError):
        sentence = f"{method} {path}: {status} {text[:300]}"
    remedy = "ask the administrator of Kubernetes for the permission" if status == FORBIDDEN else ""
    return Refused(INVALID if status == BAD_REQUEST else status, f"Kubernetes: {sentence}", remedy)
