"""The Kubernetes API as the operator uses it.

Owns: requests, their deadlines and metrics, the mapping of answers to errors, the leader's gate
before every write. Imports: connection, resources, kube.errors, metrics. Invariants: every write
asks `may_write` right before it is sent and has a deadline shorter than what the Lease leaves after
that; deletes carry the uid and resourceVersion that the decision was made on; applies use one field
manager; a pause that the API server asks for holds for all requests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from magnetar.clock import Clock
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine import passes
from magnetar_operator.kube.connection import Answer, Connection, connect
from magnetar_operator.kube.errors import ApiConflict, ApiUnavailable, NotLeading, from_status
from magnetar_operator.kube.kinds import BY_KIND, EVENT, Resource
from magnetar_operator.metrics import OperatorMetrics

__all__ = ["WRITE_TIMEOUT_S", "KubernetesApi", "Page", "connect"]

READ_TIMEOUT_S = 15.0
WRITE_TIMEOUT_S = 1.5
PAGE_OBJECTS = 500
PAUSING = (429, 503)
PAUSE_MAX_S = 30.0
"""A longer pause is cut to this."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and the version that the whole list was read at."""

    version: str
    items: list[Manifest]


class KubernetesApi:
    """Typed access to any kind of object, as plain manifests."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        metrics: OperatorMetrics,
        may_write: Callable[[], bool],
        written: Callable[[Manifest], None] | None = None,
    ) -> None:
        """`written` gets every object as the API server answers our own writes with it."""
        self._connection, self._clock, self._metrics, self._may_write = (
            connection,
            clock,
            metrics,
            may_write,
        )
        self._written = written
        self._pause_until = 0.0

    # --- reads ------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """The object, or None. Raises KubernetesError."""
        return await self._request("GET", resource.path(namespace, name), absent_is_none=True)

    async def list(self, resource: Resource, namespace: str, selector: str = "") -> list[Manifest]:
        """All objects with these labels; namespace "" = all namespaces. Raises KubernetesError."""
        return [
            item async for page in self.pages(resource, namespace, selector) for item in page.items
        ]

    async def pages(
        self, resource: Resource, namespace: str, selector: str = "", objects: int = PAGE_OBJECTS
    ) -> AsyncIterator[Page]:
        """The same in pages of that many objects, all of one version. Raises KubernetesError."""
        continuation = ""
        while True:
            query = f"?limit={objects}"
            query += f"&labelSelector={quote(selector)}" if selector else ""
            query += f"&continue={quote(continuation)}" if continuation else ""
            answer = await self._request("GET", resource.path(namespace) + query)
            assert answer is not None
            # Items of a list carry neither kind nor version.
            common = {"apiVersion": resource.api_version, "kind": resource.kind}
            yield Page(
                answer["metadata"].get("resourceVersion", ""),
                [{**common, **item} for item in answer["items"]],
            )
            continuation = answer["metadata"].get("continue", "")
            if not continuation:
                return

    async def discover(self, path: str) -> Manifest | None:
        """A discovery document, or None if the API has none there."""
        return await self._request("GET", path, absent_is_none=True)

    # --- writes -----------------------------------------------------------------------------------

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Server-side apply: we get the fields we name, also those of another manager.
        Raises KubernetesError."""
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
            return await self._request(
                "POST", f"{path}?fieldManager={names.FIELD_MANAGER}", manifest
            )
        except ApiConflict as error:
            if "AlreadyExists" in str(error) or "already exists" in str(error):
                return None
            raise

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Write the object if its resourceVersion is still that of `manifest`. Raises
        ApiConflict, KubernetesError."""
        metadata = manifest["metadata"]
        answer = await self._request(
            "PUT", resource.path(metadata["namespace"], metadata["name"]), manifest
        )
        assert answer is not None
        return answer

    async def scale(self, observed: Manifest, replicas: int) -> None:
        """Write `spec.replicas` through `/scale` if the object has not changed since it was
        read. Raises ApiConflict, KubernetesError."""
        metadata = observed["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"replicas": replicas},
        }
        path = BY_KIND[observed["kind"]].path(metadata["namespace"], metadata["name"], "scale")
        await self._request("PATCH", f"{path}?fieldManager={names.FIELD_MANAGER}", body, MERGE)

    async def set_finalizers(self, observed: Manifest, finalizers: Sequence[str]) -> None:
        """Replace the object's finalizers if it has not changed since it was read. Raises
        ApiConflict, KubernetesError."""
        metadata = observed["metadata"]
        body = {
            "metadata": {
                "finalizers": [*finalizers],
                "resourceVersion": metadata["resourceVersion"],
                "uid": metadata["uid"],
            }
        }
        path = BY_KIND[observed["kind"]].path(metadata["namespace"], metadata["name"])
        await self._request(
            "PATCH", f"{path}?fieldManager={names.FIELD_MANAGER}", body, MERGE, absent_is_none=True
        )

    async def delete(self, observed: Manifest, grace_s: int | None = None) -> bool:
        """Delete exactly the object that was read; False if it has changed or is gone. Raises
        KubernetesError."""
        metadata = observed["metadata"]
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
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

    # --- transport --------------------------------------------------------------------------------

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
        self._obey_pause(method, path)
        if writes:
            passes.count_effect()
        timeout_s = READ_TIMEOUT_S
        if writes:
            timeout_s = WRITE_TIMEOUT_S
            # The API server gives up then too, so that a write that it sat on does not happen after
            # our time.
            path += f"{'&' if '?' in path else '?'}timeout={int(WRITE_TIMEOUT_S * 1000)}ms"
        started = self._clock.monotonic()
        try:
            answer = await self._connection.exchange(method, path, body, content_type, timeout_s)
        except ApiUnavailable:
            self._metrics.request(method, 0, self._clock.monotonic() - started)
            raise
        self._metrics.request(method, answer.status, self._clock.monotonic() - started)
        if answer.retry_after_s and answer.status in PAUSING:
            self._pause_until = self._clock.monotonic() + min(answer.retry_after_s, PAUSE_MAX_S)
        if answer.status == 404 and absent_is_none:
            return None
        document = _document(answer.body)
        if not 200 <= answer.status < 300:
            text = f"{method} {path.partition('?')[0]}: {answer.status} {_reason(document, answer)}"
            causes = [
                cause.get("reason", "")
                for cause in (document.get("details") or {}).get("causes") or ()
            ]
            raise from_status(answer.status, text, answer.retry_after_s, causes)
        if writes and self._written is not None and "uid" in document.get("metadata", {}):
            self._written(document)
        return document

    def _obey_pause(self, method: str, path: str) -> None:
        """Send nothing while the API server has asked for a pause. Raises ApiUnavailable."""
        left_s = self._pause_until - self._clock.monotonic()
        if left_s > 0:
            self._metrics.rate_limiter_seconds.labels(method).observe(left_s)
            text = (
                f"{method} {path.partition('?')[0]}: not sent: the API server has asked for a "
                f"pause of {left_s:.1f} s more"
            )
            raise ApiUnavailable(text, 0, left_s)


def _document(body: bytes) -> Manifest:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _reason(document: Manifest, answer: Answer) -> str:
    """The API server's own sentence."""
    message = document.get("message") or answer.body[:300].decode(errors="replace")
    return f"{document.get('reason', '')}: {message}".removeprefix(": ")
