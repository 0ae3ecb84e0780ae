"""The program of the S3 server: moto behind a wrapper that makes it atomic and, on request, slow
and unreliable.

Owns: that wrapper and its weather. Imports: the standard library, moto, werkzeug: it runs in the
virtual environment that `server` makes, which holds nothing of ours. Invariants: one request at a
time reaches moto, whose threads know no compare-and-put; what is injected happens before or behind
that. POST /-/weather takes a JSON object: latency_ms; the probabilities lost_answer (carried out,
the connection is closed), conflict (409, not carried out), late (the connection is closed, carried
out late_ms afterwards), throttled (503 SlowDown, not carried out) and broken (500, not carried
out); and split_ms: a conditional put looks for the key, waits that long and then overwrites, as a
store without atomic conditions does. POST /-/counts answers with the requests by method since the
last such request.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import random
import socket
import threading
import time
from collections import Counter
from typing import Any, NoReturn

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>injected</Message></Error>"


class Admission:
    """The WSGI application."""

    def __init__(self, seed: int) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._atomic = threading.Lock()
        self._chance = random.Random(seed)
        self._weather: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/-/weather":
            self._weather = json.loads(body)
            start_response("204 No Content", [])
            return []
        if environ["PATH_INFO"] == "/-/counts":
            counts, self._counts = self._counts, Counter()
            return _answer(start_response, "200 OK", json.dumps(counts), "application/json")
        self._counts[environ["REQUEST_METHOD"]] += 1
        environ["wsgi.input"] = io.BytesIO(body)
        weather = self._weather
        time.sleep(weather.get("latency_ms", 0) / 1000)
        if self._strikes("throttled"):
            return _answer(start_response, "503 Slow Down", ERROR.format("SlowDown"))
        if self._strikes("broken"):
            return _answer(
                start_response, "500 Internal Server Error", ERROR.format("InternalError")
            )
        writes = environ["REQUEST_METHOD"] == "PUT"
        if writes and self._strikes("conflict") and "HTTP_IF_NONE_MATCH" in environ:
            return _answer(
                start_response, "409 Conflict", ERROR.format("ConditionalRequestConflict")
            )
        if weather.get("split_ms") and "HTTP_IF_NONE_MATCH" in environ:
            self._split(environ, weather["split_ms"] / 1000)
        if writes and self._strikes("late"):
            threading.Timer(
                weather.get("late_ms", 50) / 1000, self._carry_out, (environ, _ignore)
            ).start()
            _hang_up(environ)
        answer = self._carry_out(environ, start_response)
        if writes and self._strikes("lost_answer"):
            _hang_up(environ)
        return answer

    def _carry_out(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with self._atomic:
            found = self._moto(environ, start_response)
            try:
                return list(found)
            finally:
                if hasattr(found, "close"):
                    found.close()

    def _split(self, environ: dict[str, Any], pause_s: float) -> None:
        """Decide the condition of a put by a look at the key; the put itself comes later and is
        unconditional if nothing was there."""
        statuses: list[str] = []
        look = {
            **environ,
            "REQUEST_METHOD": "HEAD",
            "CONTENT_LENGTH": "0",
            "wsgi.input": io.BytesIO(),
        }
        look.pop("HTTP_IF_NONE_MATCH")
        self._carry_out(look, lambda status, _headers, _error=None: statuses.append(status))
        time.sleep(pause_s)
        if statuses[0].startswith("404"):
            del environ["HTTP_IF_NONE_MATCH"]

    def _strikes(self, kind: str) -> bool:
        return self._chance.random() < self._weather.get(kind, 0.0)


def _answer(
    start_response: Any, status: str, text: str, kind: str = "application/xml"
) -> list[bytes]:
    body = text.encode()
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _hang_up(environ: dict[str, Any]) -> NoReturn:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("injected")


def _ignore(_status: str, _headers: list[tuple[str, str]], _error: Any = None) -> None:
    """The start of an answer that nobody waits for."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(options.address, options.port, Admission(options.seed), threaded=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
