"""REST routes over an admin port in memory: statuses, bodies, and {"reason": ...} for everything
that is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.pages import add_docs
from magnetar.broker.routes.policy_table import NAMESPACE_POLICIES, TOPIC_POLICIES
from magnetar.errors import (
    InvalidRequest,
    NotOwner,
    ServiceNotReady,
    StorageError,
    TopicNotFound,
)
from magnetar.names import NamespaceName, TopicName
from magnetar.rest.answers import BODY_BYTES_MAX
from tests.support.memory_rest import MemoryPort
from tests.support.resources import every_resource
from tests.support.rest import refusal_text

NAMESPACES = "/admin/v2/namespaces"
TOPICS = "/admin/v2/persistent/public/default"


class CurrentPort:
    """The port of the test that runs: one application, which takes a fifth of a second to make,
    serves them all."""

    def __init__(self) -> None:
        self.port = MemoryPort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)


CURRENT = CurrentPort()
APPLICATION = create_application(every_resource(CURRENT))


async def ask(
    port: MemoryPort,
    method: str,
    path: str,
    *,
    json: Any = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """One request through the whole application."""
    CURRENT.port = port

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=APPLICATION)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, json=json, content=content, headers=headers)

    return await run()


@pytest.fixture
def port() -> MemoryPort:
    return MemoryPort()


def refused(answer: httpx.Response, status: int) -> str:
    """What a refusal says; nothing else is in its body."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) in (["reason"], ["reason", "remedy"])
    return refusal_text(body)


async def test_health_follows_the_broker(port: MemoryPort) -> None:
    """Ready says whether clients should come; live says whether the process moves."""
    for path in ("/ready", "/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        assert (
            (await ask(port, "GET", path)).status_code,
            (await ask(port, "GET", path)).text,
        ) == (200, "ok")
    port.is_ready = False
    for path in ("/ready", "/admin/v2/brokers/health?topicVersion=V2", "/admin/v2/brokers/ready"):
        assert (await ask(port, "GET", path)).status_code == 503
    assert (await ask(port, "GET", "/live")).status_code == 200


async def test_metrics_version_clusters_and_status(port: MemoryPort) -> None:
    """Text where tools expect text, JSON where they expect JSON."""
    for path in ("/metrics", "/metrics/"):
        answer = await ask(port, "GET", path)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert answer.content == b"".join([piece async for piece in port.metrics()])
    assert (await ask(port, "GET", "/admin/v2/brokers/version")).text == "1.2.3"
    assert (await ask(port, "GET", "/admin/v2/clusters")).json() == ["standalone"]
    assert (await ask(port, "GET", "/magnetar/v1/status")).json() == {"leader": "broker-0.1"}
    assert (await ask(port, "GET", "/magnetar/v1/damage")).json() == {
        "damage": port.damage(),
        "short_of_space": "",
    }


async def test_a_namespace_is_created_once_and_read_back(port: MemoryPort) -> None:
    """204 without a body, then 409; bundles and policies arrive; without a body the defaults are
    taken."""
    created = await ask(
        port,
        "PUT",
        f"{NAMESPACES}/a/b",
        json={"bundles": {"numBundles": 8}, "message_ttl_in_seconds": 5},
    )
    assert (created.status_code, created.content) == (204, b"")
    assert port.created[NamespaceName("a", "b")] == (8, {"message_ttl_in_seconds": 5})
    assert "already exists" in refused(await ask(port, "PUT", f"{NAMESPACES}/a/b", json={}), 409)
    assert (await ask(port, "PUT", f"{NAMESPACES}/a/c")).status_code == 204
    assert port.created[NamespaceName("a", "c")] == (4, {})
    assert (await ask(port, "GET", f"{NAMESPACES}/a")).json() == ["a/b", "a/c"]
    assert (await ask(port, "GET", f"{NAMESPACES}/a/b")).json() == {
        "bundles": {"numBundles": 8},
        "message_ttl_in_seconds": 5,
    }
    assert "does not exist" in refused(await ask(port, "GET", f"{NAMESPACES}/a/absent"), 404)


