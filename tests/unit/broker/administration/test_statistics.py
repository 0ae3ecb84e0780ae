"""Statistics of topics, field by field as Apache Pulsar 4.2.4 answered the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.administration.partition_sums import sum_stats
from magnetar.hosting import rates
from magnetar.names import TopicName
from magnetar.topics.dispatch.base import SubscriptionType
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, Type, command_frame, entry
from tests.support.rest import TOPICS, Rest, broker_with_rest
from tests.support.transacting import ended, send_in

T = f"{TOPICS}/t"
TOPIC_FIELDS = """
    abortedTxnCount averageMsgSize backlogQuotaLimitSize backlogQuotaLimitTime backlogSize
    bytesInCounter bytesOutCounter bytesOutInternalCounter committedTxnCount compaction
    deduplicationStatus delayedMessageIndexSizeInBytes earliestMsgPublishTimeInBacklogs
    lastOffloadFailureTimeStamp lastOffloadLedgerId lastOffloadSuccessTimeStamp
    lastPublishTimeStamp msgChunkPublished msgInCounter msgOutCounter msgRateIn msgRateOut
    msgThroughputIn msgThroughputOut nonContiguousDeletedMessagesRanges
    nonContiguousDeletedMessagesRangesSerializedSize offloadedStorageSize
    oldestBacklogMessageAgeSeconds ongoingTxnCount ownerBroker publishRateLimitedTimes publishers
    replication storageSize subscriptions systemTopicBytesInCounter topicCreationTimeStamp
    waitingPublishers
"""
PUBLISHER_FIELDS = """
    accessMode address averageMsgSize chunkedMessageRate clientVersion connectedSince metadata
    msgRateIn msgThroughputIn producerId producerName supportsPartialProducer
"""
SUBSCRIPTION_FIELDS = """
    allowOutOfOrderDelivery backlogSize blockedSubscriptionOnUnackedMsgs bytesOutCounter
    chunkedMessageRate consumers consumersAfterMarkDeletePosition delayedMessageIndexSizeInBytes
    dispatchThrottledBytesEventsByBrokerLimit dispatchThrottledBytesEventsBySubscriptionLimit
    dispatchThrottledBytesEventsByTopicLimit dispatchThrottledMsgEventsByBrokerLimit
    dispatchThrottledMsgEventsBySubscriptionLimit dispatchThrottledMsgEventsByTopicLimit
    drainingHashesClearedTotal drainingHashesCount drainingHashesUnackedMessages durable
    earliestMsgPublishTimeInBacklog filterAcceptedMsgCount filterProcessedMsgCount
    filterRejectedMsgCount filterRescheduledMsgCount isDurable isReplicated lastAckedTimestamp
    lastConsumedFlowTimestamp lastConsumedTimestamp lastExpireTimestamp
    lastMarkDeleteAdvancedTimestamp messageAckRate msgBacklog msgBacklogNoDelayed msgDelayed
    msgExpired msgInReplay msgOutCounter msgRateExpired msgRateOut msgRateRedeliver
    msgThroughputOut nonContiguousDeletedMessagesRanges
    nonContiguousDeletedMessagesRangesSerializedSize replicated subscriptionProperties
    totalMsgExpired type unackedMessages
"""
CONSUMER_FIELDS = """
    address availablePermits avgMessagesPerEntry blockedConsumerOnUnackedMsgs bytesOutCounter
    chunkedMessageRate clientVersion connectedSince consumerName drainingHashesClearedTotal
    drainingHashesCount drainingHashesUnackedMessages firstConsumedFlowTimestamp
    firstMessagesSentTimestamp lastAckedTime lastAckedTimestamp lastConsumedFlowTimestamp
    lastConsumedTime lastConsumedTimestamp messageAckRate metadata msgOutCounter msgRateOut
    msgRateRedeliver msgThroughputOut unackedMessages
"""
INTERNAL_FIELDS = """
    compactedLedger currentLedgerEntries currentLedgerSize cursors entriesAddedCounter
    lastConfirmedEntry lastLedgerCreatedTimestamp ledgers numberOfEntries pendingAddEntriesCount
    properties schemaLedgers state totalSize waitingCursorsCount
"""
CURSOR_FIELDS = """
    active cursorLedger cursorLedgerLastEntry individuallyDeletedMessages lastLedgerSwitchTimestamp
    markDeletePosition messagesConsumedCounter numberOfEntriesSinceFirstNotAckedMessage
    pendingReadOps properties readPosition state subscriptionHavePendingRead
    subscriptionHavePendingReplayRead totalNonContiguousDeletedMessagesRange waitingReadOp
"""
NOW_MS = 1_700_000_000_000
"""Any time of these tests is later."""


@pytest.fixture(autouse=True)
def _rates_since_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, what was done in it is part of its rates."""
    monkeypatch.setattr(rates, "RATE_INTERVAL_S", 3600.0)


