"""Topics and subscriptions over a real broker: made, moved and deleted over REST, and what a
namespace's policy lets clients make."""

from __future__ import annotations

from pathlib import Path

from magnetar.errors import WireCode
from tests.support.brokers import TOPIC, Type
from tests.support.rest import NAMESPACE, TOPICS, refusal_text
from tests.support.topic_lives import PATH, Lives, play


def test_subscriptions_are_made_moved_and_deleted_over_rest(tmp_path: Path) -> None:
    """Create at a position, skip, reset by id and by time, delete; what is in the way says so;
    all of it is durable."""

    async def script(lives: Lives) -> None:
        async with lives.one(crash=True) as life:
            await life.peer.produce()
            positions = await life.publish(5)
            ledger, number = positions[2]
            await life.rest(
                "PUT", f"{PATH}/subscription/at", {"ledgerId": ledger, "entryId": number}
            )
            await life.rest("PUT", f"{PATH}/subscription/at", {}, status=409)
            await life.rest(
                "PUT",
                f"{PATH}/subscription/first",
                {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1, "properties": {"a": "b"}},
            )
            await life.rest(
                "PUT", f"{PATH}/subscription/last", {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
            )
            assert await life.rest.get(f"{PATH}/subscriptions") == ["at", "first", "last"]
            stats = (await life.rest.get(f"{PATH}/stats"))["subscriptions"]
            assert {name: found["msgBacklog"] for name, found in stats.items()} == {
                "at": 3,
                "first": 5,
                "last": 0,
            }
            assert stats["first"]["subscriptionProperties"] == {"a": "b"}
            await life.rest("POST", f"{PATH}/subscription/first/skip/2")
            await life.rest(
                "POST",
                f"{PATH}/subscription/last/resetcursor",
                {"ledgerId": ledger, "entryId": number, "isExcluded": True},
            )
            await life.rest("POST", f"{PATH}/subscription/at/resetcursor/0")
            await life.rest("POST", f"{PATH}/subscription/none/skip_all", status=404)
            await life.rest(
                "POST", f"{PATH}/subscription/at/resetcursor", {"ledgerId": "x"}, status=400
            )
            assert (await life.peer.subscribe(1, subscription="first")).type == Type.SUCCESS
            await life.rest("DELETE", f"{PATH}/subscription/first", status=412)
        async with lives.one() as life:
            stats = (await life.rest.get(f"{PATH}/stats"))["subscriptions"]
            assert {name: found["msgBacklog"] for name, found in stats.items()} == {
                "at": 5,
                "first": 3,
                "last": 2,
            }
            assert (await life.peer.subscribe(1, subscription="first")).type == Type.SUCCESS
            await life.rest("DELETE", f"{PATH}/subscription/first?force=true")
            await life.peer.answer(Type.CLOSE_CONSUMER)
            assert await life.rest.get(f"{PATH}/subscriptions") == ["at", "last"]

    play(tmp_path, script, retention_check_s=1000.0)


def test_topics_and_partitions_are_created_and_deleted_over_rest(tmp_path: Path) -> None:
    """409 for what is there, 404 for what is not, 412 for what has clients; a namespace with
    topics goes only by force."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            rest = life.rest
            await rest("PUT", PATH, {"color": "blue"})
            await rest("PUT", PATH, status=409)
            assert await rest.get(f"{PATH}/properties") == {"color": "blue"}
            await rest("PUT", f"{TOPICS}/many/partitions", 3)
            await rest("PUT", f"{TOPICS}/many", status=409)
            await rest("DELETE", f"{TOPICS}/many", status=409)
            await rest("PUT", f"{TOPICS}/many/subscription/s", {})
            assert await rest.get(f"{TOPICS}/many/subscriptions") == ["s"]
            assert await rest.get(f"{TOPICS}/partitioned") == ["persistent://public/default/many"]
            total = await rest.get(f"{TOPICS}/many/partitioned-stats")
            assert (
                total["metadata"]["partitions"],
                len(total["partitions"]),
                list(total["subscriptions"]),
            ) == (3, 3, ["s"])
            await rest("POST", f"{TOPICS}/many/partitions", 4)
            await life.peer.lookup(f"{TOPIC[:-1]}many-partition-2")
            await life.peer.subscribe(1, f"{TOPIC[:-1]}many-partition-2")
            assert "consumers connected to s" in refusal_text(
                await rest("DELETE", f"{TOPICS}/many/partitions", status=412)
            )
            assert (await rest.get(f"{TOPICS}/many/partitions"))["partitions"] == 4
            assert len(await rest.get(TOPICS)) == 5, "a refused deletion has deleted nothing"
            assert await rest.get(f"{TOPICS}/many-partition-0/subscriptions") == ["s"], (
                "not even what nobody uses"
            )
            await rest("DELETE", f"{TOPICS}/many/partitions?force=true")
            await life.peer.answer(Type.CLOSE_CONSUMER)
            await rest("DELETE", f"{TOPICS}/many/partitions", status=404)
            assert await rest.get(TOPICS) == [TOPIC]
            # goes with its topic, as Pulsar's administration has it
            await rest("PUT", f"{PATH}/subscription/idle", {})
            await rest("DELETE", PATH)
            assert await rest.get(TOPICS) == []
            await rest("PUT", "/admin/v2/namespaces/public/b")
            await rest("PUT", "/admin/v2/persistent/public/b/t")
            await rest("PUT", "/admin/v2/persistent/public/b/p/partitions", 2)
            await rest("DELETE", "/admin/v2/namespaces/public/b", status=409)
            await rest("DELETE", "/admin/v2/namespaces/public/b?force=true")
            await rest("GET", "/admin/v2/namespaces/public/b", status=404)

    play(tmp_path, script)


def test_clients_create_topics_only_where_the_policy_lets_them(tmp_path: Path) -> None:
    """Administrators do so in any case; partitions of a topic that is there come with it."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.rest(
                "POST", f"{NAMESPACE}/autoTopicCreation", {"allowAutoTopicCreation": False}
            )
            refused = await life.peer.ask("producer", topic=TOPIC, producer_id=1)
            assert (refused.type, refused.error.error) == (Type.ERROR, WireCode.TOPIC_NOT_FOUND)
            await life.rest("PUT", PATH)
            await life.peer.produce()
            await life.rest("PUT", f"{TOPICS}/many/partitions", 1)
            partition = f"{TOPIC[:-1]}many-partition-0"
            await life.peer.lookup(partition)
            await life.peer.produce(producer_id=2, topic=partition)

    play(tmp_path, script)


def test_a_namespace_has_no_more_topics_than_its_policy_says(tmp_path: Path) -> None:
    """Those that are there stay usable."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.rest("POST", f"{NAMESPACE}/maxTopicsPerNamespace", 1)
            await life.peer.produce()
            other = f"{TOPIC[:-1]}other"
            await life.peer.lookup(other)
            refused = await life.peer.ask("producer", topic=other, producer_id=2)
            assert (refused.type, refused.error.error) == (Type.ERROR, WireCode.NOT_ALLOWED)
            await life.rest("PUT", f"{TOPICS}/other", status=409)
            await life.peer.produce(producer_id=3)

    play(tmp_path, script)
