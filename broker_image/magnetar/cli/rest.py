"""REST requests of the command line.

Owns: one small JSON client. Imports: urllib, errors. Invariant: a refusal is raised with the server's own reason and what to check.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from magnetar.errors import InvalidRequest, MagnetarError, ServiceNotReady

TIMEOUT_S = 30
CONFLICT = 409


class AlreadyThere(MagnetarError):
    """The server answered 409: what was to be created exists."""

    http_status = CONFLICT


def request(method: str, url: str, body: Any = None) -> Any:
    """Send one request; the decoded JSON answer, or None if it has no body. Raises MagnetarError."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"http-url: {url!r} is not valid; write http://host:port")
    data = None if body is None else json.dumps(body).encode()
    prepared = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(prepared, timeout=TIMEOUT_S) as response:
            text = response.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            reason = json.loads(text)["reason"]
        except (ValueError, KeyError, TypeError):
            reason = text[:500]
        kind = AlreadyThere if error.code == CONFLICT else InvalidRequest
        raise kind(f"{method} {url}: {error.code} {reason}") from error
    except urllib.error.URLError as error:
        raise ServiceNotReady(f"{url}: no answer ({error.reason}); is the server running, and is --http-url right?") from error
