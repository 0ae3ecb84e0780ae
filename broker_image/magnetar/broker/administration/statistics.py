"""What REST shows of a topic.

Owns: the JSON of `stats` and `internalStats`. Imports: topics, names. Source: Pulsar 4.2's
TopicStatsImpl and PersistentTopicInternalStats, field by field. Invariants: reading statistics
touches no storage unless publish times are asked for; a field that this broker does not measure is
0, never invented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from magnetar.broker.commands.sessions import ConsumerSession, ProducerRates, ProducerSession
from magnetar.broker.commands.statistics import consumer_rates
from magnetar.broker.ports import Throttles
from magnetar.broker.topics.compaction_state import CompactionState
from magnetar.broker.topics.publish_times import publish_ms_of
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import elapsed_ms, iso8601
from magnetar.metadata.topic_schemas import KEPT_PREFIX
from magnetar.names import TopicName
from magnetar.policies import BacklogQuota
from magnetar.policy_shapes import DESTINATION_STORAGE, MESSAGE_AGE
from magnetar.topics.dispatch.base import Consumer, SubscriptionType
from magnetar.topics.ledgers import Position
from magnetar.topics.producers import AccessMode, Producer
from magnetar.topics.topic import Topic

TYPE_NAMES: Mapping[SubscriptionType, str] = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
ACCESS_MODES: Mapping[AccessMode, str] = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
TOPIC_RATES = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
RATES = (
    "msgRateOut",
    "msgThroughputOut",
    "msgRateRedeliver",
    "messageAckRate",
    "chunkedMessageRate",
)
"""Of a subscription: the sums over its consumers."""
EMPTY_LEDGER: Mapping[str, Any] = MappingProxyType(
    {"entries": 0, "size": 0, "offloaded": False, "underReplicated": False}
)
NOT_HERE: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(
        (
            "bytesOutInternalCounter",
            "systemTopicBytesInCounter",
            "offloadedStorageSize",
            "lastOffloadLedgerId",
            "lastOffloadSuccessTimeStamp",
            "lastOffloadFailureTimeStamp",
            "delayedMessageIndexSizeInBytes",
            "nonContiguousDeletedMessagesRangesSerializedSize",
        ),
        0,
    )
)
"""Of a topic: what has no counterpart here, or is not counted."""
NOT_IN_SUBSCRIPTIONS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(
        (
            "delayedMessageIndexSizeInBytes",
            "dispatchThrottledBytesEventsByBrokerLimit",
            "dispatchThrottledMsgEventsByBrokerLimit",
            "drainingHashesClearedTotal",
            "drainingHashesCount",
            "drainingHashesUnackedMessages",
            "filterAcceptedMsgCount",
            "filterProcessedMsgCount",
            "filterRejectedMsgCount",
            "filterRescheduledMsgCount",
            "nonContiguousDeletedMessagesRangesSerializedSize",
        ),
        0,
    )
)
"""The same of a subscription."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a topic's statistics is asked for. `earliest`: the publish time of the first message
    of each backlog, which storage is read for."""

    publishers: bool = True
    consumers: bool = True
    earliest: bool = False


ALL = Wanted()


def text_of(position: Position) -> str:
    """A position as Pulsar writes it in statistics."""
    return f"{position.ledger}:{position.entry}"


def topic_stats(host: TopicHost, wanted: Wanted = ALL) -> dict[str, Any]:
    """TopicStats of a topic served here."""
    core, counters, policies = host.core, host.core.counters, host.policies
    now_ms = elapsed_ms(host.context.clock)
    core.age(now_ms)
    subscriptions = {
        name: _subscription_stats(found, wanted) for name, found in host.subscriptions.items()
    }
    rates = {name: _producer(found).rates() for name, found in core.producers.by_name.items()}
    quota, age = (
        policies.backlog_quotas.get(kind, BacklogQuota())
        for kind in (DESTINATION_STORAGE, MESSAGE_AGE)
    )
    buffer = host.transactions.buffer if host.transactions is not None else None
    found = {
        **NOT_HERE,
        **dict(zip(TOPIC_RATES, host.traffic.rates(), strict=False)),
        **_oldest_backlog(host, now_ms),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        "msgInCounter": counters.messages_in,
        "bytesInCounter": counters.bytes_in,
        "msgOutCounter": counters.messages_out,
        "bytesOutCounter": counters.bytes_out,
        "msgChunkPublished": any(
            _producer(found).sends_chunks for found in core.producers.by_name.values()
        ),
        "storageSize": core.ages.bytes_from(core.ledgers.first, core.ledgers.end),
        "backlogSize": max((found["backlogSize"] for found in subscriptions.values()), default=0),
        "backlogQuotaLimitSize": quota.limit_bytes,
        "backlogQuotaLimitTime": age.limit_s,
        "earliestMsgPublishTimeInBacklogs": 0,
        "publishRateLimitedTimes": host.throttles.publish_waits if host.throttles else 0,
        "ongoingTxnCount": sum(1 for _ in buffer.open_transactions()) if buffer is not None else 0,
        "committedTxnCount": buffer.committed if buffer is not None else 0,
        "abortedTxnCount": buffer.aborted if buffer is not None else 0,
        "nonContiguousDeletedMessagesRanges": sum(
            found["nonContiguousDeletedMessagesRanges"] for found in subscriptions.values()
        ),
        "publishers": [
            _publisher_stats(name, found, rates[name])
            for name, found in (core.producers.by_name.items() if wanted.publishers else ())
        ],
        "waitingPublishers": sum(1 for _ in core.producers.waiting),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if policies.deduplication_enabled else "Disabled",
        "compaction": compaction_stats(host),
        "ownerBroker": host.context.http_url.removeprefix("http://"),
        "topicCreationTimeStamp": core.created_ms,
        "lastPublishTimeStamp": host.traffic.published_ms,
    }
    if core.producers.topic_epoch is not None:
        found["topicEpoch"] = core.producers.topic_epoch
    if not host.name.persistent:
        lost = [subscription["msgDropRate"] for subscription in subscriptions.values()]
        found["msgDropRate"] = sum((*lost, *(found.dropped for found in rates.values())))
    return found


def _oldest_backlog(host: TopicHost, now_ms: int) -> dict[str, Any]:
    """How long the oldest message has waited that some durable subscription has before it, and
    for which; -1 where none waits."""
    core = host.core
    marks = {
        name: found.cursor.mark_delete
        for name, found in core.subscriptions.items()
        if found.durable and found.backlog
    }
    if not marks:
        return {"oldestBacklogMessageAgeSeconds": -1}
    name = min(marks, key=lambda subscription: marks[subscription])
    return {
        "oldestBacklogMessageAgeSeconds": core.ages.waited_ms(marks[name], now_ms) // 1000,
        "oldestBacklogMessageSubscriptionName": name,
    }


def compaction_stats(host: TopicHost) -> dict[str, int]:
    """CompactionStats, since the topic is served here."""
    state = host.compaction or CompactionState()
    return {
        "lastCompactionRemovedEventCount": state.removed_messages,
        "lastCompactionSucceedTimestamp": state.succeeded_ms,
        "lastCompactionFailedTimestamp": state.failed_ms,
        "lastCompactionDurationTimeInMills": state.duration_ms,
    }


def _compacted_ledger(host: TopicHost) -> dict[str, Any]:
    """LedgerInfo of the compacted view; its id is the view's generation, since it is no ledger."""
    view = host.bundle.known_view(host)
    segments = view.segments if view is not None else ()
    return {
        "ledgerId": view.generation if view is not None else -1,
        "entries": sum(found.entries for found in segments) if view is not None else -1,
        "size": sum(found.bytes for found in segments) if view is not None else -1,
        "offloaded": False,
        "underReplicated": False,
    }


