"""Producers and consumers of one connection.

Owns: `ProducerSession` and `ConsumerSession`: what binds a client's numeric id on a connection to a topic. Imports: wire builders.
Invariants: a session belongs to one connection and one topic; a closed session sends nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.wire import commands, runs

if TYPE_CHECKING:
    from magnetar.server.connection import Connection
    from magnetar.server.subscription_host import SubscriptionHost
    from magnetar.server.topic_host import TopicHost

ACTIVE_CONSUMER_CHANGE_SINCE = 12
"""Protocol version."""


class ProducerSession:
    """One producer. `pending` counts entries whose receipt is not out yet."""

    __slots__ = ("closed", "connection", "encoded_name", "epoch", "name", "pending", "producer_id", "topic")

    def __init__(self, connection: Connection, producer_id: int, name: str, epoch: int, topic: TopicHost) -> None:
        self.connection, self.producer_id, self.name, self.epoch, self.topic = connection, producer_id, name, epoch, topic
        self.encoded_name = name.encode()
        self.pending = 0
        self.closed = False

    def durable(self, ledger: int, first_entry: int, sequences: Sequence[int], highest: Sequence[int] | None) -> None:
        """Entries first_entry.. are on stable storage under our claim: send their receipts, in order."""
        self.pending -= len(sequences)
        if not self.closed:
            self.connection.queue(runs.send_receipts(self.producer_id, ledger, first_entry, sequences, highest))

    def close_by_broker(self, service_url: str | None) -> None:
        """Tell the client to reconnect, at `service_url` if known (PIP-307)."""
        if not self.closed:
            self.closed = True
            self.connection.forget_producer(self)
            self.connection.queue(commands.close_producer(self.producer_id, service_url))


class ConsumerSession:
    """One consumer."""

    __slots__ = ("closed", "connection", "consumer_id", "name", "partition", "read_compacted", "sends_epoch", "subscription")

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        name: str,
        subscription: SubscriptionHost,
        *,
        read_compacted: bool,
        sends_epoch: bool,
    ) -> None:
        self.connection, self.consumer_id, self.name, self.subscription = connection, consumer_id, name, subscription
        self.partition = subscription.topic.partition
        self.read_compacted, self.sends_epoch = read_compacted, sends_epoch
        self.closed = False

    def close_by_broker(self, service_url: str | None) -> None:
        """Tell the client to reconnect, at `service_url` if known (PIP-307)."""
        if not self.closed:
            self.closed = True
            self.connection.forget_consumer(self)
            self.connection.queue(commands.close_consumer(self.consumer_id, service_url))

    def tell_active(self, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE, to a client that knows it."""
        if not self.closed and self.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_SINCE:
            self.connection.queue(commands.active_consumer_change(self.consumer_id, active=active))
