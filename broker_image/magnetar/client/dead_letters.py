"""Messages that cannot be processed.

Owns: publishing them to the dead-letter topic of a subscription. Imports: messages, producer,
redelivery. Source: Pulsar's protocol: dead letters are the client's affair; property names are
those of the Java client. Invariant: there is one producer, made with the first dead letter; if
making it fails, or it is refused permanently (its topic may be deleted and made again), the next
dead letter makes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.client.messages import Message
from magnetar.client.producer import Producer
from magnetar.client.redelivery import DeadLetterPolicy

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class DeadLetters:
    """The dead-letter topic of one subscription."""

    def __init__(
        self,
        policy: DeadLetterPolicy,
        topic: str,
        subscription: str,
        open_producer: Callable[[str, str | None], Awaitable[Producer]],
    ) -> None:
        self.redeliveries_max = policy.redeliveries_max
        self.topic = policy.topic or f"{topic}-{subscription}-DLQ"
        self._initial_subscription = policy.initial_subscription
        self._open_producer = open_producer
        self._opening = asyncio.Lock()
        self._producer: Producer | None = None

    async def publish(self, message: Message[Any]) -> None:
        """Publish one message and wait until it is durable. Raises what the producer raises."""
        async with self._opening:
            if self._producer is not None and self._producer.failure is not None:
                await self.close()
            if self._producer is None:
                self._producer = await self._open_producer(self.topic, self._initial_subscription)
        properties = {
            **message.properties,
            REAL_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: str(message.id),
        }
        await self._producer.send(
            None if message.null_value else message.data,
            key=message.key,
            ordering_key=message.ordering_key,
            properties=properties,
            event_time=message.event_time_ms,
        )

    async def close(self) -> None:
        """Leave the topic; idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