NO_BUNDLES: list[tuple[Any, str]] = [
    ({"numBundles": "many"}, "numBundles"),
    ({"numBundles": 4097}, "bundles: 4097 is out of range"),
    ([4], "bundles: "),
    ({"boundaries": "0x00000000"}, "is not a list"),
    ({"boundaries": [0, 4294967295]}, "'0' is not a position"),
    ({"boundaries": ["0x00000000", "0x1ffffffff"]}, "'0x1ffffffff' is not a position"),
    ({"boundaries": ["0x00000000", "0x80000000"]}, "do not span the whole ring"),
    ({"boundaries": ["0x40000000", "0xffffffff"]}, "do not span the whole ring"),
    ({"boundaries": ["0x00000000"]}, "do not span the whole ring"),
    (
        {"boundaries": [*(f"0x{position:08x}" for position in range(4097)), "0xffffffff"]},
        "4097 bundles are too many",
    ),
]


async def test_bundles_that_are_none_are_refused(port: MemoryPort) -> None:
    """400 names the field, whatever is wrong with a number of bundles or with boundaries."""
    for bundles, said in NO_BUNDLES:
        assert said in refused(
            await ask(port, "PUT", f"{NAMESPACES}/a/b", json={"bundles": bundles}), 400
        )
    assert NamespaceName("a", "b") not in port.created


async def test_a_namespace_is_divided_at_the_boundaries_given(port: MemoryPort) -> None:
    """In any order, once each, and whatever number stands beside them: what GET shows of one
    namespace makes another like it."""
    boundaries = ["0x00000000", "0x10000000", "0xffffffff", "0x1", "0x10000000"]
    body = {"bundles": {"boundaries": boundaries, "numBundles": 4}}
    assert (await ask(port, "PUT", f"{NAMESPACES}/a/b", json=body)).status_code == 204
    assert list(port.boundaries) == [0, 1, 0x10000000, 0xFFFFFFFF]
    assert (
        await ask(
            port,
            "PUT",
            f"{NAMESPACES}/a/c",
            json={"bundles": {"boundaries": None, "numBundles": 2}},
        )
    ).status_code == 204
    assert list(port.boundaries) == [0, 0x80000000, 0xFFFFFFFF]


async def test_topics_are_listed_under_both_paths(port: MemoryPort) -> None:
    for path in (f"{NAMESPACES}/public/default/topics", TOPICS):
        assert (await ask(port, "GET", path)).json() == ["persistent://public/default/t"]
    assert "does not exist" in refused(await ask(port, "GET", f"{NAMESPACES}/no/where/topics"), 404)


async def test_a_partitioned_topic_is_created_once(port: MemoryPort) -> None:
    """204, then 409, from which clients conclude that another one was faster."""
    created = await ask(port, "PUT", f"{TOPICS}/many/partitions", json=3)
    assert (created.status_code, created.content) == (204, b"")
    assert "already exists" in refused(
        await ask(port, "PUT", f"{TOPICS}/many/partitions", json=3), 409
    )
    assert (await ask(port, "GET", f"{TOPICS}/many/partitions")).json()["partitions"] == 3
    assert (
        await ask(port, "GET", f"{TOPICS}/single/partitions?checkAllowAutoCreation=true")
    ).json()["partitions"] == 0
    refused(await ask(port, "GET", f"{TOPICS}/single/partitions"), 404)


async def test_lists_are_asked_for_by_kind(port: MemoryPort) -> None:
    """The namespace's list takes a mode; each domain has a list of its own."""
    base, durable, volatile = (
        f"{NAMESPACES}/public/default/topics",
        "persistent://public/default/t",
        "non-persistent://public/default/t",
    )
    assert (
        (await ask(port, "GET", base)).json()
        == (await ask(port, "GET", f"{base}?mode=PERSISTENT")).json()
        == [durable]
    )
    assert (await ask(port, "GET", f"{base}?mode=NON_PERSISTENT")).json() == [volatile]
    assert (await ask(port, "GET", f"{base}?mode=ALL")).json() == [volatile, durable]
    refused(await ask(port, "GET", f"{base}?mode=SOME"), 400)
    assert (await ask(port, "GET", TOPICS)).json() == [durable]
    assert (await ask(port, "GET", "/admin/v2/non-persistent/public/default")).json() == [volatile]


