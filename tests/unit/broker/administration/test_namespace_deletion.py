"""Namespaces that are deleted while clients use them: all of one goes, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import topic_registry
from magnetar.errors import InUse, NamespaceNotFound, NotAllowed, StoreUnavailable, WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord
from magnetar.metadata.store import Compare, Operation, Put, TxnResult
from magnetar.names import BundleName, NamespaceName, TopicName, initial_boundaries
from tests.support.brokers import CLOCK, Peer, Type, command_frame, open_peer, running_broker
from tests.support.rest import Process

NAME = NamespaceName("public", "b")
TOPICS = [f"persistent://{NAME}/t{number}" for number in range(3)]


class Port(BrokerAdministration):
    """The port, with something done at moments of a deletion that a test chooses."""

    deleted: Callable[[TopicName], Awaitable[None]] | None = None
    checked: Callable[[], Awaitable[None]] | None = None
    listed: Callable[[], Awaitable[None]] | None = None

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        topics, namespaces = self.topics, self.namespaces
        delete_anywhere, check_each = topics.delete_anywhere, topics._check_each
        entered = namespaces._entered

        async def delete_and_go_on(topic: TopicName, force: bool) -> None:
            await delete_anywhere(topic, force)
            if self.deleted is not None:
                await self.deleted(topic)

        async def check_and_go_on(parts: list[TopicName]) -> None:
            await check_each(parts)
            if self.checked is not None:
                await self.checked()

        async def list_and_go_on(name: NamespaceName) -> tuple[int, dict[TopicName, int]]:
            found = await entered(name)
            if self.listed is not None:
                await self.listed()
            return found

        topics.delete_anywhere = delete_and_go_on  # type: ignore[method-assign]
        topics._check_each = check_and_go_on  # type: ignore[method-assign]
        namespaces._entered = list_and_go_on  # type: ignore[method-assign]


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Port, Broker, Peer, MemoryStore]]:
    """A broker, its port, and a client; the namespace is there."""
    store = MemoryStore(CLOCK)
    async with running_broker(directory, store=store) as broker, open_peer(broker) as peer:
        port = Port(Process(directory, broker))
        await port.namespaces.create_namespace(NAME, initial_boundaries(1), {})
        yield port, broker, peer, store
    await store.close()


async def retired(store: MemoryStore) -> None:
    """Wait until no bundle of the namespace is anybody's; what is left of them is for the
    collector."""
    async with asyncio.timeout(120):
        while True:
            items = (await store.range(keys.bundles_in(NAME))).items
            if all(BundleRecord.decode(item.value).state is BundleState.DELETED for item in items):
                break
            await asyncio.sleep(0.01)
    for item in items:
        assert (
            await store.get(keys.manifest(BundleName.parse(item.key.removeprefix(keys.BUNDLES))))
            is None
        )


async def record(store: MemoryStore) -> NamespaceRecord | None:
    item = await store.get(keys.namespace(NAME))
    return NamespaceRecord.decode(item.value) if item is not None else None


async def test_who_comes_back_to_a_namespace_that_is_deleted_creates_nothing_in_it(
    tmp_path: Path,
) -> None:
    """Producers return as soon as their topic is gone and others are left. The broker has them
    wait, and refuses them once nothing is left."""

    async with opened(tmp_path) as (port, _broker, peer, store):
        for number, topic in enumerate(TOPICS):
            await peer.lookup(topic)
            await peer.produce(number, topic)
        await port.topics.create_partitions(TopicName.parse(f"persistent://{NAME}/many"), 2)
        returned = []

        async def come_back(topic: TopicName) -> None:
            if topic.partition < 0:
                await peer.answer(Type.CLOSE_PRODUCER)
                returned.append(
                    await peer.ask("producer", topic=str(topic), producer_id=100 + len(returned))
                )

        port.deleted = come_back
        await port.namespaces.delete_namespace(NAME, force=True)
        assert [answer.type for answer in returned] == [Type.ERROR] * 3
        assert {answer.error.error for answer in returned} == {WireCode.SERVICE_NOT_READY}
        assert all("is being unloaded" in answer.error.message for answer in returned), (
            "what makes the C++ client try again"
        )
        assert await record(store) is None
        assert not (await store.range(keys.partitioned_topics_in(NAME))).items
        await retired(store)
        refused = await peer.ask("producer", topic=TOPICS[0], producer_id=200)
        assert refused.error.error == WireCode.TOPIC_NOT_FOUND
        with pytest.raises(NamespaceNotFound):
            await port.namespaces.delete_namespace(NAME, force=True)


@pytest.mark.parametrize("force", [False, True])
async def test_a_topic_born_while_its_namespace_is_deleted_is_found(
    tmp_path: Path, force: bool
) -> None:
    """At a broker that has not seen the mark, behind the list: it goes by force, and keeps the
    namespace, which is as before, without."""

    async def scenario() -> None:
        async with opened(tmp_path) as (port, broker, peer, store):
            await peer.lookup(TOPICS[0])
            [owned] = [
                found
                for name, found in broker.ownership.owned.items()
                if name.startswith(f"{NAME}/")
            ]
            listed = 0

            async def come() -> None:
                nonlocal listed
                listed += 1
                if listed == (1 if force else 2):  # the first look without force is before the mark
                    found = await record(store)
                    assert found is not None
                    assert found.deleting == broker.incarnation
                    assert await owned.topic(TopicName.parse(TOPICS[0]), create=True) is not None

            port.listed = come
            if force:
                await port.namespaces.delete_namespace(NAME, force)
                assert await record(store) is None
                assert not owned.topics
                return
            with pytest.raises(NotAllowed, match="non empty"):
                await port.namespaces.delete_namespace(NAME, force)
            kept = await record(store)
            assert kept is not None
            assert not kept.deleting
            await peer.produce(1, TOPICS[1])

    await scenario()


async def test_a_mark_goes_when_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused deletion cannot take its mark back, nor can the next look; the one after it
    does. The mark of a deletion that runs stays."""

    async with opened(tmp_path) as (port, broker, peer, store):
        await peer.lookup(TOPICS[0])
        [owned] = [
            found for name, found in broker.ownership.owned.items() if name.startswith(f"{NAME}/")
        ]
        transact, listed, failed = broker.context.store.transact, 0, 0

        async def come() -> None:
            nonlocal listed
            listed += 1
            if listed == 2:
                await broker.deletion_marks.look()
                found = await record(store)
                assert found is not None
                assert found.deleting == broker.incarnation, "its deletion runs"
                assert await owned.topic(TopicName.parse(TOPICS[0]), create=True) is not None

        async def away_twice(
            compares: Sequence[Compare], operations: Sequence[Operation]
        ) -> TxnResult:
            nonlocal failed
            unmarks = any(
                isinstance(found, Put)
                and found.key == keys.namespace(NAME)
                and not NamespaceRecord.decode(found.value).deleting
                for found in operations
            )
            if unmarks and failed < 2:
                failed += 1
                raise StoreUnavailable("the store is unavailable")
            return await transact(compares, operations)

        port.listed = come
        monkeypatch.setattr(broker.context.store, "transact", away_twice)
        with pytest.raises(NotAllowed, match="non empty"):
            await port.namespaces.delete_namespace(NAME, force=False)
        async with asyncio.timeout(120):
            while broker.views.namespaces.items[str(NAME)].record.deleting:
                await asyncio.sleep(0.01)
        assert failed == 2
        await peer.produce(1, TOPICS[1])


