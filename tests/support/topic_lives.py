"""Incarnations of one broker after one another, for tests of the incarnation of topics: settings
under which all checks are quick, a client, and REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command
from tests.support.brokers import SETTINGS, TOPIC, Node, Peer, Type, open_peer, volume_in
from tests.support.rest import TOPICS, Rest, rest_over

PATH = f"{TOPICS}/t"
QUICK = {
    "topic_check_s": 0.02,
    "retention_check_s": 0.02,
    "expiry_check_s": 0.02,
    "backlog_quota_check_s": 0.02,
    "inactive_check_s": 0.02,
    "trim_grace_s": 0.0,
    "inactive_topic_s": 0.0,
}
PAYLOAD = bytes(1000)


class Life:
    """One incarnation of the broker under test, with its REST and a client."""

    def __init__(self, broker: Broker, rest: Rest, peer: Peer) -> None:
        self.broker, self.rest, self.peer = broker, rest, peer

    def topic(self, name: str = TOPIC) -> TopicHost:
        return self.topics()[name]

    def topics(self) -> dict[str, TopicHost]:
        return {
            name: host
            for owned in self.broker.ownership.owned.values()
            for name, host in owned.topics.items()
        }

    async def publish(self, count: int, start: int = 0) -> list[tuple[int, int]]:
        """Messages of PAYLOAD's size; their positions."""
        return [await self.peer.send(PAYLOAD, start + number) for number in range(count)]

    async def acknowledge(
        self, consumer_id: int, positions: list[tuple[int, int]], *others: int
    ) -> None:
        """Acknowledge, and wait for the confirmation and for commands of `others` types, in any
        order."""
        command = api.BaseCommand(type=Type.ACK)
        command.ack.consumer_id, command.ack.ack_type, command.ack.request_id = (
            consumer_id,
            api.CommandAck.Individual,
            77,
        )
        for ledger, number in positions:
            command.ack.message_id.add(ledgerId=ledger, entryId=number)
        self.peer.write(encode_command(command))
        answers = [await self.peer.answer() for _ in range(1 + len(others))]
        assert sorted(answer.type for answer in answers) == sorted((Type.ACK_RESPONSE, *others))


class Lives:
    """Incarnations of one broker after one another."""

    def __init__(self, directory: Path, store: MemoryStore, node: Node) -> None:
        self._directory, self._store, self._node = directory, store, node

    @asynccontextmanager
    async def one(self, *, crash: bool = False) -> AsyncIterator[Life]:
        """The next incarnation; with `crash` it ends without handing anything over."""
        broker = await self._node.start()
        try:
            async with rest_over(self._directory, broker) as rest, open_peer(broker) as peer:
                await peer.lookup()
                yield Life(broker, rest, peer)
                if crash:
                    broker.fail("crash")
        finally:
            await broker.close()


Script = Callable[[Lives], Coroutine[Any, Any, None]]


def play(directory: Path, script: Script, **settings: Any) -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        async with volume_in(directory) as volume:
            await script(
                Lives(
                    directory,
                    store,
                    Node(store, volume, "broker-0", replace(SETTINGS, **{**QUICK, **settings})),
                )
            )
        await store.close()

    asyncio.run(main())
