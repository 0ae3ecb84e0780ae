"""Random requests against the admin REST of a real broker, through the real application: every
answer is one that the API has, and the broker serves its topics as before.

Requests are made from the application's own routes: names that exist, that could, and that never
may; bodies of the fields that policies have, with values that tend to hit something, and bodies
that are no JSON at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import structlog
from fastapi.routing import APIRoute

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.policy_table import NAMESPACE_POLICIES, TOPIC_POLICIES
from tests.support.brokers import Peer, Type, open_peer, running_broker
from tests.support.namespaces import FULL
from tests.support.rest import Process, rest_over

SEEDS = range(int(os.environ.get("MAGNETAR_FUZZ_EXAMPLES", "150")) // 50)
"""A share for every run; thousands for a hunt."""
REQUESTS = 300
WATCHED = "persistent://public/watched/t"
HOSTILE = [
    "", ".", "..", "a b", "%2e%2e", "x" * 3000, "\x00", "\u202e", "t\n", "?", "*", "{}", "-1",
    "9" * 40, "0x00000000_0xffffffff", "0x0_0x1", "t-partition-0", "t-partition-99999999", "__x",
]  # fmt: skip
NAMES: Mapping[str, list[str]] = {
    "domain": ["persistent", "non-persistent"],
    "tenant": ["public", "fuzz", "pulsar"],
    "namespace": ["default", "fuzz", "system"],
    "topic": ["t", "many", "many-partition-0", "a/b"],
    "subscription": ["s", "s/t"],
    "cluster": ["standalone", "main"],
    "bundle": ["0x00000000_0x40000000", "0x00000000_0x80000000"],
    "number": ["0", "1", "-1"],
    "ledger": ["0", "1"], "entry": ["0", "5"], "key": ["k"], "role": ["r"], "name": ["n"],
}  # fmt: skip
QUERIES = [
    "authoritative", "force", "createLocalTopicOnly", "initialPosition", "messageId", "subName",
    "ledgerId", "entryId", "timestamp", "getPreciseBacklog", "excludePublishers", "applied",
    "splitBundles", "splitAlgorithmName", "unload", "destinationBroker", "numPartitions",
    "updateLocalTopicOnly", "backlogQuotaType", "role", "mode", "bundle", "deleteSchema",
    "partition", "limit", "max", "since", "to", "perPartition", "includeSystemTopic",
]  # fmt: skip
FIELDS = sorted(
    {
        field
        for document in (FULL, *[value for value in FULL.values() if isinstance(value, dict)])
        for field in document
    }
    | {"type", "schema", "properties", "ledgerId", "entryId", "allowedClusters", "adminRoles"}
    | {"boundaries", "numBundles", "bundles", "policies", "enabled", "topicType", "limit", "policy"}
)
SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 1.5, -0.0, 1e300, "", "1", "true", "s",
    "9" * 400, "\x00", "\ud800",
]  # fmt: skip
RAW = [
    b"", b"{", b"nul", b"NaN", b"[1e999]", b"\xff\xfe", b"[" * 5000, b'{"a":' * 3000, b'"\\ud800"',
    b"{}" * 1000,
]  # fmt: skip
DEPTH_MAX = 3


def _endpoints() -> list[tuple[str, str]]:
    """Method and path of every request that the application knows."""
    application = create_application(BrokerAdministration(Process(Path(), None)))
    return sorted(
        (method, route.path)
        for route in application.routes
        if isinstance(route, APIRoute) and not route.path.startswith("/docs")
        for method in route.methods
    )


ENDPOINTS = _endpoints()


class Generator:
    """Requests of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def request(self) -> tuple[str, str, bytes]:
        """Method, target and body."""
        chance = self._chance
        method, template = chance.choice(ENDPOINTS)
        target = re.sub(r"{([^}]+)}", self._name, template)
        if chance.random() < 0.3:
            asked = {chance.choice(QUERIES): chance.choice(SCALARS) for _ in range(3)}
            target += "?" + "&".join(f"{name}={_quoted(text)}" for name, text in asked.items())
        if chance.random() < 0.1:
            return method, target, chance.choice(RAW)
        likely: list[Any] = [*FULL.values(), FULL, {"name": "s"}, 3, True, "s"]
        body = chance.choice(likely) if chance.random() < 0.5 else self._document()
        return method, target, json.dumps(body).encode()

    def _name(self, match: re.Match[str]) -> str:
        """What stands for one parameter of a path."""
        name, _, kind = match[1].partition(":")
        known = NAMES.get(name, ["n", "0", "60"])
        if kind == "namespace_policy":
            known = list(NAMESPACE_POLICIES)
        elif kind == "topic_policy":
            known = list(TOPIC_POLICIES)
        return _quoted(self._chance.choice(known if self._chance.random() < 0.95 else HOSTILE))

    def _document(self, depth: int = 0) -> Any:
        chance = self._chance
        form = chance.randrange(3) if depth < DEPTH_MAX else 0
        if form == 0:
            return chance.choice(SCALARS)
        parts = [self._document(depth + 1) for _ in range(chance.randrange(4))]
        return parts if form == 1 else {chance.choice(FIELDS): part for part in parts}


