"""The OpenAPI document, and the page that lists every route.

Owns: `/openapi.json`, and `/docs`, made from it. Imports: FastAPI. Why: clusters without access to
the Internet have no use for a page that loads scripts from elsewhere. Invariants: one page without
scripts or outside assets; every route of the document is on it, with what it does and takes; both
are made once, at the first request: they are open to every peer, and take some 50 ms each.
"""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

SHOWN_ABOVE = 2
"""So many values of a part of the path are named by the text of the route."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 "
    "1rem;color:#222;background:#fff}"
    "h2{margin:2rem 0 .5rem;border-bottom:1px solid #ccc}table{border-collapse:collapse;width:100%}"
    "td{padding:.25rem .75rem .25rem 0;vertical-align:top;border-bottom:1px solid "
    "#eee}td:first-child{font-weight:600;width:5rem}"
    "code{font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere}small{color:#666}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td{border-color:#333}small{color:#999}}"
)
METHODS = ("get", "put", "post", "patch", "delete")


def add_docs(application: FastAPI) -> None:
    """Serve the document under `/openapi.json`, and the page under `/docs`."""

    @cache
    def written() -> tuple[bytes, bytes]:
        found = application.openapi()
        return json.dumps(found, separators=(",", ":")).encode(), page(found).encode()

    @application.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        """Return the OpenAPI document."""
        return Response(written()[0], media_type="application/json")

    @application.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Show this page."""
        return HTMLResponse(written()[1])


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                sections.setdefault(operation.get("tags", ["other"])[0], []).append(
                    _row(method, path, operation)
                )
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    body = "".join(
        f"<h2>{escape(tag)}</h2><table>{''.join(rows)}</table>"
        for tag, rows in sorted(sections.items())
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: '
        f"REST</title><style>{STYLE}</style></head><body>"
        f"<h1>{title}: REST</h1><p>Errors are a status and <code>{{&quot;reason&quot;: "
        f"...}}</code>; success without a body is 204. "
        f'For programs: <a href="/openapi.json">/openapi.json</a>.</p>{body}</body></html>'
    )


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    query = [found["name"] for found in operation.get("parameters", ()) if found["in"] == "query"]
    takes = [f"?{name}=" for name in query]
    if "requestBody" in operation:
        takes.append(f"body: {operation['requestBody'].get('description', 'JSON')}")
    takes += [
        f"{found['name']}: {' | '.join(found['schema']['enum'])}"
        for found in operation.get("parameters", ())
        if _is_table(found)
    ]
    said = escape(operation.get("description") or operation.get("summary", ""))
    small = f"<br><small>{escape(', '.join(takes))}</small>" if takes else ""
    return f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td><td>{said}{small}</td></tr>"


def _is_table(parameter: dict[str, Any]) -> bool:
    """Whether a part of the path is one of a list that is worth showing: which policies there
    are."""
    return (
        parameter["in"] == "path" and len(parameter.get("schema", {}).get("enum", ())) > SHOWN_ABOVE
    )