async def test_the_mark_of_a_broker_that_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    """Its deletion ended with it: topics come into being again, and the namespace can be
    deleted."""

    async with opened(tmp_path) as (port, broker, peer, store):
        found = await record(store)
        assert found is not None
        revision = await store.put(
            keys.namespace(NAME), replace(found, deleting="broker-9-1").encode()
        )
        await broker.views.namespaces.reach(revision)
        await peer.lookup(TOPICS[0])
        await peer.produce(1, TOPICS[0])
        await port.namespaces.delete_namespace(NAME, force=True)
        assert await record(store) is None


async def test_a_deletion_stops_at_a_partition_that_is_used_since_it_was_checked(
    tmp_path: Path,
) -> None:
    """What was published there concurrently is kept; once nobody uses it any more the topic
    goes."""

    async with opened(tmp_path) as (port, broker, peer, store):
        topic = TopicName.parse(f"persistent://{NAME}/many")
        await port.topics.create_partitions(topic, 2)
        used = topic.with_partition(1)
        await peer.lookup(str(used))
        sent = []

        async def come() -> None:
            await peer.produce(1, str(used))
            sent.append(await peer.send(b"kept"))

        port.checked = come
        with pytest.raises(InUse, match="1 connected producers"):
            await port.topics.delete_partitions(topic, force=False)
        host = await broker.service.open_topic(used, create=False)
        assert [host.core.last_confirmed] == sent
        assert len((await store.range(keys.partitioned_topics_in(NAME))).items) == 2, (
            "the topic's, and that of the partition in use"
        )
        port.checked = None
        await peer.ask("close_producer", producer_id=1)
        await port.topics.delete_partitions(topic, force=False)
        assert not (await store.range(keys.partitioned_topics_in(NAME))).items


async def gone_for_good(port: Port, broker: Broker, peer: Peer, store: MemoryStore) -> None:
    """Nothing is left of the namespace, and a new one of its name has nothing of the old one."""
    assert await record(store) is None
    assert not (await store.range(keys.partitioned_topics_in(NAME))).items
    broker.leader.start()
    await retired(store)
    await port.namespaces.create_namespace(NAME, initial_boundaries(1), {})
    await peer.lookup(TOPICS[1])
    await peer.produce(300, TOPICS[1])
    assert [str(topic) for topic in (await port.namespaces._entered(NAME))[1]] == [TOPICS[1]]
    [owned] = [
        found for name, found in broker.ownership.owned.items() if name.startswith(f"{NAME}/")
    ]
    assert list(owned.topics) == [TOPICS[1]]


