"""The admin REST as the tests use it.

Owns: `Admin`: one call each for what tests of clients have to set up or look at. Imports: the
standard library. Invariant: a refusal raises RestError with status and reason; an answer without a
body is None.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Protocol
from urllib.parse import quote

TIMEOUT_S = 60.0


class RestError(Exception):
    """The server refused a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class HasRest(Protocol):
    """A server, or a place with one."""

    @property
    def http_url(self) -> str:
        """Where its REST is."""


class Admin:
    """A server's REST; the server may be restarted in between."""

    def __init__(self, server: HasRest) -> None:
        self._server = server

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request below /admin/v2. Raises RestError for a refusal, OSError without an
        answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._server.http_url}/admin/v2/{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RestError(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text else None

    def create_namespace(self, name: str, **policies: Any) -> str:
        """`public/name` with Pulsar's policies of these names."""
        self.call("PUT", f"namespaces/public/{name}", policies)
        return f"public/{name}"

    def topic(self, method: str, topic: str, operation: str = "", body: Any = None) -> Any:
        """An operation on a topic; a short name is one of public/default."""
        domain, _, rest = topic.rpartition("://")
        path = rest if domain else f"public/default/{topic}"
        return self.call(
            method,
            f"{domain or 'persistent'}/{quote(path)}{'/' if operation else ''}{operation}",
            body,
        )
