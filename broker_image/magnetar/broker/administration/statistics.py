"""What REST shows of a topic.

Owns: the JSON of `stats`, `internalStats` and their sums over partitions. Imports: topics, names.
Source: Pulsar's TopicStats and PersistentTopicInternalStats: the fields that clients and suites
read. Invariants: reading statistics touches no storage; a field that this broker does not measure
is absent or 0, never invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar.broker.commands.sessions import ConsumerSession, ProducerSession
from magnetar.broker.commands.statistics import consumer_rates
from magnetar.broker.topics.compaction_state import CompactionState
from magnetar.broker.topics.rates import topic_rates
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import elapsed_ms, iso8601
from magnetar.topics.dispatch.base import Consumer, SubscriptionType
from magnetar.topics.ledgers import Position
from magnetar.topics.producers import Producer

TYPE_NAMES: Mapping[SubscriptionType, str] = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
TOPIC_RATES = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
RATES = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate")
"""Of a subscription: the sums over its consumers."""
SUMMED = frozenset(
    {
        *TOPIC_RATES,
        *RATES,
        "msgDelayed",
        "msgInCounter",
        "bytesInCounter",
        "msgOutCounter",
        "bytesOutCounter",
        "storageSize",
        "backlogSize",
        "msgBacklog",
        "unackedMessages",
    }
)


def text_of(position: Position) -> str:
    """A position as Pulsar writes it in statistics."""
    return f"{position.ledger}:{position.entry}"


def topic_stats(host: TopicHost) -> dict[str, Any]:
    """TopicStats of a topic served here."""
    core, counters = host.core, host.core.counters
    core.age(elapsed_ms(host.context.clock))
    subscriptions = {name: _subscription_stats(found) for name, found in host.subscriptions.items()}
    return {
        **_topic_rates(host),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        "msgInCounter": counters.messages_in,
        "bytesInCounter": counters.bytes_in,
        "msgOutCounter": counters.messages_out,
        "bytesOutCounter": counters.bytes_out,
        "storageSize": core.ages.bytes_from(core.ledgers.first, core.ledgers.end),
        "backlogSize": max((found["backlogSize"] for found in subscriptions.values()), default=0),
        "publishers": [
            _publisher_stats(name, found) for name, found in core.producers.by_name.items()
        ],
        "subscriptions": subscriptions,
        "waitingPublishers": 0,
        "replication": {},
        "compaction": compaction_stats(host),
        "deduplicationStatus": "Enabled" if host.policies.deduplication_enabled else "Disabled",
        "ownerBroker": host.context.http_url.removeprefix("http://"),
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


def _topic_rates(host: TopicHost) -> dict[str, float]:
    return dict(zip(TOPIC_RATES, topic_rates(host), strict=False))


def _publisher_stats(name: str, producer: Producer) -> dict[str, Any]:
    session = producer.handle
    assert isinstance(session, ProducerSession)
    connection = session.connection
    return {
        "producerName": name,
        "producerId": producer.producer_id,
        "epoch": producer.epoch,
        "address": str(connection.peer),
        "clientVersion": connection.client_version,
    }


def _consumer_stats(session: ConsumerSession, consumer: Consumer) -> dict[str, Any]:
    rates = consumer_rates(session)
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacknowledged,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": session.bytes_out,
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
        "msgRateRedeliver": rates.redelivered,
        "messageAckRate": rates.acknowledged,
        "address": str(session.connection.peer),
        "clientVersion": session.connection.client_version,
        "connectedSince": iso8601(session.connected_ms),
    }


def _subscription_stats(host: SubscriptionHost) -> dict[str, Any]:
    core = host.core
    hashes = core.hash_ranges()
    consumers = [
        _consumer_stats(session, consumer)
        | (
            {"keyHashRanges": [f"[{start}, {end}]" for start, end in hashes[session]]}
            if session in hashes
            else {}
        )
        for session, consumer in core.consumers.items()
        if isinstance(session, ConsumerSession)
    ]
    return {
        **{rate: sum(found[rate] for found in consumers) for rate in RATES},
        "msgBacklog": core.backlog,
        "msgDelayed": core.delayed_entries,
        "blockedSubscriptionOnUnackedMsgs": core.blocked,
        "backlogSize": host.topic.core.ages.bytes_from(core.cursor.mark_delete, core.cursor.end),
        "unackedMessages": core.unacknowledged,
        "type": TYPE_NAMES[core.kind] if core.kind is not None else "",
        "isDurable": core.durable,
        "msgOutCounter": core.messages_out,
        "totalMsgExpired": host.messages_expired,
        "nonContiguousDeletedMessagesRanges": core.cursor.range_count,
        "subscriptionProperties": dict(core.properties),
        "activeConsumerName": core.active.name if core.active is not None else "",
        "consumers": consumers,
    }


def internal_stats(host: TopicHost) -> dict[str, Any]:
    """PersistentTopicInternalStats of a topic served here."""
    core = host.core
    ledgers = core.ledgers.ledgers()
    last = core.last_confirmed
    return {
        "entriesAddedCounter": core.ledgers.end,
        "numberOfEntries": core.ledgers.end - core.ledgers.first,
        "totalSize": core.ages.bytes_from(core.ledgers.first, core.ledgers.end),
        "currentLedgerEntries": core.next_entry,
        "currentLedgerSize": 0,
        "waitingCursorsCount": sum(
            1 for found in host.subscriptions.values() if found.core.connected
        ),
        "pendingAddEntriesCount": core.unconfirmed,
        "lastConfirmedEntry": text_of(last),
        "state": "Terminated" if core.terminated is not None else "LedgerOpened",
        "ledgers": [
            {"ledgerId": ledger, "entries": count, "size": 0, "offloaded": False}
            for ledger, count in ledgers
        ],
        "cursors": {name: _cursor_stats(found) for name, found in host.subscriptions.items()},
        "schemaLedgers": [],
        "compactedLedger": _compacted_ledger(host),
        "properties": dict(core.properties),
    }


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
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.end - cursor.mark_delete,
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "properties": {},
    }


def sum_stats(stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several partitions as those of one topic: counters added up, publishers
    and consumers together."""
    total: dict[str, Any] = {
        **dict.fromkeys(
            ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize"), 0
        )
    }
    total |= {"backlogSize": 0, "publishers": [], "subscriptions": {}}
    for one in stats:
        for name in SUMMED & one.keys():
            total[name] = total.get(name, 0) + one[name]
        total["publishers"] += one["publishers"]
        for name, found in one["subscriptions"].items():
            known = total["subscriptions"].setdefault(
                name, {**found, **dict.fromkeys(SUMMED & found.keys(), 0), "consumers": []}
            )
            for counter in SUMMED & found.keys():
                known[counter] += found[counter]
            known["consumers"] = known["consumers"] + found["consumers"]
    return total
