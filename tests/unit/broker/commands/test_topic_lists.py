"""Topic lists across brokers: from each of them, after restarts, outages of the store and lost
writes; and what watchers receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import topic_registry
from magnetar.broker.topics.topic_registry import PLAIN_TOPIC
from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.store import Delete, Put
from magnetar.names import NamespaceName, TopicName
from magnetar.topics.topic_list import topics_hash
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import STILL, Peer, Type, connected_peer, open_peer, running_broker
from tests.support.rest import rest_over

PUBLIC = "public/default"
NAMESPACE = NamespaceName("public", "default")
WAIT_S = 120.0
Mode = api.CommandGetTopicsOfNamespace.Mode


def full(local: str) -> str:
    return f"persistent://{PUBLIC}/{local}"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds; fails after a generous while."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.01)


async def topics(peer: Peer, **values: object) -> api.CommandGetTopicsOfNamespaceResponse:
    answer = await peer.ask("get_topics_of_namespace", namespace=PUBLIC, **values)
    assert answer.type == Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, answer
    return answer.get_topics_of_namespace_response


async def create(
    peer: Peer, producer_id: int, local: str, broker: Broker, others: list[Broker]
) -> None:
    """Create a topic through its owner, which may be another broker than the peer's, and another
    one than a moment ago."""
    while True:
        url = await peer.lookup(full(local))
        [owner] = [known for known in (broker, *others) if known.service_url == url]
        async with open_peer(owner) as there:
            if (
                await there.ask("producer", topic=full(local), producer_id=producer_id)
            ).type == Type.PRODUCER_SUCCESS:
                return


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[tuple[Broker, Broker, MemoryStore]]:
    store = MemoryStore(SystemClock())
    async with (
        running_broker(directory, store=store, name="a", balance=STILL) as one,
        running_broker(directory, store=store, name="b", balance=STILL) as two,
    ):
        yield one, two, store
    await store.close()


async def test_every_broker_lists_every_topic_as_soon_as_its_creation_is_answered(
    tmp_path: Path,
) -> None:
    """Topics of bundles of both brokers; each list is asked for at the broker that did not
    create the last one."""

    async with (
        two_brokers(tmp_path) as (one, two, _store),
        open_peer(one) as here,
        open_peer(two) as there,
    ):
        created = []
        for number in range(12):
            await create(here, number, f"t{number}", one, [two])
            created.append(full(f"t{number}"))
            for peer in (there, here):
                assert list((await topics(peer)).topics) == sorted(created)
        assert len({await here.lookup(name) for name in created}) == 2, "both brokers serve some"
        assert await two.service.topics_in(NAMESPACE) == sorted(created)


async def test_a_list_survives_a_restart_and_a_move_costs_no_entry(tmp_path: Path) -> None:
    """One write per topic that is created; moving its bundle away writes none."""

    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store, name="a") as one, open_peer(one) as peer:
        for number in range(4):
            await peer.lookup(full(f"t{number}"))
            await peer.produce(number, full(f"t{number}"))
    before = await store.range(keys.TOPICS)
    assert len(before.items) == 4
    async with running_broker(tmp_path, store=store, name="b") as two, open_peer(two) as peer:
        for number in range(4):
            await peer.lookup(full(f"t{number}"))
            await peer.produce(number, full(f"t{number}"))
        assert len((await topics(peer)).topics) == 4
        after = await store.range(keys.TOPICS)
        assert [item.mod_revision for item in after.items] == [
            item.mod_revision for item in before.items
        ]
    await store.close()


async def test_a_new_owner_mends_the_entries_of_its_bundle(tmp_path: Path) -> None:
    """An entry that was lost comes back, one of a topic that does not exist goes; partitioned
    topics are left alone."""

    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store, name="a") as one, open_peer(one) as peer:
        await peer.lookup(full("real"))
        await peer.produce(1, full("real"))
        await one.service.partitioning.create(TopicName.parse(full("p")), 2)
        bundle = await one.ownership.bundle_of(TopicName.parse(full("real")))
        ghost = next(
            name for n in range(200) if bundle.contains(name := TopicName.parse(full(f"ghost{n}")))
        )
    real = keys.partitioned_topic(TopicName.parse(full("real")))
    await store.transact([], [Delete(real), Put(keys.partitioned_topic(ghost), PLAIN_TOPIC)])
    async with running_broker(tmp_path, store=store, name="b") as two, open_peer(two) as peer:
        await peer.lookup(full("real"))

        async def mended() -> bool:
            return list((await topics(peer)).topics) == [
                full("p-partition-0"),
                full("p-partition-1"),
                full("real"),
            ]

        await until(mended)
    await store.close()


async def test_topics_are_created_while_the_store_is_unavailable_and_listed_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is what a creation needs; a bundle's owner writes the entry later."""
    monkeypatch.setattr(topic_registry, "REGISTRATION_WAIT_S", 0.2)

    async with connected_peer(tmp_path) as (broker, peer):
        store = broker.context.store
        await peer.lookup(full("t"))
        away = asyncio.Event()

        async def refused(*_arguments: object) -> None:
            away.set()
            raise StoreUnavailable("the store is unavailable")

        working = store.transact
        store.transact = refused  # type: ignore[method-assign, assignment]  # a real store, unplugged
        producing = asyncio.create_task(peer.produce(1, full("t")))
        await away.wait()
        assert (await producing).producer_name
        store.transact = working  # type: ignore[method-assign]

        async def listed() -> bool:
            return list((await topics(peer)).topics) == [full("t")]

        await until(listed)


