"""What all routes share.

Owns: refusals as `{"reason": ..., "remedy": ...}`, redirects to the owner of a topic, names from paths, bodies as
clients send them and their limit. Imports: FastAPI, names, errors. Bare JSON scalars as bodies,
under any content type; 307 to the broker that serves a topic. Invariants: every error leaves as its
declared status with a reason; a success without a body is 204; a body beyond the limit is refused
before it is read, and what was read can be written again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import structlog
from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import ClientDisconnect

from magnetar.errors import (
    BodyTooLarge,
    InvalidRequest,
    InvalidTopicName,
    MagnetarError,
    NotOwner,
)
from magnetar.names import PERSISTENT, NamespaceName, TopicName, check_part
from magnetar.shapes import PROPERTIES, Bean, Shape

log = structlog.get_logger(__name__)

BODY_BYTES_MAX = 1 << 20
BODY_LEVELS_MAX = 64
"""Of nesting: far below what the interpreter's stack holds wherever a stored value is read or
written again."""
TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic:path}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
Domain = Annotated[str, Path(json_schema_extra={"enum": ["persistent", "non-persistent"]})]
COMPRESSED_BYTES_MIN = 1 << 10
"""Smaller answers gain nothing by compression."""
UNCOMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")
"""Messages, too: their producers have compressed what is worth it, and a large one would take
the loop for long."""
IGNORED_SHOWN = 20
"""Fields of a body that the log names."""
NO_CONTENT = 204
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TEMPORARY_REDIRECT = 307


def add_refusals(application: FastAPI) -> None:
    """Have every error leave in the shape that admin clients parse."""
    application.add_exception_handler(MagnetarError, _refuse)
    application.add_exception_handler(RequestValidationError, _refuse_shape)
    application.add_exception_handler(HTTPException, _refuse_route)
    application.add_exception_handler(ClientDisconnect, _leave)
    application.add_exception_handler(Exception, _fail)
    application.add_middleware(
        GZipMiddleware, minimum_size=COMPRESSED_BYTES_MIN, exclude_content_types=UNCOMPRESSED
    )


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, MagnetarError)
    if isinstance(error, NotOwner) and (
        owner := error.http_url_tls if request.url.scheme == "https" else error.http_url
    ):
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope.get("raw_path") or request.url.path.encode()
        return RedirectResponse(
            f"{owner}{path.decode('ascii')}{query}", status_code=TEMPORARY_REDIRECT
        )
    return JSONResponse(_said(error.fault, error.remedy), status_code=error.http_status)


def _said(reason: str, remedy: str) -> dict[str, str]:
    """What admin clients parse and print is `reason` alone, in Pulsar's words where it has any."""
    return {"reason": reason, **({"remedy": remedy} if remedy else {})}