def _quoted(text: object) -> str:
    return quote(str(text), safe="/", errors="replace")


class World:
    """A broker with a loop of its own, which each example drives for a while."""

    def __init__(self, runner: asyncio.Runner, broker: Broker, directory: Path) -> None:
        self.runner, self.broker, self.directory = runner, broker, directory
        self.failures: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(
            lambda _loop, context: self.failures.append(context)
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One broker for all examples: what one request has left behind, the next one meets."""
    directory: Path = tmp_path_factory.mktemp("fuzz")
    with asyncio.Runner() as runner:
        context = running_broker(directory)
        broker = runner.run(context.__aenter__())
        made = World(runner, broker, directory)
        runner.run(_prepare(made))
        yield made
        runner.run(context.__aexit__(None, None, None))


async def _prepare(world: World) -> None:
    """What most requests are about, and a namespace that none of them names."""
    base = "/admin/v2"
    async with rest_over(world.directory, world.broker) as rest:
        await rest("PUT", f"{base}/namespaces/public/watched")
        await rest("PUT", f"{base}/persistent/public/default/many/partitions", 2)
    async with open_peer(world.broker) as peer:
        for topic in ("persistent://public/default/t", WATCHED):
            await peer.lookup(topic)


async def _play(world: World, asked: Sequence[tuple[str, str, bytes]]) -> None:
    async with rest_over(world.directory, world.broker) as rest:
        for method, target, body in asked:
            headers = {"content-type": "application/json"}
            try:
                async with asyncio.timeout(120):
                    answer = await rest.ask(method, target, content=body, headers=headers)
            except httpx.InvalidURL:
                continue  # no client can send it
            said = (method, target, body, answer.status_code, answer.text[:300])
            assert answer.status_code in (*range(200, 500), 503), said
            if answer.status_code >= 400 and answer.content:
                assert "reason" in answer.json(), said
    async with open_peer(world.broker) as peer:
        await _check_a_neighbour(peer)


async def _check_a_neighbour(peer: Peer) -> None:
    """A topic that no request was about takes a message and gives it out."""
    await peer.lookup(WATCHED)
    await peer.produce(topic=WATCHED)
    assert (await peer.subscribe(topic=WATCHED)).type == Type.SUCCESS
    await peer.send(b"x")
    assert (await peer.ask("unsubscribe", consumer_id=1)).type == Type.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_ends_the_broker_or_goes_without_an_answer(world: World, seed: int) -> None:
    generator = Generator(seed)
    asked = [generator.request() for _ in range(REQUESTS)]
    with structlog.testing.capture_logs() as logged:
        world.runner.run(_play(world, asked))
    assert world.broker.ready
    assert not [line for line in logged if line["log_level"] == "error"], logged
    assert not world.failures, world.failures
    assert not world.broker.metrics.surprises.counts