def missing(found: dict[str, Any], fields: str) -> set[str]:
    return set(fields.split()) - found.keys()


async def used(peer: Peer) -> None:
    """A producer and a Shared consumer with metadata, three messages, one of them acknowledged."""
    pairs = [api.KeyValue(key="pk", value="pv"), api.KeyValue(key="ck", value="cv")]
    await peer.produce(metadata=pairs[:1], producer_access_mode=1)
    await peer.subscribe(subType=1, consumer_name="cn", metadata=pairs[1:])
    for sequence in range(3):
        await peer.send(b"x", sequence)
    peer.write(command_frame("flow", consumer_id=1, messagePermits=100))
    command, _ = await peer.message()
    peer.write(
        command_frame(
            "ack", consumer_id=1, ack_type=0, message_id=[command.message_id], request_id=99
        )
    )
    while (await peer.receive())[0].type != Type.ACK_RESPONSE:
        pass


async def of_topic(rest: Rest, query: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    found = await rest.get(f"{T}/stats{query}")
    return found, found["subscriptions"]["s"]


async def test_every_field_of_pulsars_is_there_and_says_what_happened(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await used(peer)
        topic, subscription = await of_topic(rest)
        [publisher], [consumer] = topic["publishers"], subscription["consumers"]
        assert not missing(topic, TOPIC_FIELDS)
        assert not missing(publisher, PUBLISHER_FIELDS)
        assert not missing(subscription, SUBSCRIPTION_FIELDS)
        assert not missing(consumer, CONSUMER_FIELDS)
        assert (publisher["accessMode"], publisher["metadata"]) == ("Exclusive", {"pk": "pv"})
        assert consumer["metadata"] == {"ck": "cv"}
        assert topic["topicEpoch"] == 0
        assert NOW_MS < topic["topicCreationTimeStamp"] <= topic["lastPublishTimeStamp"]
        assert publisher["msgRateIn"] >= 0
        for field in ("Flow", ""):
            assert consumer[f"lastConsumed{field}Timestamp"] > NOW_MS
            assert subscription[f"lastConsumed{field}Timestamp"] > NOW_MS
        assert NOW_MS < consumer["firstMessagesSentTimestamp"] <= consumer["lastConsumedTimestamp"]
        assert consumer["lastAckedTimestamp"] == subscription["lastAckedTimestamp"] > NOW_MS
        assert subscription["lastMarkDeleteAdvancedTimestamp"] > NOW_MS
        assert subscription["msgBacklogNoDelayed"] == subscription["msgBacklog"] == 2
        assert topic["oldestBacklogMessageAgeSeconds"] >= 0
        assert topic["oldestBacklogMessageSubscriptionName"] == "s"
        internal = await rest.get(f"{T}/internalStats")
        assert not missing(internal, INTERNAL_FIELDS)
        assert not missing(internal["cursors"]["s"], CURSOR_FIELDS)


async def test_what_comes_back_waits_for_a_consumer_that_asks(tmp_path: Path) -> None:
    """Shared and Key_Shared: messages to be delivered again, for which nobody has permits."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        for kind in (1, 3):
            await peer.subscribe(kind, subscription="s", subType=kind)
            start = [await peer.send(b"x", 2 * kind + number) for number in range(2)]
            peer.write(requests.flow(kind, 2))
            for expected in start:
                command, _ = await peer.message()
                assert (command.message_id.ledgerId, command.message_id.entryId) == expected
            assert (await of_topic(rest))[1]["msgInReplay"] == 0
            peer.write(command_frame("redeliver_unacknowledged_messages", consumer_id=kind))
            await peer.ask("get_last_message_id", consumer_id=kind)  # answered in order
            assert (await of_topic(rest))[1]["msgInReplay"] == 2
            await rest("POST", f"{T}/subscription/s/skip_all")
            assert (await of_topic(rest))[1]["msgInReplay"] == 0
            await peer.ask("close_consumer", consumer_id=kind)


async def test_what_expired_is_counted_with_its_time_and_rate(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await used(peer)
        _, before = await of_topic(rest)
        assert (before["msgExpired"], before["msgRateExpired"]) == (0, 0.0)
        assert before["lastExpireTimestamp"] == 0
        internal = await rest.get(f"{T}/internalStats")
        ledger, number = internal["lastConfirmedEntry"].split(":")
        await rest(
            "POST",
            f"{T}/subscription/s/expireMessages",
            {"ledgerId": int(ledger), "entryId": int(number)},
        )
        _, after = await of_topic(rest)
        assert after["msgExpired"] == after["totalMsgExpired"] == 2
        assert after["msgRateExpired"] > 0
        assert after["lastExpireTimestamp"] > NOW_MS


async def test_parts_of_messages_and_ended_transactions_are_counted(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        (publisher,) = (await rest.get(f"{T}/stats"))["publishers"]
        assert publisher["chunkedMessageRate"] == 0.0
        for number in range(2):
            part = {"uuid": "u", "chunk_id": number, "num_chunks_from_msg": 2}
            peer.write(requests.send(1, 0, entry(b"x", 0, total_chunk_msg_size=2, **part)))
            await peer.answer(Type.SEND_RECEIPT)
        topic = await rest.get(f"{T}/stats")
        assert topic["publishers"][0]["chunkedMessageRate"] > 0
        assert (topic["committedTxnCount"], topic["abortedTxnCount"]) == (0, 0)
        for number, commit in enumerate((True, True, False)):
            txn = TxnId(0, number)
            await send_in(peer, txn, b"x", 1 + number)
            await ended(peer, txn, commit=commit)
        topic = await rest.get(f"{T}/stats")
        assert (topic["committedTxnCount"], topic["abortedTxnCount"]) == (2, 1)


async def send_parts(peer: Peer, sequence: int, count: int, txn: TxnId | None = None) -> None:
    """A message in so many entries."""
    for number in range(count):
        part = {"uuid": f"u{sequence}", "chunk_id": number, "num_chunks_from_msg": count}
        body = entry(b"x", sequence, total_chunk_msg_size=count, **part)
        peer.write(requests.send(1, sequence, body, txn=txn))


async def messages(peer: Peer, count: int) -> None:
    """Wait for so many, whatever comes between them."""
    while count:
        command, _ = await peer.receive()
        count -= command.type == Type.MESSAGE


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_parts_of_messages_are_counted_when_they_are_delivered(
    tmp_path: Path, domain: str, kind: SubscriptionType
) -> None:
    """As Pulsar counts them: each entry of a message in chunks, and no other."""
    name, path = f"{domain}://public/default/c", f"/admin/v2/{domain}/public/default/c/stats"
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.lookup(name)
        await peer.produce(topic=name)
        await peer.subscribe(topic=name, subType=kind)
        peer.write(requests.flow(1, 100))
        peer.write(requests.send(1, 0, entry(b"x", 0)))
        await messages(peer, 1)
        found = (await rest.get(path))["subscriptions"]["s"]
        assert found["msgRateOut"] > found["chunkedMessageRate"] == 0.0
        await send_parts(peer, 1, 3)
        await messages(peer, 3)
        # the tag of the field is no field yet
        peer.write(requests.send(1, 2, entry(b"x", 2, ordering_key=b"\xd8\x01")))
        await messages(peer, 1)
        found = (await rest.get(path))["subscriptions"]["s"]
        [consumer] = found["consumers"]
        assert found["chunkedMessageRate"] == consumer["chunkedMessageRate"]
        assert consumer["chunkedMessageRate"] == pytest.approx(consumer["msgRateOut"] * 3 / 5)


@pytest.mark.parametrize("txn", [None, TxnId(0, 1)])
async def test_parts_that_an_owner_before_has_stored_are_counted(
    tmp_path: Path, txn: TxnId | None
) -> None:
    """The next owner learns of them from the log, the one behind it from the checkpoint."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await send_parts(peer, 0, 2, txn)
        for _ in range(2):
            await peer.answer(Type.SEND_RECEIPT)
        if txn is not None:
            await ended(peer, txn, commit=True)
        await peer.ask("close_producer", producer_id=1)
        for _ in range(2):
            await rest("PUT", f"{T}/unload")
            await peer.lookup()
        await peer.subscribe()
        peer.write(requests.flow(1, 100))
        await messages(peer, 2)
        _, subscription = await of_topic(rest)
        assert subscription["chunkedMessageRate"] == subscription["msgRateOut"] > 0


async def test_clients_can_be_left_out_and_publish_times_asked_for(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await used(peer)
        topic, subscription = await of_topic(rest, "?excludePublishers=true&excludeConsumers=true")
        assert (topic["publishers"], subscription["consumers"]) == ([], [])
        assert topic["earliestMsgPublishTimeInBacklogs"] == 0
        topic, subscription = await of_topic(rest, "?getEarliestTimeInBacklog=true")
        assert topic["earliestMsgPublishTimeInBacklogs"] > 0
        assert subscription["earliestMsgPublishTimeInBacklog"] > 0
        assert len(subscription["consumers"]) == 1


async def test_an_empty_topic_has_a_ledger_and_no_backlog(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        await rest("PUT", T)
        topic = await rest.get(f"{T}/stats")
        assert (topic["oldestBacklogMessageAgeSeconds"], topic["lastPublishTimeStamp"]) == (-1, 0)
        [ledger] = (await rest.get(f"{T}/internalStats"))["ledgers"]
        assert (ledger["entries"], ledger["size"], ledger["offloaded"]) == (0, 0, False)


async def test_the_bytes_of_ledgers_are_those_of_the_topic(tmp_path: Path) -> None:
    """One ledger for each time that the topic was acquired; the current one is the last."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        for number in range(3):
            await peer.send(bytes(1000), number)
        await rest("PUT", f"{T}/unload")
        assert (await peer.answer()).type == Type.CLOSE_PRODUCER
        assert (await rest.get(f"{T}/internalStats"))["currentLedgerSize"] == 0
        await peer.lookup(TOPIC)
        await peer.produce()
        await peer.send(b"small", 3)
        internal = await rest.get(f"{T}/internalStats")
        first, second = (ledger["size"] for ledger in internal["ledgers"])
        assert first > second > 0
        assert first + second == internal["totalSize"]
        assert second == internal["currentLedgerSize"]


async def test_a_message_on_its_way_into_the_log_is_in_no_ledger_yet(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce()
        bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        topic = broker.ownership.owned[str(bundle)].topics[TOPIC]
        topic.core.take_ledger()
        topic.core.publish(1)
        internal = await rest.get(f"{T}/internalStats")
        assert (internal["currentLedgerEntries"], internal["currentLedgerSize"]) == (1, 0)
        [ledger] = internal["ledgers"]
        assert (ledger["entries"], ledger["size"]) == (0, 0)


async def test_partitions_add_up_as_pulsars_do(tmp_path: Path) -> None:
    """The n-th consumer of each partition counts as one; the same fields as of a topic."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await rest("PUT", f"{TOPICS}/many/partitions", 2)
        for index in range(2):
            name = f"{TOPIC[:-1]}many-partition-{index}"
            await peer.lookup(name)
            await peer.produce(10 + index, name)
            await peer.subscribe(20 + index, name)
            await peer.send(b"x", 0, 10 + index)
        total = await rest.get(f"{TOPICS}/many/partitioned-stats")
        [publisher], subscription = total["publishers"], total["subscriptions"]["s"]
        assert (total["msgInCounter"], len(subscription["consumers"])) == (2, 1)
        places = {"ownerBroker", "deduplicationStatus"}
        assert missing(total, TOPIC_FIELDS) <= places
        assert not missing(subscription, SUBSCRIPTION_FIELDS)
        assert "address" not in publisher
        assert len(total["partitions"]) == 2
        alone = await rest.get(f"{TOPICS}/many/partitioned-stats?perPartition=false")
        assert alone["partitions"] == {}


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_sums_of_no_use_are_zeros(parts: int) -> None:
    found = sum_stats([sum_stats(())] * parts)
    assert (found["msgInCounter"], found["publishers"], found["subscriptions"]) == (0, [], {})


async def test_compactions_of_partitions_are_one(tmp_path: Path) -> None:
    """What was removed is added up; of times and durations the greatest counts."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await used(peer)
        one = await rest.get(f"{T}/stats")
    ran = {
        "lastCompactionRemovedEventCount": 5,
        "lastCompactionSucceedTimestamp": 700,
        "lastCompactionFailedTimestamp": 0,
        "lastCompactionDurationTimeInMills": 30,
    }
    later = ran | {"lastCompactionSucceedTimestamp": 800, "lastCompactionDurationTimeInMills": 20}
    found = sum_stats([one | {"compaction": ran}, one | {"compaction": later}])
    assert found["compaction"] == {
        "lastCompactionRemovedEventCount": 10,
        "lastCompactionSucceedTimestamp": 800,
        "lastCompactionFailedTimestamp": 0,
        "lastCompactionDurationTimeInMills": 30,
    }


async def test_internal_info_says_what_is_stored_of_a_topic_and_of_each_partition(
    tmp_path: Path,
) -> None:
    """As Pulsar's ManagedLedgerInfo: ledgers, where cursors are, and where the topic has ended."""
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await peer.subscribe()
        ids = [await peer.send(b"%d" % number, number) for number in range(2)]
        place = dict(zip(("ledgerId", "entryId"), ids[-1], strict=True))
        found = await rest.get(f"{T}/internal-info")
        assert found["ledgers"][0]["entries"] == 2
        assert found["cursors"]["s"]["markDelete"] == {**place, "entryId": -1}
        assert "terminatedPosition" not in found
        await rest("PUT", f"{TOPICS}/many/partitions", 2)
        used = "persistent://public/default/many-partition-1"
        await peer.lookup(used)
        await peer.produce(2, used)
        parts = (await rest.get(f"{TOPICS}/many/internal-info"))["partitions"]
        assert parts[used] == await rest.get(f"{TOPICS}/many-partition-1/internal-info")
        await rest("POST", f"{T}/terminate", status=200)
        assert (await rest.get(f"{T}/internal-info"))["terminatedPosition"] == place
