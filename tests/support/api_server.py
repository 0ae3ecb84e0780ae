"""An API server for one test: answers requests from a table and remembers them.

Owns: the listener and the kubeconfig that points to it. Imports: the standard library.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

Answers = Callable[..., tuple[int, Any]]
"""Method, path with query, body (and the Authorization, if asked for) -> status and document, or
text."""


@contextmanager
def api_server(
    answers: Answers, *, with_token: bool = False
) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Its URL, and all requests so far."""
    asked: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.command, self.path, body))
            token = (self.headers.get("Authorization", ""),) if with_token else ()
            status, found = answers(self.command, self.path, body, *token)
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            with suppress(OSError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kubeconfig(path: Path, url: str, **namespaces: str) -> Path:
    """A kubeconfig of one API server with a context for each namespace; the first is current."""
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        for name, namespace in namespaces.items()
    ]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": contexts[0]["name"],
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t-1"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path