def _producer(found: Producer) -> ProducerSession:
    session = found.handle
    assert isinstance(session, ProducerSession)
    return session


def _publisher_stats(name: str, producer: Producer, rates: ProducerRates) -> dict[str, Any]:
    session = _producer(producer)
    connection = session.connection
    return {
        **_drops(session.topic_name, rates.dropped),
        "accessMode": ACCESS_MODES[producer.mode],
        "producerName": name,
        "producerId": producer.producer_id,
        "epoch": producer.epoch,
        "msgRateIn": rates.messages,
        "msgThroughputIn": rates.bytes,
        "averageMsgSize": rates.bytes / rates.messages if rates.messages else 0.0,
        "chunkedMessageRate": rates.chunks,
        "supportsPartialProducer": False,
        "address": _address(connection.peer),
        "connectedSince": iso8601(session.connected_ms),
        "clientVersion": connection.client_version,
        "metadata": dict(session.metadata or {}),
    }


def _drops(topic: TopicName, rate: float) -> dict[str, float]:
    """What a topic without storage drops: of a producer what its connection had too much on its way,
    of a subscription the messages for which no consumer had permits."""
    return {} if topic.persistent else {"msgDropRate": rate}


def _address(peer: str) -> str:
    """A peer as Java writes it."""
    return f"/{peer}"