async def test_a_former_owners_late_write_changes_nothing(tmp_path: Path) -> None:
    """An entry is written under the owner's current record only; a former owner finds out and
    leaves it to the new one."""

    async with two_brokers(tmp_path) as (one, two, store), open_peer(one) as peer:
        name = TopicName.parse(full("t"))
        url = await peer.lookup(str(name))
        owner, other = (one, two) if url == one.service_url else (two, one)
        bundle = await owner.ownership.bundle_of(name)
        former = owner.ownership.owned[str(bundle)]
        await owner.ownership.move(str(bundle), other.incarnation, "test")
        await owner.ownership.registry.add(former, name)
        assert await store.get(keys.partitioned_topic(name)) is None


async def test_filters_hashes_and_modes(tmp_path: Path) -> None:
    """A good pattern filters; one too long or beyond the dialect is left to the client; an equal
    hash saves the list."""

    async with connected_peer(tmp_path) as (broker, peer):
        for number, local in enumerate(("a1", "a2", "b")):
            await peer.lookup(full(local))
            await peer.produce(number, full(local))
        await broker.service.partitioning.create(TopicName.parse(full("a3")), 2)
        everything = [
            full(local) for local in ("a1", "a2", "a3-partition-0", "a3-partition-1", "b")
        ]
        matching = await topics(peer, topics_pattern=f"persistent://{PUBLIC}/a[23]")
        assert (list(matching.topics), matching.filtered, matching.changed) == (
            everything[1:4],
            True,
            True,
        )
        assert matching.topics_hash == topics_hash(everything[1:4])
        same = await topics(
            peer, topics_pattern=f"{PUBLIC}/a[23]", topics_hash=matching.topics_hash
        )
        assert (list(same.topics), same.changed, same.topics_hash) == (
            [],
            False,
            matching.topics_hash,
        )
        for unknown in ("x" * 51, "(?=a).*"):
            whole = await topics(peer, topics_pattern=unknown)
            assert (list(whole.topics), whole.filtered) == (everything, False)
        assert list((await topics(peer, mode=Mode.NON_PERSISTENT)).topics) == []
        assert list((await topics(peer, mode=Mode.ALL)).topics) == everything
        elsewhere = await peer.ask("get_topics_of_namespace", namespace="no/where")
        assert list(elsewhere.get_topics_of_namespace_response.topics) == []


