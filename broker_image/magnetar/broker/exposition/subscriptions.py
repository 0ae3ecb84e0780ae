"""Metrics of a subscription, by Pulsar's names, and its watermark.

Owns: the names, and how each is read. Imports: topics, watermarks, sheet. Invariants: as of
`topics`.
"""

from __future__ import annotations

from magnetar.broker.commands.sessions import ConsumerSession
from magnetar.broker.commands.statistics import ConsumerRates, consumer_rates
from magnetar.broker.exposition.sheet import ABSENT, Family
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.watermarks.followed import Followed
from magnetar.clock import elapsed_ms


class ReadSubscription:
    """A subscription at the time of a scrape. `consumers` are its sessions with their rates."""

    __slots__ = ("backlog_age_s", "backlog_bytes", "consumers", "core", "followed", "host", "rates")

    def __init__(self, host: SubscriptionHost, followed: Followed | None) -> None:
        self.host, self.core, self.followed = host, host.core, followed
        topic, cursor = host.topic.core, host.core.cursor
        self.backlog_bytes, self.backlog_age_s = 0, 0.0
        if cursor.mark_delete < cursor.end:
            now_ms = elapsed_ms(host.topic.context.clock)
            self.backlog_bytes = topic.ages.bytes_from(cursor.mark_delete, cursor.end)
            self.backlog_age_s = topic.ages.waited_ms(cursor.mark_delete, now_ms) / 1000
        self.consumers = [
            (session, consumer_rates(session))
            for session in self.core.consumers
            if isinstance(session, ConsumerSession)
        ]
        self.rates: ConsumerRates = _sum_of([rates for _, rates in self.consumers])

    def watermark_lag_s(self) -> float:
        watermark_ms = self.followed.watermark_ms if self.followed is not None else None
        if watermark_ms is None:
            return ABSENT
        return (self.host.topic.context.clock.wall_ms() - watermark_ms) / 1000


def _sum_of(rates: list[ConsumerRates]) -> ConsumerRates:
    return ConsumerRates(*map(sum, zip(*rates, strict=True))) if rates else NO_RATES


NO_RATES = ConsumerRates(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SUBSCRIPTION_FAMILIES: tuple[Family[ReadSubscription], ...] = (
    Family("pulsar_subscription_back_log", "Entries not acknowledged", lambda s: s.core.backlog),
    Family(
        "pulsar_subscription_back_log_no_delayed",
        "Entries not acknowledged, without those that wait for their time",
        lambda s: s.core.backlog - s.core.postponed.delayed,
    ),
    Family(
        "pulsar_subscription_delayed",
        "Entries that were read and wait for their time",
        lambda s: s.core.postponed.delayed,
    ),
    Family(
        "pulsar_subscription_in_replay",
        "Entries that were read before and are to be delivered again",
        lambda s: s.core.postponed.replayed,
    ),
    Family(
        "pulsar_subscription_msg_rate_out",
        "Messages delivered per second",
        lambda s: s.rates.messages_out,
    ),
    Family(
        "pulsar_subscription_msg_throughput_out",
        "Bytes delivered per second",
        lambda s: s.rates.bytes_out,
    ),
    Family(
        "pulsar_subscription_msg_rate_redeliver",
        "Messages delivered again, per second",
        lambda s: s.rates.redelivered,
    ),
    Family(
        "pulsar_subscription_msg_ack_rate",
        "Messages acknowledged per second",
        lambda s: s.rates.acknowledged,
    ),
    Family(
        "pulsar_subscription_unacked_messages",
        "Messages delivered and not acknowledged (Shared and Key_Shared; else 0)",
        lambda s: s.core.unacknowledged,
    ),
    Family(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while no consumer gets anything, because too much is unacknowledged",
        lambda s: s.core.blocked,
    ),
    Family(
        "pulsar_subscription_consumers_count",
        "Consumers that are connected",
        lambda s: len(s.core.consumers),
    ),
    Family(
        "pulsar_subscription_total_msg_expired",
        "Messages that expired since the topic is served here",
        lambda s: s.host.traffic.messages_expired,
    ),
    Family(
        "pulsar_subscription_msg_rate_expired",
        "Messages that expire per second",
        lambda s: s.host.traffic.expiry_rate(),
    ),
    Family(
        "pulsar_subscription_msg_drop_rate",
        "Messages of a topic without storage that find no consumer with permits, per second",
        lambda s: s.host.traffic.drop_rate(),
    ),
    Family(
        "pulsar_subscription_last_expire_timestamp",
        "When messages last expired, unix time in ms; 0 = never here",
        lambda s: s.host.traffic.expired_ms,
    ),
    Family(
        "pulsar_subscription_last_consumed_flow_timestamp",
        "When a consumer last asked for messages, unix time in ms; 0 = never here",
        lambda s: max([s.host.traffic.flow_ms, *(one.flow_ms for one, _ in s.consumers)]),
    ),
    Family(
        "pulsar_subscription_last_consumed_timestamp",
        "When a consumer was last sent messages, the same",
        lambda s: max([s.host.traffic.sent_ms, *(one.sent_ms for one, _ in s.consumers)]),
    ),
    Family(
        "pulsar_subscription_last_acked_timestamp",
        "When a consumer last acknowledged messages, the same",
        lambda s: s.host.traffic.acknowledged_ms,
    ),
    Family(
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "When the acknowledged beginning last became longer, the same",
        lambda s: s.host.traffic.advanced_ms,
    ),
    Family(
        "magnetar_subscription_backlog_age_seconds",
        "Lag by time: age of the oldest entry that is not acknowledged, 0 without one",
        lambda s: s.backlog_age_s,
    ),
    Family(
        "magnetar_subscription_watermark_lag_seconds",
        "By how much the watermark of a subscription is behind the clock; absent without one",
        ReadSubscription.watermark_lag_s,
    ),
)