async def _refuse_shape(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return JSONResponse(
        {"reason": f"{place}: {first['msg']} (got {str(first.get('input'))[:80]!r})"},
        status_code=400,
    )


async def _refuse_route(request: Request, error: Exception) -> JSONResponse:
    """A path or a method that no route has."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path} is not offered ({error.detail})"
    return JSONResponse(
        _said(reason, "GET /docs lists what is"),
        status_code=error.status_code,
        headers=error.headers,
    )


async def _leave(_request: Request, _error: Exception) -> Response:
    """The client has left before its body was whole, and does not read this."""
    return Response(status_code=400)


async def _fail(request: Request, error: Exception) -> JSONResponse:
    """An internal error: logged, and answered in the same shape."""
    log.error(
        "rest.failed",
        method=request.method,
        path=request.url.path,
        error=repr(error),
        exc_info=error,
    )
    return JSONResponse(
        _said(f"the broker has made a mistake ({type(error).__name__})", "its log shows more"),
        status_code=500,
    )


@contextmanager
def _naming(kind: str) -> Iterator[None]:
    """Raises InvalidTopicName in Pulsar's words, and then in ours."""
    try:
        yield
    except InvalidTopicName as error:
        raise InvalidTopicName(
            f"{kind.capitalize()} name is not valid", f"{error.fault}: {error.remedy}"
        ) from error


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The topic of a path. Raises InvalidTopicName."""
    with _naming("topic"):
        return TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")


def namespace_name(tenant: str, namespace: str) -> NamespaceName:
    """The namespace of a path. Raises InvalidTopicName."""
    with _naming("namespace"):
        return NamespaceName.parse(f"{tenant}/{namespace}")


def check_named(kind: str, name: str) -> None:
    """Whether a cluster or tenant may have a name. Raises InvalidTopicName."""
    with _naming(kind):
        check_part(kind, name)


async def _topic(domain: Domain, tenant: str, namespace: str, topic: str) -> TopicName:
    return topic_name(domain, tenant, namespace, topic)


async def _persistent_topic(tenant: str, namespace: str, topic: str) -> TopicName:
    return topic_name(PERSISTENT, tenant, namespace, topic)


async def _namespace(tenant: str, namespace: str) -> NamespaceName:
    return namespace_name(tenant, namespace)


Topic = Annotated[TopicName, Depends(_topic)]
PersistentTopic = Annotated[TopicName, Depends(_persistent_topic)]
Namespace = Annotated[NamespaceName, Depends(_namespace)]
"""What the path of a route names."""


def body(what: str, schema: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body with `body_of`: clients send JSON under any
    content type."""
    content = {"application/json": {"schema": dict(schema)}}
    return {"requestBody": {"description": what, "required": required, "content": content}}


async def _read(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """A request's body. Raises BodyTooLarge."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > bytes_max:
            raise BodyTooLarge(
                f"body: more than {bytes_max} bytes are too many; send at most {bytes_max}"
            )
    return bytes(data)


def _json(data: bytes | str) -> Any:
    """A JSON value that can be stored and given back. Raises ValueError, RecursionError."""
    found = json.loads(data)
    _refuse_unwritable(found, BODY_LEVELS_MAX)
    return found


def _refuse_unwritable(value: Any, levels: int) -> None:
    """Raises ValueError for what Python reads and no JSON in UTF-8 holds: NaN, infinities, half
    a surrogate pair; and for deeper nesting."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    elif isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"more than {BODY_LEVELS_MAX} levels of nesting")
        for part in value:
            _refuse_unwritable(part, levels - 1)
            if isinstance(value, dict):
                _refuse_unwritable(value[part], levels - 1)


async def text_of(request: Request) -> str | None:
    """A request's body as a string, in JSON or bare as Java's client sends it; None without one.
    Raises InvalidRequest."""
    try:
        text = (await _read(request)).decode().strip()
        found = _json(text) if text.startswith('"') else text
    except ValueError as error:
        raise InvalidRequest(f"body: it is not text in UTF-8 ({error}); send a name") from error
    return found or None


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """The JSON value of a request's body, None without one. Raises InvalidRequest, BodyTooLarge."""
    data = await _read(request, bytes_max)
    if not data.strip():
        return None
    try:
        return _json(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"body: {data[:80]!r} is not JSON ({error}); send a JSON value"
        ) from error


async def object_or_none(request: Request) -> dict[str, Any] | None:
    """The JSON object of a request's body, None without one. Raises InvalidRequest."""
    found = await body_of(request)
    if found is not None and not isinstance(found, dict):
        raise InvalidRequest(f"body: {str(found)[:80]!r} is not an object; send one in braces")
    return found


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body, empty without one. Raises InvalidRequest."""
    return await object_or_none(request) or {}


async def shaped(request: Request, field: str, shape: Shape) -> Any:
    """The value of a request's body as `shape` reads it, None without one. Fields that are not
    known are ignored, and named in the log. Raises InvalidRequest, BodyTooLarge."""
    found = await body_of(request)
    if isinstance(shape, Bean) and isinstance(found, dict):
        ignored = sorted(shape.unknown(found))
        if ignored:
            log.info("rest.fields_ignored", path=request.url.path, fields=ignored[:IGNORED_SHOWN])
    return shape.read(field, found)


def text_answer(value: str | None) -> Response:
    """`value` without quotes; None as no body, which clients take for "not set"."""
    return Response() if value is None else PlainTextResponse(value)


def strings_of(field: str, found: Any) -> dict[str, str]:
    """An object whose values are strings. Raises InvalidRequest naming the field."""
    return PROPERTIES.read(field, found) or {}