async def test_a_watcher_receives_success_and_then_every_change_in_order(tmp_path: Path) -> None:
    """What a client adds up from updates is what the list says at the end; the hash of each
    update is that of the sum."""

    async with (
        two_brokers(tmp_path) as (one, two, _store),
        open_peer(one) as peer,
        open_peer(two) as creator,
    ):
        await create(creator, 0, "w0", two, [one])
        answer = await peer.ask(
            "watch_topic_list", watcher_id=7, namespace=PUBLIC, topics_pattern=f"{PUBLIC}/w.*"
        )
        held = set(answer.watch_topic_list_success.topic)
        assert held == {full("w0")}
        assert answer.watch_topic_list_success.topics_hash == topics_hash(held)
        for number in range(1, 8):
            await create(
                creator, number, f"w{number}" if number % 2 else f"other{number}", two, [one]
            )
        await two.service.partitioning.create(TopicName.parse(full("wp")), 2)
        await two.service.partitioning.grow(TopicName.parse(full("wp")), 3)
        expected = {
            full(local)
            for local in (
                "w0",
                "w1",
                "w3",
                "w5",
                "w7",
                "wp-partition-0",
                "wp-partition-1",
                "wp-partition-2",
            )
        }
        while held != expected:
            update = (await peer.answer(Type.WATCH_TOPIC_UPDATE)).watch_topic_update
            assert update.watcher_id == 7
            assert not held & set(update.new_topics)
            held |= set(update.new_topics)
            held -= set(update.deleted_topics)
            assert update.topics_hash == topics_hash(held)
        again = await peer.ask(
            "watch_topic_list",
            watcher_id=8,
            namespace=PUBLIC,
            topics_pattern=f"{PUBLIC}/w.*",
            topics_hash=topics_hash(held),
        )
        assert list(again.watch_topic_list_success.topic) == [], "an equal hash saves the list"


async def test_a_closed_watcher_receives_nothing_and_watchers_are_limited(tmp_path: Path) -> None:
    async with connected_peer(tmp_path, topic_watchers_per_connection_max=2) as (broker, peer):
        values = {"namespace": PUBLIC, "topics_pattern": f"{PUBLIC}/.*"}
        for watcher in (1, 2):
            assert (
                await peer.ask("watch_topic_list", watcher_id=watcher, **values)
            ).type == Type.WATCH_TOPIC_LIST_SUCCESS
        third = await peer.ask("watch_topic_list", watcher_id=3, **values)
        assert (third.type, third.error.error) == (Type.ERROR, 22)
        long = await peer.ask(
            "watch_topic_list", watcher_id=1, namespace=PUBLIC, topics_pattern="x" * 51
        )
        assert (long.type, long.error.error) == (Type.ERROR, 22)
        for watcher in (1, 2, 2, 99):
            assert (
                await peer.ask("watch_topic_list_close", watcher_id=watcher)
            ).type == Type.SUCCESS
        await broker.service.partitioning.create(TopicName.parse(full("p")), 1)
        assert await peer.is_quiet()


async def test_metadata_of_an_absent_topic_depends_on_whether_it_may_be_created(
    tmp_path: Path,
) -> None:
    """0 for what may be created; TopicNotFound if the request must not create it, but not for
    what is there."""

    async with connected_peer(tmp_path) as (broker, peer):

        async def metadata(
            local: str, **values: object
        ) -> api.CommandPartitionedTopicMetadataResponse:
            return (
                await peer.ask("partitioned_metadata", topic=full(local), **values)
            ).partitioned_metadata_response

        found = await metadata("absent")
        assert (found.response, found.partitions) == (0, 0)
        found = await metadata("absent", metadata_auto_creation_enabled=False)
        assert (found.response, found.error) == (1, 11)
        await peer.lookup(full("there"))
        await peer.produce(1, full("there"))
        await broker.service.partitioning.create(TopicName.parse(full("p")), 3)
        for local, partitions in (("there", 0), ("p", 3), ("p-partition-2", 0)):
            found = await metadata(local, metadata_auto_creation_enabled=False)
            assert (found.response, found.partitions) == (0, partitions), local
        assert (await metadata("p-partition-3", metadata_auto_creation_enabled=False)).error == 11


