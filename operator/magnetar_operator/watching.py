"""Watching the API server through kopf.

Owns: which objects are watched, with which server-side filters, and the map from an event to a key. Imports: kopf, resources, names, work_queue.
Invariants: handlers only enqueue keys: no state of ours, no finalizer and no annotation of kopf's ever reaches an object (event handlers alone cause
none); objects that the operator did not make are filtered out by the API server; our own status writes wake nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import kopf

from magnetar_operator import names
from magnetar_operator.models.base import GROUP
from magnetar_operator.resources import CHILDREN, CUSTOM, POD, Resource
from magnetar_operator.work_queue import Key

Enqueue = Callable[[Key], None]
REMEMBERED_MAX = 200_000


class EventFilter:
    """Tells changes that matter from echoes of our own status writes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, ...]] = {}

    def is_news(self, kind: str | None, body: Any) -> bool:
        """Whether a custom resource's event shows anything but a new status."""
        metadata = body["metadata"]
        identity = f"{body['kind']}/{metadata.get('namespace')}/{metadata['name']}"
        if kind == "DELETED":
            self._seen.pop(identity, None)
            return True
        shown = (
            metadata.get("uid"),
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            tuple(sorted(metadata.get("annotations", {}).items())),
            tuple(metadata.get("finalizers", ())),
        )
        if self._seen.get(identity) == shown:
            return False
        if len(self._seen) >= REMEMBERED_MAX:
            self._seen.clear()
        self._seen[identity] = shown
        return True


def key_of_child(body: Any) -> Key | None:
    """Whom a child object belongs to, by its labels."""
    metadata = body["metadata"]
    labels, namespace = metadata.get("labels", {}), metadata.get("namespace", "")
    if names.JOB in labels:
        return Key("DataJob", namespace, labels[names.JOB])
    if names.CLUSTER in labels:
        return Key("BrokerCluster", namespace, labels[names.CLUSTER])
    return None


def watching_registry(enqueue: Enqueue, beat: Callable[[str], None]) -> kopf.OperatorRegistry:
    """Handlers for every watched kind. `enqueue` and `beat` (which gets the sentinel's content) are called in kopf's thread."""
    registry = kopf.OperatorRegistry()
    news = EventFilter()

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    async def custom(type: str | None, body: kopf.Body, **_: Any) -> None:
        if news.is_news(type, body):
            enqueue(Key(str(body["kind"]), str(body["metadata"]["namespace"]), str(body["metadata"]["name"])))

    async def child(body: kopf.Body, **_: Any) -> None:
        if names.SENTINEL in body["metadata"].get("labels", {}):
            beat(str(body.get("data", {}).get("beat", "")))
            return
        key = key_of_child(body)
        if key is not None:
            enqueue(key)

    kopf.on.login(registry=registry, id="login")(login)
    for resource in CUSTOM.values():
        kopf.on.event(GROUP, resource.version, resource.plural, registry=registry, id=resource.plural)(custom)
    for resource in (POD, *CHILDREN):
        kopf.on.event(*_selector(resource), registry=registry, id=resource.plural)(child)
    return registry


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def watching_settings() -> kopf.OperatorSettings:
    """kopf's settings: nothing written, nothing scanned, streams that notice when they are dead."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    for resource in (POD, *CHILDREN):
        settings.watching.label_selectors[_selector(resource)] = names.WATCH_SELECTOR
    return settings


async def watch(registry: kopf.OperatorRegistry, namespaces: Sequence[str], stop: threading.Event) -> None:
    """Deliver events until `stop` is set. Raises what kopf cannot mend (no rights, no API server).

    kopf gets a thread and an event loop of its own: it takes signals and, at its end, cancels every task of the loop that it does not know.
    """

    def run() -> None:
        asyncio.run(
            kopf.operator(
                registry=registry,
                settings=watching_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=tuple(namespaces),
                stop_flag=stop,
            )
        )

    await asyncio.to_thread(run)