def enters(operations: Sequence[Operation]) -> bool:
    """Whether a transaction enters a plain topic."""
    return any(
        isinstance(operation, Put) and operation.key.startswith(keys.TOPICS)
        for operation in operations
    )


@pytest.mark.parametrize("behind", ["barrier", "entry"])
async def test_no_topic_is_born_into_a_namespace_that_is_gone(
    tmp_path: Path, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted while a topic is being created: before that is durable, or before it is
    entered, when a second client uses it already."""

    async with opened(tmp_path) as (port, broker, peer, store), open_peer(broker) as second:
        await peer.lookup(TOPICS[0])
        [owned] = [
            found for name, found in broker.ownership.owned.items() if name.startswith(f"{NAME}/")
        ]
        reached, go_on = asyncio.Event(), asyncio.Event()
        barrier, transact = broker.context.log.barrier, broker.context.store.transact

        async def slow_barrier() -> None:
            reached.set()
            await go_on.wait()
            await barrier()

        async def slow_entry(
            compares: Sequence[Compare], operations: Sequence[Operation]
        ) -> TxnResult:
            if enters(operations):
                reached.set()
                await go_on.wait()
            return await transact(compares, operations)

        if behind == "barrier":
            monkeypatch.setattr(broker.context.log, "barrier", slow_barrier)
        else:
            monkeypatch.setattr(broker.context.store, "transact", slow_entry)
        await broker.leader.stop()  # who would release the bundle
        peer.write(command_frame("producer", request_id=100, topic=TOPICS[0], producer_id=1))
        await reached.wait()
        second.write(command_frame("producer", request_id=100, topic=TOPICS[0], producer_id=1))
        assert await second.is_quiet()
        await port.namespaces.delete_namespace(NAME, force=False)
        go_on.set()
        for client in (peer, second):
            refused = (await client.answer(Type.ERROR)).error
            assert refused.error == WireCode.TOPIC_NOT_FOUND, refused
            assert "create it first" in refused.message
        assert not owned.topics
        await gone_for_good(port, broker, peer, store)


async def test_a_topic_that_is_entered_late_goes_if_its_namespace_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was unavailable when it was created, and it has been in use since then: its
    clients are sent away."""
    monkeypatch.setattr(topic_registry, "REGISTRATION_WAIT_S", 0.05)

    async with opened(tmp_path) as (port, broker, peer, store):
        await peer.lookup(TOPICS[0])
        [owned] = [
            found for name, found in broker.ownership.owned.items() if name.startswith(f"{NAME}/")
        ]
        transact = broker.context.store.transact

        async def away(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
            if enters(operations):
                raise StoreUnavailable("the store is unavailable")
            return await transact(compares, operations)

        monkeypatch.setattr(broker.context.store, "transact", away)
        await broker.leader.stop()
        await peer.produce(1, TOPICS[0])
        await peer.send(b"lost with its namespace")
        await port.namespaces.delete_namespace(NAME, force=False)
        assert owned.topics
        monkeypatch.setattr(broker.context.store, "transact", transact)
        assert (await peer.answer(Type.CLOSE_PRODUCER)).close_producer.producer_id == 1
        assert not owned.topics
        assert broker.ready
        await gone_for_good(port, broker, peer, store)


async def test_no_partitioned_topic_comes_into_a_namespace_that_is_gone(tmp_path: Path) -> None:
    """The view of the broker that is asked is behind: the store decides."""

    async with opened(tmp_path) as (port, broker, _peer, store):
        await broker.views.namespaces.stop()
        await store.delete(keys.namespace(NAME))
        assert broker.views.namespaces.get(str(NAME)) is not None, "an old view"
        with pytest.raises(NamespaceNotFound):
            await port.topics.create_partitions(TopicName.parse(f"persistent://{NAME}/many"), 2)
        assert not (await store.range(keys.partitioned_topics_in(NAME))).items


async def test_a_bundle_that_is_retired_before_its_owner_learns_of_its_release_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its release was lost, and the leader was quick: that is no takeover, and its
    other bundles are served on."""

    async with opened(tmp_path) as (port, broker, peer, store):
        await peer.lookup(TOPICS[0])
        await peer.produce(1, TOPICS[0])
        transact, lost = broker.context.store.transact, 0

        async def answer_lost(
            compares: Sequence[Compare], operations: Sequence[Operation]
        ) -> TxnResult:
            nonlocal lost
            result = await transact(compares, operations)
            puts = [
                put
                for put in operations
                if isinstance(put, Put) and put.key.startswith(keys.bundles_in(NAME))
            ]
            if result.succeeded and any(
                BundleRecord.decode(put.value).state is BundleState.FREE for put in puts
            ):
                lost += 1
                await retired(store)
                raise StoreUnavailable("the answer was lost")
            return result

        monkeypatch.setattr(broker.context.store, "transact", answer_lost)
        await port.namespaces.delete_namespace(NAME, force=True)
        async with asyncio.timeout(120):
            while any(
                str(owned.name.namespace) == str(NAME) for owned in broker.ownership.owned.values()
            ):
                assert broker.ready, "its incarnation has ended"
                await asyncio.sleep(0.01)
        assert lost == 1
        assert broker.ready