def _consumer_stats(session: ConsumerSession, consumer: Consumer) -> dict[str, Any]:
    rates = consumer_rates(session)
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacknowledged,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "avgMessagesPerEntry": round(consumer.messages_out / session.entries_out)
        if session.entries_out
        else 0,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": session.bytes_out,
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
        "msgRateRedeliver": rates.redelivered,
        "messageAckRate": rates.acknowledged,
        "chunkedMessageRate": rates.chunks,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "firstConsumedFlowTimestamp": session.first_flow_ms,
        "lastConsumedFlowTimestamp": session.flow_ms,
        "firstMessagesSentTimestamp": session.first_sent_ms,
        "lastConsumedTimestamp": session.sent_ms,
        "lastConsumedTime": iso8601(session.sent_ms),
        "lastAckedTimestamp": session.acknowledged_ms,
        "lastAckedTime": iso8601(session.acknowledged_ms),
        "address": _address(session.connection.peer),
        "clientVersion": session.connection.client_version,
        "connectedSince": iso8601(session.connected_ms),
        "metadata": dict(session.metadata or {}),
    }


def _consumers(host: SubscriptionHost) -> Iterator[dict[str, Any]]:
    hashes = host.core.hash_ranges()
    for session, consumer in host.core.consumers.items():
        if isinstance(session, ConsumerSession):
            ranges = hashes.get(session)
            yield _consumer_stats(session, consumer) | (
                {
                    "drainingHashes": [],
                    "keyHashRanges": [f"[{start}, {end}]" for start, end in ranges],
                    "keyHashRangeArrays": [[start, end] for start, end in ranges],
                }
                if ranges is not None
                else {}
            )


def _subscription_stats(host: SubscriptionHost, wanted: Wanted) -> dict[str, Any]:
    core, consumers = host.core, list(_consumers(host))
    sessions = [found for found in core.consumers if isinstance(found, ConsumerSession)]
    found = {
        **NOT_IN_SUBSCRIPTIONS,
        **{rate: sum(found[rate] for found in consumers) for rate in RATES},
        "msgBacklog": core.backlog,
        "msgBacklogNoDelayed": core.backlog - core.postponed.delayed,
        "msgDelayed": core.postponed.delayed,
        "msgInReplay": core.postponed.replayed,
        "blockedSubscriptionOnUnackedMsgs": core.blocked,
        "backlogSize": host.topic.core.ages.bytes_from(core.cursor.mark_delete, core.cursor.end),
        "earliestMsgPublishTimeInBacklog": 0,
        "unackedMessages": core.unacknowledged,
        "type": TYPE_NAMES[core.kind] if core.kind is not None else "None",
        "durable": core.durable,
        "isDurable": core.durable,
        "replicated": False,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "msgOutCounter": core.messages_out,
        "bytesOutCounter": host.traffic.bytes_out
        + sum(found["bytesOutCounter"] for found in consumers),
        "totalMsgExpired": host.traffic.messages_expired,
        "msgExpired": host.traffic.messages_expired,
        "msgRateExpired": host.traffic.expiry_rate(),
        "lastExpireTimestamp": host.traffic.expired_ms,
        "lastConsumedFlowTimestamp": max(
            [host.traffic.flow_ms, *(one.flow_ms for one in sessions)]
        ),
        "lastConsumedTimestamp": max([host.traffic.sent_ms, *(one.sent_ms for one in sessions)]),
        "lastAckedTimestamp": host.traffic.acknowledged_ms,
        "lastMarkDeleteAdvancedTimestamp": host.traffic.advanced_ms,
        "nonContiguousDeletedMessagesRanges": core.cursor.range_count,
        "consumersAfterMarkDeletePosition": {},
        **_throttled(host.topic.throttles, core.name),
        **_drops(host.topic.name, host.traffic.drop_rate()),
        "subscriptionProperties": dict(core.properties),
        "consumers": consumers if wanted.consumers else [],
    }
    if core.active is not None:
        found["activeConsumerName"] = core.active.name
    if core.kind is SubscriptionType.KEY_SHARED:
        policies = [consumer.key_shared for consumer in core.consumers.values()]
        found["keySharedMode"] = policies[0].mode.name
        found["allowOutOfOrderDelivery"] = policies[0].out_of_order
    return found


def _throttled(throttles: Throttles | None, name: str) -> dict[str, int]:
    """How often rates made a delivery wait; of messages or bytes alike."""
    return {
        f"dispatchThrottled{unit}EventsBy{level}Limit": count
        for level, count in (
            ("Topic", throttles.topic_waits if throttles else 0),
            ("Subscription", throttles.subscription_waits.get(name, 0) if throttles else 0),
        )
        for unit in ("Msg", "Bytes")
    }


async def read_earliest(host: TopicHost, stats: dict[str, Any]) -> None:
    """Add when the first message of each backlog was published. Raises StorageError."""
    times = []
    for name, found in list(host.subscriptions.items()):
        if found.core.backlog and name in stats["subscriptions"]:
            cursor = found.core.cursor
            published_ms = await publish_ms_of(host, cursor.mark_delete) or 0
            stats["subscriptions"][name]["earliestMsgPublishTimeInBacklog"] = published_ms
            times.append(published_ms)
    stats["earliestMsgPublishTimeInBacklogs"] = min(times, default=0)


