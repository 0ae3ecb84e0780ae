"""How a consumer subscribes.

Owns: the options of subscriptions and their limits. Imports: messages, redelivery, schemas.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.client.messages import MessageId
from magnetar.client.redelivery import DeadLetterPolicy, RedeliveryBackoff
from magnetar.client.schemas import BYTES, Schema
from magnetar.errors import InvalidRequest, InvalidSubscriptionName

RECEIVE_QUEUE_MESSAGES_MAX = 1000
NEGATIVE_ACK_DELAY_S = 60.0


class SubscriptionType(enum.Enum):
    """How consumers of a subscription share its messages."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class InitialPosition(enum.Enum):
    """Where a new subscription starts."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer subscribes. `start` is for readers (durable False): where to begin,
    `start_inclusive` with that message.

    Unconfirmed acknowledgements wait up to `ack_group_s` for others (0: until the end of this turn
    of the loop). What is not acknowledged `ack_timeout_s` after it was received is delivered again.
    `negative_ack_backoff` takes the place of `negative_ack_delay_s`. `topic_in_ids`: ids of
    messages name their topic. `watermarks`: the broker sends them.
    """

    subscription: str
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE
    initial_position: InitialPosition = InitialPosition.LATEST
    receiver_queue: int = RECEIVE_QUEUE_MESSAGES_MAX
    name: str | None = None
    priority_level: int = 0
    read_compacted: bool = False
    durable: bool = True
    start: MessageId | None = None
    start_inclusive: bool = False
    negative_ack_delay_s: float = NEGATIVE_ACK_DELAY_S
    negative_ack_backoff: RedeliveryBackoff | None = None
    ack_timeout_s: float | None = None
    ack_group_s: float = 0
    dead_letter: DeadLetterPolicy | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema[Any] = BYTES
    topic_in_ids: bool = False
    watermarks: bool = False

    def __post_init__(self) -> None:
        if not self.subscription.strip():
            raise InvalidSubscriptionName(f"subscription is {self.subscription!r}; name it")
        for name in ("negative_ack_delay_s", "ack_group_s"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.receiver_queue < 1:
            raise InvalidRequest(
                f"receiver_queue is {self.receiver_queue}; it must be at least 1 message"
            )
        if self.ack_timeout_s is not None and self.ack_timeout_s <= 0:
            raise InvalidRequest(
                f"ack_timeout_s is {self.ack_timeout_s}; it must be above 0, or None to wait for "
                "ever"
            )
        if self.dead_letter is not None and not self.one_by_one:
            raise InvalidRequest(
                "a dead-letter policy needs a Shared or Key_Shared subscription, not "
                f"{self.kind.value}"
            )

    @property
    def one_by_one(self) -> bool:
        """Whether the broker redelivers single messages (else it rewinds to the first
        unacknowledged one)."""
        return self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