@pytest.mark.parametrize("content", [b"0", b"11", b'"three"', b"null", b"{}", b"", b"{"])
async def test_a_wrong_number_of_partitions_is_refused(port: MemoryPort, content: bytes) -> None:
    """400 with a reason, whatever is wrong with it."""
    answer = await ask(
        port,
        "PUT",
        f"{TOPICS}/many/partitions",
        content=content,
        headers={"content-type": "application/json"},
    )
    assert refused(answer, 400)
    assert not port.partitioned


@pytest.mark.parametrize(
    "local",
    [
        "plain",
        "with space",
        "ümlaut",
        "100%",
        "a%41b",
        "a/b",
        "a+b",
        "q?x",
        "#1",
        "x:y-partition-0",
    ],
)
async def test_topic_names_arrive_as_they_were_written(port: MemoryPort, local: str) -> None:
    """Percent-encoded once by the client, decoded once here."""
    encoded = "".join(f"%{byte:02X}" for byte in local.encode())
    answer = await ask(port, "GET", f"{TOPICS}/{encoded}/stats")
    assert answer.json() == {"topic": f"persistent://public/default/{local}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/persistent/pub%20lic/default/t/stats"),
        ("PUT", f"{NAMESPACES}/a/b%20c"),
        ("PUT", f"{NAMESPACES}/a/b%0A"),
        ("PUT", f"{NAMESPACES}/a/%2E%2E"),
        ("GET", "/admin/v2/persistent/public/default/t%C2%85/stats"),
        ("GET", f"/admin/v2/persistent/public/default/{'t' * 2000}/stats"),
        ("GET", "/lookup/v2/topic/kafka/public/default/t"),
    ],
)
async def test_an_invalid_name_is_412(port: MemoryPort, method: str, path: str) -> None:
    """What Pulsar answers for a name outside its grammar."""
    assert refused(await ask(port, method, path), 412)


async def test_unload_takes_a_destination(port: MemoryPort) -> None:
    topic = TopicName.parse("persistent://public/default/t")
    assert (await ask(port, "PUT", f"{TOPICS}/t/unload")).status_code == 204
    assert (
        await ask(port, "PUT", f"{TOPICS}/t/unload?destinationBroker=broker-1&authoritative=false")
    ).status_code == 204
    assert port.unloaded == [(topic, ""), (topic, "broker-1")]


async def test_roll_and_lookup_answer_with_what_clients_parse(port: MemoryPort) -> None:
    assert (await ask(port, "POST", f"{TOPICS}/t/roll")).json() == {
        "position": {"ledgerId": 7, "entryId": 41}
    }
    await ask(port, "POST", f"{TOPICS}/t/roll?rewrite=false")
    assert port.rolled == [True, False]
    assert (await ask(port, "GET", "/lookup/v2/topic/persistent/public/default/t")).json() == {
        "brokerUrl": "pulsar://host/t"
    }


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (NotOwner("ask http://other"), 503),
        (ServiceNotReady("starting"), 503),
        (StorageError("disk full"), 503),
        (TopicNotFound("no such topic"), 404),
        (InvalidRequest("field: x is not valid"), 400),
    ],
)
async def test_errors_leave_with_their_declared_status_and_their_text(
    port: MemoryPort, failure: Exception, status: int
) -> None:
    port.failure = failure
    for method, path in (
        ("GET", f"{TOPICS}/t/stats"),
        ("PUT", f"{TOPICS}/t/unload"),
        ("POST", f"{TOPICS}/t/roll"),
    ):
        assert refused(await ask(port, method, path), status) == str(failure)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v2/no/such/route/at/all", 404),
        ("GET", "/admin/v2/kafka/public/default/t/stats", 404),
        ("DELETE", f"{TOPICS}/t/stats", 405),
    ],
)
async def test_what_is_not_offered_says_so_in_the_same_shape(
    port: MemoryPort, method: str, path: str, status: int
) -> None:
    """Admin clients parse `reason` for these, too."""
    assert refused(await ask(port, method, path), status)


async def test_the_description_lists_every_route(port: MemoryPort) -> None:
    """OpenAPI is complete enough to generate a client from: every operation says what it does."""
    paths = (await ask(port, "GET", "/openapi.json")).json()["paths"]
    for path in (
        "/ready",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
        "/magnetar/v1/status",
    ):
        assert path in paths
    silent = [
        (method, path)
        for path, methods in paths.items()
        for method, said in methods.items()
        if not said.get("description")
    ]
    assert silent == []