def internal_stats(host: TopicHost) -> dict[str, Any]:
    """PersistentTopicInternalStats of a topic served here."""
    core, last = host.core, host.core.last_confirmed
    core.age(elapsed_ms(host.context.clock))
    ledgers = _ledgers(core)
    return {
        "entriesAddedCounter": core.ledgers.end,
        "numberOfEntries": core.ledgers.end - core.ledgers.first,
        "totalSize": core.ages.bytes_from(core.ledgers.first, core.ledgers.end),
        "currentLedgerEntries": core.next_entry,
        "currentLedgerSize": ledgers[-1]["size"] if ledgers[-1]["ledgerId"] == core.ledger else 0,
        "waitingCursorsCount": sum(
            1 for found in host.subscriptions.values() if found.core.connected
        ),
        "pendingAddEntriesCount": core.unconfirmed,
        "lastConfirmedEntry": text_of(last),
        "state": "Terminated" if core.terminated is not None else "LedgerOpened",
        "lastLedgerCreatedTimestamp": iso8601(core.created_ms),
        "ledgers": ledgers,
        "cursors": {name: _cursor_stats(found) for name, found in host.subscriptions.items()},
        "schemaLedgers": [],
        "compactedLedger": _compacted_ledger(host),
        "properties": {
            name: value
            for name, value in core.properties.items()
            if not name.startswith(KEPT_PREFIX)
        },
    }


def internal_info(host: TopicHost) -> dict[str, Any]:
    """ManagedLedgerInfo of a topic served here, without times of changes, which are not kept."""
    core = host.core
    found: dict[str, Any] = {
        "version": 1,
        "creationDate": iso8601(core.created_ms),
        "ledgers": [
            {
                "ledgerId": ledger["ledgerId"],
                "entries": ledger["entries"],
                "size": ledger["size"],
                "isOffloaded": False,
            }
            for ledger in _ledgers(core)
        ],
        "cursors": {
            name: {
                "version": 0,
                "cursorsLedgerId": -1,
                "markDelete": _place(subscription.core.cursor.mark_delete_position),
            }
            for name, subscription in host.subscriptions.items()
        },
    }
    if core.terminated is not None:
        found["terminatedPosition"] = _place(core.terminated)
    return found


def _place(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger, "entryId": position.entry}


def message_id(position: Position, partition: int) -> dict[str, Any]:
    """MessageIdImpl of an entry."""
    return {**_place(position), "partitionIndex": partition, "batchSize": 0, "batchIndex": -1}


def _ledgers(core: Topic) -> list[dict[str, Any]]:
    """LedgerInfo of each ledger that has entries, of the last one if none has. Bytes are estimated
    where a ledger ends between two marks of age; together they are those of the topic."""
    table, found, begin = core.ledgers, [], core.ledgers.first
    for ledger, first, last in table.runs(table.first, table.end):
        end = begin + last + 1 - first
        size = core.ages.bytes_from(begin, table.end) - core.ages.bytes_from(end, table.end)
        found.append({**EMPTY_LEDGER, "ledgerId": ledger, "entries": last + 1, "size": size})
        begin = end
    if not found:
        ledger, count = (table.ledgers() or [(core.last_confirmed.ledger, 0)])[-1]
        found.append({**EMPTY_LEDGER, "ledgerId": ledger, "entries": count})
    return found


def _cursor_stats(host: SubscriptionHost) -> dict[str, Any]:
    cursor, ledgers = host.core.cursor, host.topic.core.ledgers
    mark = cursor.mark_delete_position
    ranges = host.core.to_state().ranges if cursor.range_count <= 1000 else ()
    return {
        "markDeletePosition": text_of(mark),
        "readPosition": text_of(
            ledgers.position(cursor.mark_delete)
            if cursor.mark_delete < cursor.end
            else Position(mark.ledger, mark.entry + 1)
        ),
        "waitingReadOp": host.core.connected and cursor.backlog == 0,
        "pendingReadOps": 0,
        "messagesConsumedCounter": cursor.mark_delete,
        "individuallyDeletedMessages": "["
        + ",".join(f"({ledger}:{low - 1}..{ledger}:{high}]" for ledger, low, high in ranges)
        + "]",
        "state": "Open",
        "active": host.core.connected,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "lastLedgerSwitchTimestamp": iso8601(host.topic.core.created_ms),
        "subscriptionHavePendingRead": host.core.connected and cursor.backlog == 0,
        "subscriptionHavePendingReplayRead": False,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.end - cursor.mark_delete,
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "properties": {},
    }
