"""Message ids over a real broker: an id names one message of all topics, whatever becomes of the
topics and of their bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import BundleName, TopicName
from magnetar.topics import ledger_ids
from magnetar.topics.ledger_ids import epoch_of, is_sidecar, sidecar_ledger
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    SETTINGS,
    Node,
    Peer,
    Type,
    entry,
    open_peer,
    running_broker,
    volume_in,
)
from tests.support.polling import until
from tests.support.split_bundles import LEFT_TOPIC, MIDDLE, RIGHT_TOPIC, WHOLE, topics_in
from tests.support.transacting import ended, send_in

Id = tuple[int, int]
TXN = TxnId(0, 5)


class Ids:
    """Every id that was given, by topic: those of a topic rise, and no two topics share a
    ledger."""

    def __init__(self) -> None:
        self.given: dict[Id, str] = {}
        self.ledgers: dict[int, str] = {}
        self.last: dict[tuple[str, bool], Id] = {}
        self.transactions = 5

    def begin(self) -> TxnId:
        """A transaction that no topic has seen."""
        self.transactions += 1
        return TxnId(0, self.transactions)

    def take(self, topic: str, *ids: Id) -> None:
        for found in ids:
            assert found not in self.given, (topic, found, self.given[found])
            self.given[found] = topic
            assert self.ledgers.setdefault(found[0], topic) == topic, (topic, found)
            key = topic, is_sidecar(found)
            assert found > self.last.get(key, (0, 0)), (topic, found, self.last)
            self.last[key] = found


async def bundle_of(broker: Broker, topic: str) -> OwnedBundle:
    return broker.ownership.owned[str(await broker.ownership.bundle_of(TopicName.parse(topic)))]


async def publish_everywhere(peer: Peer, topics: list[str], count: int, ids: Ids) -> None:
    """New producers of all the topics, messages of each one by one, and one in a transaction
    that commits last."""
    for number, topic in enumerate(topics):
        await peer.lookup(topic)
        await peer.produce(number, topic)
    for sequence in range(count):
        for number, topic in enumerate(topics):
            ids.take(topic, await peer.send(b"x", sequence, number))
    txn = ids.begin()
    for number, topic in enumerate(topics):
        ids.take(topic, await send_in(peer, txn, b"in", 0, number))
    for topic in topics:
        await ended(peer, txn, commit=True, topic=topic)


async def test_the_topics_of_a_bundle_share_no_id(tmp_path: Path) -> None:
    """Forty topics of one bundle: as many ledgers as topics, with their sidecars twice as many,
    all of one term."""

    topics, ids = topics_in(WHOLE, 40), Ids()
    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        await publish_everywhere(peer, topics, 3, ids)
        [owned] = broker.ownership.owned.values()
    assert len(ids.given) == 40 * 4
    assert len(ids.ledgers) == 40 * 2
    assert {epoch_of(ledger) for ledger in ids.ledgers} == {owned.epoch}
    assert {sidecar_ledger(ledger) for ledger in ids.ledgers} == {
        ledger for ledger in ids.ledgers if is_sidecar((ledger, 0))
    }


async def test_a_topic_without_entries_takes_no_number(tmp_path: Path) -> None:
    """Producers and consumers alone need no id: the numbers of a term are for what is published
    to in it."""

    topics = topics_in(WHOLE, 20)
    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        for number, topic in enumerate(topics):
            await peer.lookup(topic)
            await peer.produce(number, topic)
            assert (await peer.subscribe(number, topic)).type == Type.SUCCESS
        first = await peer.send(b"x", 0, 19)
        second = await peer.send(b"x", 0, 3)
        assert second[0] == first[0] + 2


@pytest.mark.parametrize("ending", ["crash", "shutdown"])
async def test_ids_stay_single_over_splits_deletions_and_terms(tmp_path: Path, ending: str) -> None:
    """Of the same topics, published to before and after each: a split, a deletion and a new
    creation, the next owner, a split again."""

    store, topics, ids = (
        MemoryStore(CLOCK),
        [LEFT_TOPIC, RIGHT_TOPIC, *topics_in(WHOLE, 8)[2:]],
        Ids(),
    )
    async with volume_in(tmp_path) as volume:
        node = Node(store, volume, "broker-0", SETTINGS)
        for life in range(2):
            broker = await node.start()
            async with open_peer(broker) as peer:
                await publish_everywhere(peer, topics, 1, ids)
            if not life:
                await broker.ownership.split(WHOLE, MIDDLE)
            else:
                left = BundleName(WHOLE.namespace, WHOLE.low, MIDDLE[0])
                quarters = tuple(
                    left.low + (left.high - left.low) * quarter // 4 for quarter in (1, 2, 3)
                )
                assert len(await broker.ownership.split(left, quarters)) == 4
            async with open_peer(broker) as peer:
                await publish_everywhere(peer, topics, 1, ids)
            for topic in topics[::2]:
                await (await bundle_of(broker, topic)).delete_topic(TopicName.parse(topic))
            async with open_peer(broker) as peer:
                await publish_everywhere(peer, topics, 2, ids)
            if ending == "crash":
                broker.fail("crash")
            await broker.close()
    await store.close()


async def test_the_children_of_a_split_go_their_own_ways(tmp_path: Path) -> None:
    """One of them leaves and comes back while the other gives ids of the epoch that they shared."""

    ids = Ids()
    async with running_broker(tmp_path) as broker:
        async with open_peer(broker) as peer:
            await publish_everywhere(peer, [LEFT_TOPIC, RIGHT_TOPIC], 1, ids)
        left, _ = await broker.ownership.split(WHOLE, MIDDLE)
        lefts, rights = (
            topics_in(child, 4)
            for child in (left, BundleName(WHOLE.namespace, MIDDLE[0], WHOLE.high))
        )
        async with open_peer(broker) as peer:
            await publish_everywhere(peer, [lefts[0], rights[0]], 1, ids)
        await broker.ownership.move(str(left), "", "test")
        for number in (1, 2, 3):
            async with open_peer(broker) as peer:
                await publish_everywhere(peer, [rights[number], lefts[number]], 1, ids)


async def test_a_bundle_that_runs_out_of_numbers_gets_a_new_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has to refuse anything: topic after topic is published to, many times as many as
    a term has numbers."""
    monkeypatch.setattr(ledger_ids, "NUMBERS_MAX", 16)

    ids, epochs = Ids(), set[int]()
    async with running_broker(tmp_path) as broker:
        for topic in topics_in(WHOLE, 40):
            async with open_peer(broker) as peer:
                owner = await peer.lookup(topic)
                assert owner == broker.service_url
                await peer.produce(1, topic)
                peer.write(requests.send(1, 0, entry(b"x", 0)))
                while (answer := await peer.answer()).type != Type.SEND_RECEIPT:
                    # its bundle has left since: as clients do, come again
                    assert answer.type == Type.CLOSE_PRODUCER, answer
                    await peer.lookup(topic)
                    await peer.produce(1, topic)
                    peer.write(requests.send(1, 0, entry(b"x", 0)))
                found = answer.send_receipt.message_id
                ids.take(topic, (found.ledgerId, found.entryId))
                epochs.add(epoch_of(found.ledgerId))
    assert len(epochs) >= 3


