"""What only the owner of a bundle knows about it.

Owns: the owner's share of an explanation: since when, how far its log is, the topic's ledgers and
cursors, which topics and subscriptions keep which log files. Imports: topics, storage formats,
names. Invariants: only memory is read, and the indexes of at most FILES_MAX log files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.administration.statistics import text_of
from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.names import BundleName, TopicName
from magnetar.topics.ledger_ids import epoch_of
from magnetar.topics.ledgers import Position

if TYPE_CHECKING:
    from magnetar.broker.incarnation import Broker

LEDGERS_MAX = 50
SUBSCRIPTIONS_MAX = 50
PINS_MAX = 10


def owned_facts(broker: Broker, name: BundleName, topic: TopicName | None) -> dict[str, Any]:
    """What this broker knows of a bundle; `serving`: whether it serves it now."""
    owned = broker.ownership.owned.get(str(name))
    position = broker.context.log.position
    damage = [found for found in broker.context.damage.listed() if found["bundle"] == str(name)]
    facts: dict[str, Any] = {
        "broker": broker.context.broker,
        "incarnation": broker.incarnation,
        "serving": owned is not None and owned.serving,
        "log_position": {"file": position.file, "offset": position.offset},
        "damage": damage,
        "since_ms": None,
        "topics": 0,
        "topic": None,
        "pins": [],
    }
    if owned is None:
        return facts
    host = owned.topics.get(str(topic)) if topic is not None else None
    pins = sorted(filter(None, map(_pin, owned.topics.values())), key=lambda pin: -pin["bytes"])
    return {
        **facts,
        "since_ms": owned.since_ms,
        "topics": len(owned.topics),
        "topic": topic_facts(host) if host is not None else _unstored(owned, topic),
        "pins": pins[:PINS_MAX],
    }


def _unstored(owned: OwnedBundle, topic: TopicName | None) -> dict[str, Any] | None:
    """A non-persistent topic has clients only."""
    found = owned.held(topic) if topic is not None and not topic.persistent else None
    return (
        {"stored": False, "producers": len(found.core.producers), "subscriptions": []}
        if found is not None
        else None
    )


def topic_facts(host: TopicHost) -> dict[str, Any]:
    """A topic's ledgers, and where its cursors are."""
    core = host.core
    ledgers = core.ledgers.ledgers()
    subscriptions = []
    for name, found in sorted(host.subscriptions.items())[:SUBSCRIPTIONS_MAX]:
        cursor = found.core.cursor
        subscriptions.append(
            {
                "name": name,
                "durable": found.core.durable,
                "mark_delete": text_of(cursor.mark_delete_position),
                "backlog": found.core.backlog,
                "behind_bytes": core.ages.bytes_from(cursor.mark_delete, cursor.end),
                "ranges": cursor.range_count,
                "consumers": len(found.core.consumers),
                "held": _held(found),
            }
        )
    return {
        "stored": True,
        "created_ms": core.created_ms,
        "entries": core.ledgers.end - core.ledgers.first,
        "bytes": core.ages.bytes_from(core.ledgers.first, core.ledgers.end),
        "last_confirmed": text_of(core.last_confirmed),
        "next": text_of(Position(core.ledger, core.next_entry)) if core.ledger >= 0 else "",
        "terminated": core.terminated is not None,
        "ledgers": [
            {"ledger": ledger, "epoch": epoch_of(ledger), "entries": count}
            for ledger, count in ledgers[-LEDGERS_MAX:]
        ],
        "ledgers_before": max(0, len(ledgers) - LEDGERS_MAX),
        "producers": len(core.producers),
        "subscriptions": subscriptions,
        "subscriptions_total": len(host.subscriptions),
        "pin": _pin(host),
    }


def _pin(host: TopicHost) -> dict[str, Any] | None:
    """What keeps a topic's entries: its slowest subscription, or, in front of that, retention.
    None if it has none."""
    core = host.core
    first, end = core.ledgers.first, core.ledgers.end
    if first >= end:
        return None
    durable = [found.core for found in host.subscriptions.values() if found.core.durable]
    slowest = min(durable, key=lambda found: found.cursor.mark_delete, default=None)
    read = slowest.cursor.mark_delete if slowest is not None else end
    return {
        "topic": str(host.name),
        "bytes": core.ages.bytes_from(first, end),
        "entries": end - first,
        "oldest": text_of(core.ledgers.position(first)),
        "subscription": slowest.name if slowest is not None and read < end else None,
        "waiting_entries": max(0, end - max(read, first)),
        "held": _held(host.subscriptions[slowest.name])
        if slowest is not None and read < end
        else None,
        "retained_entries": max(0, min(read, end) - first),
    }


def _held(host: SubscriptionHost) -> dict[str, Any] | None:
    """What open transactions hold on a subscription: no consumer gets it until they end. None if
    they hold nothing."""
    view, used = host.core.deferred, host.topic.transactions
    if view is None or used is None:
        return None
    transactions = used.pending[host.core.name].open_transactions()
    return {
        "entries": view.deferred_entries,
        "transactions": len(transactions),
        "longest": str(transactions[0]),
    }
