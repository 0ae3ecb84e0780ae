"""Everybody asks at once, right after an owner was killed.

Ten thousand clients' worth of look-ups: `CONNECTIONS` real connections (so that the file
descriptors of one test process suffice), each with `LOOKUPS_EACH` LOOKUPs under way at the same
time, as a client library or a proxy with many topics sends them, spread over the two brokers that
are left. They are sent while the dead owner is still registered. Proved: every one is answered with
a broker that lives (or, where a busy machine ends the registration late, with the one that is
registered, after a lease and a second at the earliest), none is refused, no connection is closed,
and the brokers' memory stays bounded. Printed: how long answers took after the kill.

Bundles: MAGNETAR_STORM_BUNDLES (default 64).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from itertools import count

import pytest

from dev.testbed.cluster import LEASE_S, PATIENCE_S, Cluster, request, wait_for
from magnetar.broker.bundles.liveness import GRACE_S
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import HEADER_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

BUNDLES = int(os.environ.get("MAGNETAR_STORM_BUNDLES", "64"))
CONNECTIONS, LOOKUPS_EACH = 250, 40
TOPICS = 500
NAMESPACE = "public/storm"
SETTLE_S = 0.5
"""Brokers that have just sent a client to the victim may do so again for a moment."""
MEMORY_BYTES_MAX = 200 << 20
"""What 5 000 buffered requests may cost one broker, generously: they are a task and a future
each."""
Type = api.BaseCommand.Type


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("storm")) as running:
        yield running


def _create_namespace(cluster: Cluster) -> None:
    url = f"{cluster.brokers[cluster.entry].http_url}/admin/v2/namespaces/{NAMESPACE}"
    status, answer = request("PUT", url, body={"bundles": {"numBundles": BUNDLES}})
    assert status == 204, answer


class Asker:
    """One connection that asks for many topics at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.answers: dict[int, api.CommandLookupTopicResponse] = {}
        self.answered_at: dict[int, float] = {}

    @staticmethod
    async def connect(port: int) -> Asker:
        asker = Asker(*await asyncio.open_connection("127.0.0.1", port))
        asker._writer.write(requests.connect("storm", 21))
        assert (await asker._command()).type == Type.CONNECTED
        return asker

    async def _command(self) -> api.BaseCommand:
        header = await self._reader.readexactly(HEADER_BYTES)
        total, size = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")
        return api.BaseCommand.FromString((await self._reader.readexactly(total - 4))[:size])

    async def ask(self, topics: list[str]) -> None:
        """Send all LOOKUPs, then read until each has its answer; a connection that the broker
        closes raises IncompleteReadError."""
        for number, topic in enumerate(topics):
            self._writer.write(requests.lookup(number, topic, authoritative=False))
        while len(self.answers) < len(topics):
            command = await self._command()
            if command.type == Type.PING:
                self._writer.write(commands.PONG)
                continue
            assert command.type == Type.LOOKUP_RESPONSE, command
            answer = command.lookup_response
            self.answers[answer.request_id], self.answered_at[answer.request_id] = (
                answer,
                time.monotonic(),
            )

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_ten_thousand_lookups_after_a_kill_are_answered(cluster: Cluster) -> None:
    """Sent while the dead owner's lease still runs: buffered, and answered with a live owner; none
    is refused, no connection is dropped."""
    _create_namespace(cluster)
    names = [f"persistent://{NAMESPACE}/t-{number}" for number in range(TOPICS)]
    victim, *left = cluster.brokers

    async def scenario() -> None:
        ports = [cluster.brokers[name].broker_port for name in left]
        first = await Asker.connect(ports[0])
        await first.ask(names)  # every bundle has an owner
        await first.close()
        askers = await asyncio.gather(
            *(Asker.connect(ports[number % len(ports)]) for number in range(CONNECTIONS))
        )
        before = {name: cluster.brokers[name].resident_bytes() for name in left}
        await asyncio.to_thread(
            wait_for, "the victim owns bundles", lambda: bool(cluster.owned_by(victim))
        )
        await asyncio.sleep(SETTLE_S)
        cluster.brokers[victim].kill()
        killed, turn = time.monotonic(), count()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(
                *(
                    asker.ask([names[next(turn) % TOPICS] for _ in range(LOOKUPS_EACH)])
                    for asker in askers
                )
            )
        seconds = time.monotonic() - killed
        grown = {name: cluster.brokers[name].resident_bytes() - before[name] for name in left}
        answers = [answer for asker in askers for answer in asker.answers.values()]
        assert len(answers) == CONNECTIONS * LOOKUPS_EACH
        refused = [
            answer
            for answer in answers
            if answer.response != api.CommandLookupTopicResponse.Connect
        ]
        assert not refused, refused[:3]
        live = {cluster.brokers[name].service_url for name in left}
        dead = [
            asker.answered_at[number] - killed
            for asker in askers
            for number, answer in asker.answers.items()
            if answer.brokerServiceUrl not in live
        ]
        print(
            f"  {len(answers)} look-ups answered {seconds:.2f} s after the kill (lease {LEASE_S} "
            f"s), {len(dead)} of them with the dead"
        )
        print(
            f"  memory grown by {', '.join(f'{size >> 20} MiB' for size in grown.values())}",
            flush=True,
        )
        assert all(after >= LEASE_S + GRACE_S for after in dead), (
            "nobody is sent to a broker that is silent, unless it stays registered for longer"
        )
        assert all(size < MEMORY_BYTES_MAX for size in grown.values()), grown
        await asyncio.gather(*(asker.close() for asker in askers))

    await scenario()