async def test_partitions_exist_once_created_and_none_beyond(tmp_path: Path) -> None:
    """A consumer that must not create topics finds a partition nobody has used; a partition
    beyond the number is refused for good."""

    async with connected_peer(tmp_path) as (broker, peer):
        name = TopicName.parse(full("p"))
        await broker.service.partitioning.create(name, 2)
        for index, expected in ((0, Type.SUCCESS), (1, Type.SUCCESS), (2, Type.ERROR)):
            await peer.lookup(f"{name}-partition-{index}")
            answer = await peer.subscribe(
                index, f"{name}-partition-{index}", force_topic_creation=False
            )
            assert answer.type == expected, answer
        refused = await peer.ask("producer", topic=f"{name}-partition-2", producer_id=9)
        assert (refused.type, refused.error.error) == (Type.ERROR, 22)
        await peer.lookup(str(name))
        refused = await peer.ask("producer", topic=str(name), producer_id=9)
        assert (refused.type, refused.error.error) == (Type.ERROR, 22)
        assert list((await topics(peer)).topics) == [
            f"{name}-partition-0",
            f"{name}-partition-1",
        ]


async def test_grown_partitions_are_born_with_the_subscriptions_of_their_topic(
    tmp_path: Path,
) -> None:
    """What is published to a new partition before its consumer finds it is kept for the
    subscription."""

    async with connected_peer(tmp_path) as (broker, peer):
        name = TopicName.parse(full("p"))
        await broker.service.partitioning.create(name, 1)
        await broker.service.partitioning.grow(name, 2, subscriptions=("s",))
        await peer.lookup(f"{name}-partition-1")
        await peer.produce(1, f"{name}-partition-1")
        await peer.send(b"early", 0)
        await peer.subscribe(2, f"{name}-partition-1", initialPosition=0)
        peer.write(requests.flow(2, 10))
        message, _body = await peer.message()
        assert message.message_id.partition == 1


async def test_what_the_namespaces_policy_makes_of_absent_topics(tmp_path: Path) -> None:
    """By default a plain topic, by policy partitions that exist at once, or nothing at all: then
    look-ups over HTTP say 404, too."""

    async with (
        running_broker(tmp_path) as broker,
        rest_over(tmp_path, broker) as rest,
        open_peer(broker) as peer,
    ):
        base, policy = (
            "/admin/v2/persistent/public/default",
            "/admin/v2/namespaces/public/default/autoTopicCreation",
        )

        async def metadata(local: str) -> tuple[int, int]:
            found = (
                await peer.ask("partitioned_metadata", topic=full(local))
            ).partitioned_metadata_response
            return found.partitions, found.error if found.HasField("error") else 0

        assert await metadata("plain") == (0, 0)
        assert await rest.get(f"{base}/plain/partitions?checkAllowAutoCreation=true") == {
            "partitions": 0,
            "deleted": False,
        }
        await rest("GET", f"{base}/plain/partitions", status=404)
        await rest.get("/lookup/v2/topic/persistent/public/default/plain")
        await rest(
            "POST",
            policy,
            {
                "allowAutoTopicCreation": True,
                "topicType": "partitioned",
                "defaultNumPartitions": 3,
            },
        )
        assert await metadata("many") == (3, 0)
        assert await metadata("many") == (3, 0)
        assert await metadata("many-partition-7") == (0, 0), (
            "a partition is never partitioned itself"
        )
        assert await metadata("__change_events") == (0, 0), "nor is what the machinery uses"
        assert await rest.get(f"{base}/more/partitions?checkAllowAutoCreation=true") == {
            "partitions": 3,
            "deleted": False,
        }
        assert len(await rest.get(base)) == 6
        await rest("POST", policy, {"allowAutoTopicCreation": False})
        assert await metadata("absent") == (0, 11)
        assert await metadata("many") == (3, 0)
        await rest("GET", "/lookup/v2/topic/persistent/public/default/absent", status=404)
        await rest.get("/lookup/v2/topic/persistent/public/default/many-partition-1")
        await peer.lookup(full("absent"))
        refused = await peer.ask("producer", topic=full("absent"), producer_id=1)
        assert (refused.type, refused.error.error) == (Type.ERROR, 11)