async def test_without_a_number_a_topic_is_refused_to_come_again_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one read: the third topic of a term of two numbers is refused, with storage, without
    and in a transaction; then all have a new epoch."""
    monkeypatch.setattr(ledger_ids, "NUMBERS_MAX", 2)

    topics = topics_in(WHOLE, 3)
    unstored = next(
        name
        for name in (f"non-persistent://public/default/t-{number}" for number in range(1000))
        if WHOLE.contains(TopicName.parse(name))
    )
    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        for number, topic in enumerate((*topics, unstored)):
            await peer.lookup(topic)
            await peer.produce(number, topic)
        [owned] = broker.ownership.owned.values()
        sends = [(0, None), (1, None), (2, None), (2, TXN), (3, None), (0, None), (1, TXN)]
        peer.write(
            b"".join(
                requests.send(number, at, entry(b"x", at), txn=txn)
                for at, (number, txn) in enumerate(sends)
            )
        )
        refused, receipts = list[int](), list[int]()
        while len(refused) + len(receipts) < len(sends):
            answer = await peer.answer()
            if answer.type == Type.SEND_ERROR:
                assert answer.send_error.error == WireCode.SERVICE_NOT_READY
                assert "is being unloaded: all 2 ledger ids" in answer.send_error.message
                refused.append(answer.send_error.producer_id)
            elif answer.type == Type.SEND_RECEIPT:
                receipts.append(answer.send_receipt.producer_id)
        assert (sorted(refused), sorted(receipts)) == ([2, 2, 3], [0, 0, 1, 1])
        await until(lambda: owned not in broker.ownership.owned.values())
        async with open_peer(broker) as again:
            await again.lookup(topics[2])
            await again.produce(2, topics[2])
            assert epoch_of((await again.send(b"x", 0, 2))[0]) > owned.epoch


async def test_a_commit_waits_for_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent in an earlier term needs one when it is committed: refused to be asked for
    again, and done in the next term."""

    topics = topics_in(WHOLE, 2)
    async with running_broker(tmp_path) as broker:
        async with open_peer(broker) as peer:
            await peer.lookup(topics[0])
            await peer.produce(0, topics[0])
            sidecar = await send_in(peer, TXN, b"in", 0, 0)
        monkeypatch.setattr(ledger_ids, "NUMBERS_MAX", 1)
        await broker.ownership.move(str(WHOLE), "", "test")
        async with open_peer(broker) as peer:
            await peer.lookup(topics[1])
            await peer.produce(1, topics[1])
            peer.write(requests.send(1, 0, entry(b"x", 0)))
            peer.write(
                requests.end_txn_on_partition(
                    peer.next_request(), TXN, topics[0], commit=True, low_watermark=-1
                )
            )
            answers = {answer.type: answer for answer in [await peer.answer() for _ in range(2)]}
            refused = answers[Type.END_TXN_ON_PARTITION_RESPONSE].end_txn_on_partition_response
            assert refused.error == WireCode.SERVICE_NOT_READY
        monkeypatch.setattr(ledger_ids, "NUMBERS_MAX", 8)
        async with open_peer(broker) as peer:
            await peer.lookup(topics[0])
            await ended(peer, TXN, commit=True, topic=topics[0])
            host = (await bundle_of(broker, topics[0])).topics[topics[0]]
            assert host.core.last_confirmed.ledger > sidecar[0]
            assert host.core.ledgers.end == 1
