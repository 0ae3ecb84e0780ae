"""What an application has and has not acknowledged.

Owns: the timer behind negative acknowledgements and acknowledgement timeouts, and sending dead letters. Imports: redelivery, dead_letters, asyncio.
Invariants: a dead letter is acknowledged only after it is durable in its topic; if that fails it is tried, or delivered, again; of a batch only what
was refused or not acknowledged in time is given up, the rest stays where it is; what is delivered again anyway (after a reconnect or a seek) is not
asked for a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import structlog

from magnetar.client.dead_letters import DeadLetters
from magnetar.client.messages import Message, MessageId
from magnetar.client.redelivery import Schedule
from magnetar.client.subscription_options import ConsumerOptions
from magnetar.errors import MagnetarError
from magnetar.wire.commands import Position

_log = structlog.get_logger()


class Actions(NamedTuple):
    """What the tracker has its consumer do."""

    redeliver: Callable[[Sequence[Position]], None]
    acknowledge: Callable[[MessageId], Awaitable[None]]
    settle: Callable[[Position], Awaitable[None]]
    """Acknowledge an entry whose messages are all dealt with."""


class _LastChances:
    """The messages of an entry that the application has for the last time; which of them it has refused."""

    __slots__ = ("messages", "refused")

    def __init__(self) -> None:
        self.messages: dict[int, Message[Any]] = {}
        self.refused: set[int] = set()

    def take_lost(self) -> list[Message[Any]]:
        """Those refused; if none is, their time is over, and all are lost."""
        lost = [self.messages.pop(index) for index in sorted(self.refused or self.messages) if index in self.messages]
        self.refused.clear()
        return lost


class Unacknowledged:
    """The messages that one partition's application holds."""

    def __init__(self, topic: str, options: ConsumerOptions, dead_letters: DeadLetters | None, actions: Actions) -> None:
        self._topic = topic
        self._options = options
        self._dead_letters = dead_letters
        self._actions = actions
        self._loop = asyncio.get_running_loop()
        self._schedule = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._last_chances: dict[Position, _LastChances] = {}
        self._burying: set[asyncio.Task[None]] = set()

    # --- what the application does

    def taken(self, message: Message[Any]) -> None:
        """The application has a message."""
        position = message.id.position
        if self._dead_letters is not None and message.redelivery_count >= self._dead_letters.redeliveries_max:
            self._last_chances.setdefault(position, _LastChances()).messages[message.id.batch_index] = message
        if self._options.ack_timeout_s is not None:
            self._put(position, self._options.ack_timeout_s)

    def refuse(self, message_id: MessageId, redeliveries: int) -> None:
        """A negative acknowledgement of a message."""
        position = message_id.position
        if (chances := self._last_chances.get(position)) is not None:
            chances.refused.add(message_id.batch_index)
        backoff = self._options.negative_ack_backoff
        self._put(position, self._options.negative_ack_delay_s if backoff is None else backoff.delay_s(redeliveries))

    def acknowledged(self, message_id: MessageId, *, whole_entry: bool) -> None:
        """A message is acknowledged, and perhaps with it its entry."""
        position = message_id.position
        if whole_entry:
            self._schedule.discard(position)
            self._last_chances.pop(position, None)
        elif (chances := self._last_chances.get(position)) is not None:
            chances.messages.pop(message_id.batch_index, None)
            chances.refused.discard(message_id.batch_index)

    def acknowledged_through(self, position: Position) -> None:
        """Everything up to an entry is acknowledged."""
        self._schedule.discard_through(position)

    def drop(self, positions: Sequence[Position]) -> None:
        """Entries are delivered again now."""
        for position in positions:
            self._schedule.discard(position)
            self._last_chances.pop(position, None)

    def forget(self) -> None:
        """Everything unacknowledged is delivered again."""
        self._schedule.clear()
        self._last_chances.clear()

    # --- dead letters

    def is_dead(self, messages: Sequence[Message[Any]]) -> bool:
        """Whether messages of an entry that arrives have had their last chance."""
        return (
            bool(messages) and self._dead_letters is not None and messages[0].redelivery_count > self._dead_letters.redeliveries_max
        )

    def bury(self, position: Position, messages: Sequence[Message[Any]]) -> None:
        """Publish all messages that are left of an entry as dead letters, then acknowledge it."""
        self._begin(self._bury(position, messages, whole_entry=True))

    def _begin(self, burying: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(burying)
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury(self, position: Position, messages: Sequence[Message[Any]], *, whole_entry: bool) -> None:
        assert self._dead_letters is not None, "only a policy condemns"
        left = list(messages)
        try:
            while left:
                await self._dead_letters.publish(left[0])
                if not whole_entry:
                    await self._actions.acknowledge(left[0].id)
                del left[0]
            if whole_entry:
                await self._actions.settle(position)
        except MagnetarError as failure:
            _log.warning(
                "dead_letter_failed",
                topic=self._topic,
                position=position,
                dead_letters=self._dead_letters.topic,
                reason=str(failure),
            )
            if not whole_entry:
                chances = self._last_chances.setdefault(position, _LastChances())
                for message in left:
                    chances.messages[message.id.batch_index] = message
                    chances.refused.add(message.id.batch_index)
            self._put(position, self._options.negative_ack_delay_s)

    async def close(self) -> None:
        """Stop the timer, and give up dead letters on their way: they are delivered again."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._burying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the timer

    def _put(self, position: Position, delay_s: float) -> None:
        self._schedule.put(position, self._loop.time() + delay_s)
        self._arm()

    def _arm(self) -> None:
        moment = self._schedule.next()
        if self._timer is not None:
            if moment is not None and moment >= self._timer.when():
                return  # it looks again when it fires
            self._timer.cancel()
        self._timer = None if moment is None else self._loop.call_at(moment, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        again = []
        for position in self._schedule.take(self._loop.time()):
            chances = self._last_chances.get(position)
            if chances is None:
                again.append(position)
                continue
            if lost := chances.take_lost():
                self._begin(self._bury(position, lost, whole_entry=False))
            if not chances.messages:
                del self._last_chances[position]
            elif self._options.ack_timeout_s is not None:
                self._put(position, self._options.ack_timeout_s)
        if again:
            self._actions.redeliver(again)
        self._arm()
