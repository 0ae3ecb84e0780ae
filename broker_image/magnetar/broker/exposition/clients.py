"""Metrics of single consumers and producers, by Pulsar's names.

Owns: the names, and how each is read. Imports: sessions, sheet. Invariants: as of `topics`; there
are none unless the settings name consumers, or producers.
"""

from __future__ import annotations

from magnetar.broker.commands.sessions import ConsumerSession, ProducerSession
from magnetar.broker.commands.statistics import ConsumerRates
from magnetar.broker.exposition.sheet import Family


class ReadConsumer:
    """A consumer at the time of a scrape."""

    __slots__ = ("core", "rates")

    def __init__(self, session: ConsumerSession, rates: ConsumerRates) -> None:
        self.core, self.rates = session.subscription.core.consumers[session], rates


class ReadProducer:
    """A producer at the time of a scrape."""

    __slots__ = ("rates", "session")

    def __init__(self, session: ProducerSession) -> None:
        self.session, self.rates = session, session.rates()


CONSUMER_FAMILIES: tuple[Family[ReadConsumer], ...] = (
    Family("pulsar_consumer_msg_rate_out", "Messages per second", lambda c: c.rates.messages_out),
    Family("pulsar_consumer_msg_throughput_out", "Bytes per second", lambda c: c.rates.bytes_out),
    Family(
        "pulsar_consumer_msg_rate_redeliver",
        "Messages delivered again, per second",
        lambda c: c.rates.redelivered,
    ),
    Family(
        "pulsar_consumer_unacked_messages",
        "Messages delivered and not acknowledged (Shared and Key_Shared; else 0)",
        lambda c: c.core.unacknowledged,
    ),
    Family(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 while it gets nothing, because too much is unacknowledged",
        lambda c: c.core.blocked,
    ),
    Family(
        "pulsar_consumer_available_permits", "Messages that it may get", lambda c: c.core.permits
    ),
)
PRODUCER_FAMILIES: tuple[Family[ReadProducer], ...] = (
    Family("pulsar_producer_msg_rate_in", "Messages per second", lambda p: p.rates.messages),
    Family("pulsar_producer_msg_throughput_in", "Bytes per second", lambda p: p.rates.bytes),
    Family(
        "pulsar_producer_msg_average_Size",
        "Bytes of its messages since it connected, on average",
        lambda p: p.session.bytes_in / p.session.messages_in if p.session.messages_in else 0.0,
    ),
)
