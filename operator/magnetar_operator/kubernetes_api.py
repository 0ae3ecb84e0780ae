"""The Kubernetes API as the operator uses it.

Owns: requests, their deadlines and metrics, the mapping of answers to errors, the leader's gate before every write.
Imports: kubernetes.aio, resources, refusals, metrics.
Invariants: every write asks `may_write` right before it is sent and has a deadline shorter than what the Lease leaves after that; deletes carry the
uid and resourceVersion that the decision was made on; applies use one field manager.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from magnetar.clock import Clock
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.refusals import ApiConflict, ApiUnavailable, KubernetesError, NotLeading, from_status
from magnetar_operator.resources import BY_KIND, EVENT, Resource

READ_TIMEOUT_S = 15.0
WRITE_TIMEOUT_S = 3.0
PAGE_OBJECTS = 500
CONNECTIONS_MAX = 32
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


async def connect() -> ApiClient:
    """A client with the pod's account, or with the kubeconfig. Raises KubernetesError if there is neither."""
    configuration = Configuration()
    try:
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException:
            await load_kube_config(config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration)
    except ConfigException as error:
        raise KubernetesError(f"neither a pod's service account nor a kubeconfig was found ({error}); set KUBECONFIG") from error
    configuration.connection_pool_maxsize = CONNECTIONS_MAX
    return ApiClient(configuration)


class KubernetesApi:
    """Typed access to any kind of object, as plain manifests."""

    def __init__(self, client: Any, clock: Clock, metrics: OperatorMetrics, may_write: Callable[[], bool]) -> None:
        self._client, self._clock, self._metrics, self._may_write = client, clock, metrics, may_write

    # --- reads -----------------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """The object, or None. Raises KubernetesError."""
        return await self._request("GET", resource.path(namespace, name), absent_is_none=True)

    async def list(self, resource: Resource, namespace: str, selector: str = "") -> list[Manifest]:
        """All objects with these labels; namespace "" = all namespaces. Raises KubernetesError."""
        found: list[Manifest] = []
        continuation = ""
        while True:
            query = f"?limit={PAGE_OBJECTS}"
            query += f"&labelSelector={quote(selector)}" if selector else ""
            query += f"&continue={quote(continuation)}" if continuation else ""
            answer = await self._request("GET", resource.path(namespace) + query)
            assert answer is not None
            # Items of a list carry neither kind nor version.
            found += [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer["items"]]
            continuation = answer["metadata"].get("continue", "")
            if not continuation:
                return found

    async def discover(self, path: str) -> Manifest | None:
        """A discovery document, or None if the API has none there."""
        return await self._request("GET", path, absent_is_none=True)

    # --- writes ----------------------------------------------------------------------------------------------------------------

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Server-side apply: we get the fields we name, also those that somebody else took. Raises KubernetesError."""
        metadata = manifest["metadata"]
        path = BY_KIND[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)
        query = f"?fieldManager={names.FIELD_MANAGER}&force=true"
        answer = await self._request("PATCH", path + query, manifest, APPLY)
        assert answer is not None
        return answer

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest | None:
        """The object as created, or None if it existed already. Raises KubernetesError."""
        path = resource.path(manifest["metadata"]["namespace"])
        try:
            return await self._request("POST", f"{path}?fieldManager={names.FIELD_MANAGER}", manifest)
        except ApiConflict as error:
            if "AlreadyExists" in str(error) or "already exists" in str(error):
                return None
            raise

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Write the object if its resourceVersion is still that of `manifest`. Raises ApiConflict, KubernetesError."""
        metadata = manifest["metadata"]
        answer = await self._request("PUT", resource.path(metadata["namespace"], metadata["name"]), manifest)
        assert answer is not None
        return answer

    async def set_finalizers(self, observed: Manifest, finalizers: Sequence[str]) -> None:
        """Replace the object's finalizers if it has not changed since it was read. Raises ApiConflict, KubernetesError."""
        metadata = observed["metadata"]
        body = {"metadata": {"finalizers": [*finalizers], "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}}
        path = BY_KIND[observed["kind"]].path(metadata["namespace"], metadata["name"])
        await self._request("PATCH", f"{path}?fieldManager={names.FIELD_MANAGER}", body, MERGE, absent_is_none=True)

    async def delete(self, observed: Manifest, grace_s: int | None = None) -> bool:
        """Delete exactly the object that was read; False if it has changed or is gone. Raises KubernetesError."""
        metadata = observed["metadata"]
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        path = BY_KIND[observed["kind"]].path(metadata["namespace"], metadata["name"])
        try:
            return await self._request("DELETE", path, body, absent_is_none=True) is not None
        except ApiConflict:
            return False

    async def post_event(self, manifest: Manifest) -> None:
        """Create an Event. Raises KubernetesError."""
        await self._request("POST", EVENT.path(manifest["metadata"]["namespace"]), manifest)

    # --- transport -------------------------------------------------------------------------------------------------------------

    async def _request(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        content_type: str = "application/json",
        *,
        absent_is_none: bool = False,
    ) -> Manifest | None:
        writes = method != "GET"
        if writes and not self._may_write():
            raise NotLeading(f"{method} {path}: this process does not lead")
        started = self._clock.monotonic()
        status, text, retry_after_s = await self._exchange(
            method, path, body, content_type, WRITE_TIMEOUT_S if writes else READ_TIMEOUT_S
        )
        self._metrics.request(method, status, self._clock.monotonic() - started)
        if status == 404 and absent_is_none:
            return None
        answer = _document(text)
        if not 200 <= status < 300:
            raise from_status(status, f"{method} {path.partition('?')[0]}: {status} {_reason(answer, text)}", retry_after_s)
        return answer

    async def _exchange(
        self, method: str, path: str, body: Manifest | None, content_type: str, timeout_s: float
    ) -> tuple[int, str, float]:
        """Status, body and Retry-After in seconds. Raises ApiUnavailable if no answer came."""
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": names.FIELD_MANAGER}
        try:
            async with asyncio.timeout(timeout_s):
                request = await self._client.param_serialize(method, "", header_params=headers, auth_settings=["BearerToken"])
                url = request[1] + path
                answer = await self._client.call_api(method, url, request[2], body=body, _request_timeout=timeout_s)
                text = (await answer.read()).decode(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._metrics.request(method, 0, timeout_s)
            raise ApiUnavailable(f"{method} {path.partition('?')[0]}: no answer: {error!r}") from error
        after = answer.headers.get("Retry-After", "0")
        return int(answer.status), text, float(after) if after.isdigit() else 0.0


def _document(text: str) -> Manifest:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _reason(answer: Manifest, text: str) -> str:
    """The API server's own sentence."""
    message = answer.get("message") or text[:300]
    return f"{answer.get('reason', '')}: {message}".removeprefix(": ")
