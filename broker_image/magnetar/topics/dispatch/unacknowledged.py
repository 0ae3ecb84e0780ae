"""Limits on unacknowledged messages.

Owns: `Unacknowledged`, how many messages the consumers of a subscription hold, and the blocks that
follow from it. Imports: base. Pure. Source: Pulsar's limits per consumer and per subscription.
Invariants: a count at its limit blocks delivery, and at half of it delivery goes on; a limit of 0
never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magnetar.topics.dispatch.base import Consumer, DispatchLimits

_UNLIMITED = 1 << 62


class Unacknowledged:
    """Messages delivered and neither acknowledged nor given back: `messages` of the subscription,
    whose delivery is `blocked`; those of a consumer are in the consumer."""

    __slots__ = ("_limits", "_unblocked", "blocked", "messages")

    def __init__(self, limits: DispatchLimits, unblocked: Callable[[Consumer], None]) -> None:
        """`unblocked` is called with each consumer whose block is lifted."""
        self._limits = limits
        self._unblocked = unblocked
        self.messages = 0
        self.blocked = False

    @property
    def room(self) -> int:
        """How many messages the subscription may be given; the last entry may exceed it."""
        limit = self._limits.unacknowledged_per_subscription_messages_max
        return limit - self.messages if limit > 0 else _UNLIMITED

    def hold(self, consumer: Consumer, messages: int) -> None:
        """So many messages go to the consumer."""
        limits = self._limits
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.unacknowledged += messages
        self.messages += messages
        if 0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged:
            consumer.blocked = True
        if 0 < limits.unacknowledged_per_subscription_messages_max <= self.messages:
            self.blocked = True

    def release(self, consumer: Consumer, messages: int) -> bool:
        """The consumer holds so many messages less; True if a block was lifted."""
        limits = self._limits
        consumer.unacknowledged -= messages
        self.messages -= messages
        unblocked = False
        if (
            consumer.blocked
            and consumer.unacknowledged <= limits.unacknowledged_per_consumer_messages_max // 2
        ):
            consumer.blocked, unblocked = False, True
            self._unblocked(consumer)
        if (
            self.blocked
            and self.messages <= limits.unacknowledged_per_subscription_messages_max // 2
        ):
            self.blocked, unblocked = False, True
        return unblocked

    def limit(self, limits: DispatchLimits, consumers: Iterable[Consumer]) -> None:
        """Apply other limits; `unblocked` is called with each consumer."""
        self._limits = limits
        for consumer in consumers:
            consumer.blocked = (
                0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged
            )
            self._unblocked(consumer)
        self.blocked = 0 < limits.unacknowledged_per_subscription_messages_max <= self.messages

    def clear(self, consumers: Iterable[Consumer]) -> None:
        """Drop all counts, and the consumers' permits."""
        self.messages, self.blocked = 0, False
        for consumer in consumers:
            consumer.permits, consumer.unacknowledged, consumer.blocked = 0, 0, False
