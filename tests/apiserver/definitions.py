"""Resource definitions that are not those of the operator under test, as a newer release's are not.

Owns: changing one on the API server, and putting it back. Nobody goes on before the API server
answers by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.apiserver.stage import Scene, until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TIMEOUT_S = 120.0


@asynccontextmanager
async def changed_spec(
    scene: Scene,
    kind: str,
    field: str,
    schema: dict[str, Any],
    probe: dict[str, Any],
    shows: Callable[[dict[str, Any]], bool],
) -> AsyncIterator[None]:
    """Concurrently `field` of the spec of `kind` has this schema; `shows` says whether it has, of
    the answer to a spec `probe`."""
    plural = f"{kind.lower()}s"
    path = f"{DEFINITIONS}/{plural}.magnetar.io"
    place = f"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{field}"
    spec = scene.plane.must("GET", path)["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
        "properties"
    ]["spec"]
    before = spec["properties"].get(field)

    def patch(operation: dict[str, Any]) -> None:
        scene.plane.must(
            "PATCH", path, [{"path": place, **operation}], "application/json-patch+json"
        )

    def answer() -> bool:
        manifest = {
            "apiVersion": "magnetar.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": "probe"},
            "spec": probe,
        }
        return shows(scene.plane.request("POST", f"{scene.path(plural)}?dryRun=All", manifest)[1])

    patch({"op": "add", "value": schema})
    try:
        await until("the changed definition is in force", answer, TIMEOUT_S)
        yield
    finally:
        patch({"op": "remove"} if before is None else {"op": "replace", "value": before})
        await until("the former definition is in force again", lambda: not answer(), TIMEOUT_S)
