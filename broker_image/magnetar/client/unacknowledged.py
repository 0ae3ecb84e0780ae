"""Messages that an application has not acknowledged.

Owns: the timer behind negative acknowledgements and acknowledgement timeouts, and sending dead
letters. Imports: redelivery, dead_letters, asyncio. Invariants: a dead letter is acknowledged only
after it is durable in its topic; if that fails it is tried, or delivered, again; of a batch only
what was refused or not acknowledged in time is given up, the rest stays where it is; what is
delivered again anyway (after a reconnect or a seek) is not requested again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from magnetar.client.dead_letters import DeadLetters
from magnetar.client.messages import Message, MessageId
from magnetar.client.redelivery import Schedule
from magnetar.client.subscription_options import ConsumerOptions
from magnetar.errors import MagnetarError
from magnetar.wire.commands import Position

LAST_CHANCES_MAX = 10_000
"""Entries whose last chance is remembered; of those beyond it a refusal has all that is left of
them delivered again, which is their end."""
BURIAL_RETRY_LEAST_S = 0.01
_log = logging.getLogger(__name__)


class Actions(NamedTuple):
    """What the tracker has its consumer do."""

    redeliver: Callable[[Sequence[Position]], None]
    acknowledge: Callable[[MessageId], Awaitable[None]]
    """Acknowledge a dead letter."""
    settle: Callable[[Position], Awaitable[None]]
    """Acknowledge an entry whose messages are all dealt with."""


class _LastChance:
    """An entry whose messages the application has for the last time: those it holds, those of
    them it has refused, and those that are, or are about to be, dead letters."""

    __slots__ = ("dead", "held", "refused")

    def __init__(self) -> None:
        self.held: dict[int, Message[Any]] = {}
        self.refused: set[int] = set()
        self.dead: set[int] = set()

    def refuse(self, index: int) -> bool:
        """False if no such message is held: it is acknowledged, dead, or a copy of one that
        waits. An index below 0 names the whole entry."""
        named = set(self.held) if index < 0 else {index} & self.held.keys()
        self.refused |= named
        return bool(named)

    def give_up(self) -> list[Message[Any]]:
        """Those refused; if none is, their time is over, and all are lost."""
        lost = sorted(self.refused or self.held)
        self.refused.clear()
        self.dead.update(lost)
        return [self.held.pop(index) for index in lost]

    def restore(self, messages: Iterable[Message[Any]]) -> None:
        """They could not be buried; those acknowledged since are not dead any more."""
        for message in messages:
            if (index := message.id.batch_index) in self.dead:
                self.dead.discard(index)
                self.held[index] = message
                self.refused.add(index)

    def acknowledged(self, index: int) -> None:
        self.held.pop(index, None)
        self.refused.discard(index)
        self.dead.discard(index)

    @property
    def over(self) -> bool:
        return not self.held and not self.dead


class Unacknowledged:
    """The messages that one partition's application holds."""

    def __init__(
        self,
        topic: str,
        options: ConsumerOptions,
        dead_letters: DeadLetters | None,
        actions: Actions,
    ) -> None:
        self._topic = topic
        self._options = options
        self._dead_letters = dead_letters
        self._actions = actions
        self._loop = asyncio.get_running_loop()
        self._schedule = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._last_chances: dict[Position, _LastChance] = {}
        self._burying: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- what the application does

    def taken(self, message: Message[Any]) -> None:
        position = message.id.position
        if (
            self._dead_letters is not None
            and message.redelivery_count >= self._dead_letters.redeliveries_max
        ):
            self._last_chances.setdefault(position, _LastChance()).held[message.id.batch_index] = (
                message
            )
            if len(self._last_chances) > LAST_CHANCES_MAX:
                del self._last_chances[next(iter(self._last_chances))]
        if self._options.ack_timeout_s is not None:
            self._put(position, self._options.ack_timeout_s)

    def refuse(self, message_id: MessageId, redeliveries: int) -> None:
        position = message_id.position
        chance = self._last_chances.get(position)
        if chance is not None and not chance.refuse(message_id.batch_index):
            return
        backoff = self._options.negative_ack_backoff
        self._put(
            position,
            self._options.negative_ack_delay_s
            if backoff is None
            else backoff.delay_s(redeliveries),
        )

    def acknowledged(self, message_id: MessageId, *, whole_entry: bool) -> None:
        """A message is acknowledged, and perhaps with it its entry."""
        position = message_id.position
        if whole_entry:
            self._schedule.discard(position)
            self._last_chances.pop(position, None)
        elif (chance := self._last_chances.get(position)) is not None:
            chance.acknowledged(message_id.batch_index)
            if chance.over:
                del self._last_chances[position]

    def acknowledged_through(self, position: Position) -> None:
        self._schedule.discard_through(position)

    def drop(self, positions: Sequence[Position]) -> None:
        """Entries are redelivered now."""
        for position in positions:
            self._schedule.discard(position)
            self._last_chances.pop(position, None)

    def forget(self) -> None:
        """Everything unacknowledged is redelivered."""
        self._schedule.clear()
        self._last_chances.clear()

    # --- dead letters

    def is_dead(self, messages: Sequence[Message[Any]]) -> bool:
        """Whether messages of an entry that arrives have had their last chance."""
        return (
            bool(messages)
            and self._dead_letters is not None
            and messages[0].redelivery_count > self._dead_letters.redeliveries_max
        )

    def bury(self, position: Position, messages: Sequence[Message[Any]]) -> None:
        """Publish all messages that are left of an entry as dead letters, then acknowledge it;
        if that fails it is requested again."""
        self.drop([position])
        self._begin(self._bury_entry(position, messages))

    def _begin(self, burying: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            burying.close()
            return
        task = self._loop.create_task(burying)
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury_entry(self, position: Position, messages: Sequence[Message[Any]]) -> None:
        try:
            for message in messages:
                await self._publish(message)
            await self._actions.settle(position)
        except MagnetarError as failure:
            self._not_buried(position, failure)

    async def _bury_some(
        self, position: Position, chance: _LastChance, messages: Sequence[Message[Any]]
    ) -> None:
        left = list(messages)
        try:
            while left:
                if left[0].id.batch_index in chance.dead:  # else it has been acknowledged
                    await self._publish(left[0])
                    await self._actions.acknowledge(left[0].id)
                del left[0]
        except MagnetarError as failure:
            # else it is acknowledged, or comes again
            if self._last_chances.get(position) is chance:
                chance.restore(left)
                self._not_buried(position, failure)

    async def _publish(self, message: Message[Any]) -> None:
        assert self._dead_letters is not None, "only a policy condemns"
        await self._dead_letters.publish(message)

    def _not_buried(self, position: Position, failure: MagnetarError) -> None:
        assert self._dead_letters is not None, "only a policy condemns"
        topic, reason = self._dead_letters.topic, str(failure)
        _log.warning(
            "topic %s: message %s could not be published to %s: %s",
            self._topic,
            position,
            topic,
            reason,
        )
        self._put(position, max(self._options.negative_ack_delay_s, BURIAL_RETRY_LEAST_S))

    async def close(self) -> None:
        """Stop the timer and cancel dead letters under way: they are redelivered."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._burying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the timer

    def _put(self, position: Position, delay_s: float) -> None:
        if self._closed:
            return
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
            chance = self._last_chances.get(position)
            if chance is None:
                again.append(position)
                continue
            if lost := chance.give_up():
                self._begin(self._bury_some(position, chance, lost))
            if chance.held and self._options.ack_timeout_s is not None:
                self._put(position, self._options.ack_timeout_s)
        if again:
            self._actions.redeliver(again)
        self._arm()