async def test_the_description_names_every_policy(port: MemoryPort) -> None:
    """Programs that generate clients, or attack the routes, learn which there are."""
    paths = (await ask(port, "GET", "/openapi.json")).json()["paths"]
    for path, table in (
        ("/admin/v2/namespaces/{tenant}/{namespace}/{policy}", NAMESPACE_POLICIES),
        ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/{policy}", TOPIC_POLICIES),
    ):
        assert set(paths[path]) == {"get", "put", "post", "delete"}
        for method, described in paths[path].items():
            [named] = [
                found["schema"]["enum"]
                for found in described["parameters"]
                if found["name"] == "policy"
            ]
            assert named == list(table), (method, path)


async def test_the_page_of_routes_needs_nothing_from_elsewhere(port: MemoryPort) -> None:
    """Every route of the description is on it; no script, no style and no font is loaded."""
    page = (await ask(port, "GET", "/docs")).text
    for path in (await ask(port, "GET", "/openapi.json")).json()["paths"]:
        assert f"<code>{path}</code>" in page
    for name in (*NAMESPACE_POLICIES, *TOPIC_POLICIES):
        assert re.search(rf" {name}[ <]", page), name
    assert "<script" not in page
    assert "src=" not in page
    assert re.findall(r'href="([^"]*)"', page) == ["/openapi.json"]


async def test_the_description_of_the_routes_is_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It and its page are open to every peer, and take tens of milliseconds of the event loop to
    write."""
    application = FastAPI(openapi_url=None)
    written: list[str] = []
    monkeypatch.setattr(
        "magnetar.broker.routes.pages.page",
        lambda document: written.append(document["openapi"]) or "page",
    )
    add_docs(application)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application), base_url="http://test"
    ) as client:
        documents = [(await client.get("/openapi.json")).json() for _ in range(3)]
        assert documents == [application.openapi()] * 3
        assert [(await client.get("/docs")).text for _ in range(2)] == ["page"] * 2
    assert len(written) == 1


async def test_answers_are_compressed_for_who_asks(port: MemoryPort) -> None:
    """Java's client does; small answers are not worth it."""
    asked = {"accept-encoding": "gzip"}
    assert (await ask(port, "GET", "/openapi.json", headers=asked)).headers[
        "content-encoding"
    ] == "gzip"
    assert "content-encoding" not in (await ask(port, "GET", "/ready", headers=asked)).headers
    assert (
        "content-encoding"
        not in (
            await ask(port, "GET", "/openapi.json", headers={"accept-encoding": "identity"})
        ).headers
    )


async def test_a_body_beyond_the_limit_is_refused(port: MemoryPort) -> None:
    """413 before all of it is in memory."""
    body = b'{"a": "' + b"x" * BODY_BYTES_MAX + b'"}'
    assert "too many" in refused(await ask(port, "PUT", f"{NAMESPACES}/a/b", content=body), 413)
    assert NamespaceName("a", "b") not in port.created


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v3/functions/public/default", 409),
        ("POST", "/admin/v3/sinks/public/default/s", 409),
        ("GET", "/admin/v2/worker/cluster", 409),
        ("GET", f"{TOPICS}/t/shadowTopics", 405),
        ("GET", "/admin/v2/broker-stats/allocator-stats/default", 405),
    ],
)
async def test_what_is_not_offered_yet_is_refused_by_name(
    port: MemoryPort, method: str, path: str, status: int
) -> None:
    """Tools that ask for it get the status that Pulsar's clients understand, not "no such
    route"."""
    assert "GET /docs lists" not in refused(await ask(port, method, path), status)


async def test_a_mistake_of_ours_is_reported_in_the_same_shape(port: MemoryPort) -> None:
    """500 with a reason: nothing of what went wrong leaves the broker but its kind."""
    CURRENT.port = port
    port.failure = ValueError("secret")

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=APPLICATION, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(f"{TOPICS}/t/stats")

    reason = refused(await run(), 500)
    assert "ValueError" in reason
    assert "secret" not in reason


async def test_a_slash_too_many_redirects_nowhere(port: MemoryPort) -> None:
    """Such a redirect would go to the Host that the peer names, before it is known who asks."""
    answer = await ask(port, "GET", "/admin/v2/clusters/", headers={"host": "elsewhere.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
