"""What all routes share.

Owns: refusals as `{"reason": ...}`, redirects to the owner of a topic, names from paths, bodies as clients send them.
Imports: FastAPI, names, errors.
Source: facts on protocol 3: bare JSON scalars as bodies, under any content type; 307 to the broker that serves a topic.
Invariants: every error leaves as its declared status with a reason; a success without a body is 204.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from magnetar.errors import InvalidRequest, MagnetarError, NotOwner
from magnetar.names import NamespaceName, TopicName

BODY_BYTES_MAX = 1 << 20
NO_CONTENT = 204
TEMPORARY_REDIRECT = 307


def add_refusals(application: FastAPI) -> None:
    """Have every error leave in the shape that admin clients parse."""
    application.add_exception_handler(MagnetarError, _refuse)
    application.add_exception_handler(RequestValidationError, _refuse_shape)
    application.add_exception_handler(HTTPException, _refuse_route)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, MagnetarError)
    if isinstance(error, NotOwner) and error.http_url:
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope.get("raw_path") or request.url.path.encode()
        return RedirectResponse(f"{error.http_url}{path.decode('ascii')}{query}", status_code=TEMPORARY_REDIRECT)
    return JSONResponse({"reason": str(error)}, status_code=error.http_status)


async def _refuse_shape(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return JSONResponse({"reason": f"{place}: {first['msg']} (got {first.get('input')!r})"}, status_code=400)


async def _refuse_route(request: Request, error: Exception) -> JSONResponse:
    """A path or a method that no route has."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path} is not offered ({error.detail}); GET /docs lists what is"
    return JSONResponse({"reason": reason}, status_code=error.status_code, headers=error.headers)


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The topic of a path. Raises InvalidTopicName."""
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")


def namespace_name(tenant: str, namespace: str) -> NamespaceName:
    """The namespace of a path. Raises InvalidTopicName."""
    return NamespaceName.parse(f"{tenant}/{namespace}")


async def body_of(request: Request) -> Any:
    """The JSON value of a request's body, None without one. Raises InvalidRequest."""
    data = await request.body()
    if len(data) > BODY_BYTES_MAX:
        raise InvalidRequest(f"body: {len(data)} bytes are too many; send at most {BODY_BYTES_MAX}")
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body: {data[:80]!r} is not JSON ({error})") from error


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body, empty without one. Raises InvalidRequest."""
    body = await body_of(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise InvalidRequest(f"body: {body!r} is not an object")
    return body


def answer(value: Any) -> Response:
    """`value` as JSON; None as 204, which clients take for "not set"."""
    return Response(status_code=NO_CONTENT) if value is None else JSONResponse(value)
