"""The command line's REST client against real listeners: other brokers of a list, redirects,
refusals, answers that never come."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dev.ports import free_port
from magnetar.cli.failures import Refused, Unreachable, WrongUsage
from magnetar.cli.rest import Rest

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """The URL of a server that answers everything by `answer`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65_537)
            if self.raw_requestline and self.parse_request():
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer(self)
            self.close_connection = True

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(status: int, body: object = None, location: str = "") -> Answer:
    """An answer with a JSON body, or none."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n" + (
            f"Location: {location}\r\n" if location else ""
        )
        request.wfile.write(head.encode() + b"\r\n" + text)

    return answer


def hangs_up(request: http.server.BaseHTTPRequestHandler) -> None:
    """Closes after it has read the request."""
    request.wfile.flush()


def dead() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_the_next_broker_is_asked() -> None:
    """Nobody listens at the first, the second is starting, the third answers; 204 is None."""
    with (
        listening(says(503, {"reason": "starting"})) as starting,
        listening(says(200, {"a": 1})) as good,
        listening(says(204)) as empty,
    ):
        assert Rest(f"{dead()},{starting}, {good}").get("/x", {"q": True, "left out": None}) == {
            "a": 1
        }
        assert Rest(empty).put("/x", {"b": 2}) is None
        with pytest.raises(Refused, match="starting"):
            Rest(f"{dead()},{starting}").get("/x")


def test_a_redirect_is_followed_with_its_query() -> None:
    """307 to the owner keeps method and target; an owner that cannot be reached from here is
    said to be just that."""
    seen: list[str] = []

    def owner(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(f"{request.command} {request.path}")
        says(204)(request)

    with (
        listening(owner) as url,
        listening(says(307, location=f"{url}/t/unload?destinationBroker=b")) as other,
    ):
        Rest(other).put("/t/unload", query={"destinationBroker": "b"})
    assert seen == ["PUT /t/unload?destinationBroker=b"]
    with (
        listening(says(307, location=f"{dead()}/t")) as other,
        pytest.raises(Unreachable, match="does not answer from here"),
    ):
        Rest(other).get("/t")


def test_a_change_that_may_have_happened_is_not_repeated_elsewhere() -> None:
    """The connection breaks after the request was read: a GET goes on to the next broker,
    anything else does not."""
    with listening(hangs_up) as broken, listening(says(200, 5)) as good:
        assert Rest(f"{broken},{good}").get("/x") == 5
        with pytest.raises(Unreachable, match="whether POST /x took effect is not known"):
            Rest(f"{broken},{good}").post("/x")


def test_a_refusal_has_the_servers_reason_and_a_remedy() -> None:
    """Its own if it gives one, else what fits the status; text that is not JSON is shown too."""
    with (
        listening(says(404, {"reason": "Topic t not found"})) as url,
        pytest.raises(Refused) as refused,
    ):
        Rest(url).get("/x")
    assert (refused.value.status, str(refused.value)) == (404, "Topic t not found")
    assert "magnetar topics list" in refused.value.remedy
    with (
        listening(says(409, {"reason": "it has clients; close them"})) as url,
        pytest.raises(Refused) as refused,
    ):
        Rest(url).get("/x")
    assert (str(refused.value), refused.value.remedy) == (
        "it has clients; close them",
        "close them",
    )


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "http://h:99999", ","])
def test_a_bad_address_is_wrong_usage(url: str) -> None:
    with pytest.raises(WrongUsage, match="--url"):
        Rest(url)
