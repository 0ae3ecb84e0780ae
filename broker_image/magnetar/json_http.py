"""One HTTP request that waits for its answer, for the command line and for jobs.

Owns: `exchange`. Imports: http.client, ssl. A broker asks its peers on its own event loop
(`broker/administration/peers`). Invariant: a redirect is returned, not followed: the caller knows
whom it may ask.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0


class NoAnswer(Exception):
    """The server does not listen, or the connection broke; `sent`: the request may have taken
    effect."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, whatever its status."""

    status: int
    location: str
    body: bytes


def exchange(
    method: str,
    url: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send `body` as JSON (None: no body). Raises NoAnswer."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=tls)
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
    )
    shown = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    sent = False
    try:
        connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(timeout_s)
        sent = True
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, target, data, shown)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers.get("Location", ""), answer.read())
    except (OSError, http.client.HTTPException) as error:
        reason = (
            getattr(error, "verify_message", None)
            or getattr(error, "strerror", None)
            or str(error)
            or type(error).__name__
        )
        raise NoAnswer(reason, sent) from error
    finally:
        connection.close()
