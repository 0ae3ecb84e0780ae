"""Topics without storage.

Owns: non-persistent topics of a bundle in service: receipts without ids, delivery to consumers with
permits, their end when they are unused. Imports: topics, wire, names. Invariants: nothing of them
is in the log; a message goes only to consumers with permits, of each subscription as its type
decides, and is dropped afterwards; a SEND beyond `non_persistent_in_flight_max` of its connection
is dropped, with a receipt that says so; a subscription ends with its last consumer; what a policy
forbids is refused, as on any topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from magnetar.broker.ports import AttachedConsumer, AttachedProducer, SendRun
from magnetar.broker.reading.entry_index import EntryIndex
from magnetar.broker.topics.message_sender import MessageSender
from magnetar.broker.topics.subscription_host import READ_ENTRIES_MAX, SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import ServiceNotReady
from magnetar.names import TopicName
from magnetar.topics.dispatch.base import Delivery, DispatchLimits
from magnetar.topics.ledgers import LATEST
from magnetar.topics.topic import SubscriptionOptions, Topic
from magnetar.wire import commands, runs

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedBundle
    from magnetar.broker.topics.topic_registry import TopicRegistry
    from magnetar.hosting.advertised import Successor

TAKEN = commands.Position(0, 0)
DROPPED = commands.Position(-1, -1)
IDLE_CHECK_S_MIN = 1.0


class _UnstoredSender(MessageSender):
    """Sends entries that have one id, since none can be redelivered."""

    def _queue(
        self, session: AttachedConsumer, delivery: Delivery, entries: Sequence[memoryview]
    ) -> None:
        epoch = delivery.epoch if session.sends_epoch else None
        for entry in entries:
            frames = runs.scattered_message_frames(
                session.consumer_id,
                TAKEN.ledger,
                (TAKEN.entry,),
                [entry],
                partition=session.partition,
                consumer_epoch=epoch,
            )
            session.connection.queue_messages(session, frames)


class NonPersistentSubscription(SubscriptionHost):
    """A subscription that delivers what its consumers take at once, and stores nothing."""

    def pass_on(
        self, first: int, entries: Sequence[memoryview], message_counts: Sequence[int]
    ) -> None:
        """Entries first.. have just been published: deliver what is wanted now, and forget all
        of them."""
        self._notify_active()
        delivered_before = self.core.messages_out
        while (request := self._next_read(READ_ENTRIES_MAX)) is not None:
            low = request.first - first
            high = low + request.entries
            if low < 0 or not self._hand_out(
                request.first, entries[low:high], message_counts[low:high]
            ):
                break
        delivered = self.core.messages_out - delivered_before
        if (dropped := sum(message_counts) - delivered) > 0:
            self.traffic.dropped(dropped)
        self.core.acknowledge(None, ((self.core.cursor.mark_delete, first + len(entries)),))

    def detach(self, session: AttachedConsumer) -> None:
        self.core.remove_consumer(session)
        if self.core.connected:
            self.schedule()
        else:
            self.topic.drop_subscription(self)

    def acknowledge(
        self,
        session: AttachedConsumer,  # noqa: ARG002
        ranges: Sequence[tuple[int, int]],  # noqa: ARG002
        partial: Sequence[tuple[int, int]],  # noqa: ARG002
        confirmed: Callable[[], None] | None,
    ) -> None:
        """Nothing is remembered; a request is confirmed at once."""
        if confirmed is not None:
            confirmed()

    def acknowledge_cumulative(
        self,
        session: AttachedConsumer,
        ordinal: int,  # noqa: ARG002
        mask: int | None,  # noqa: ARG002
        confirmed: Callable[[], None] | None,
    ) -> None:
        self.acknowledge(session, (), (), confirmed)


class NonPersistentTopic(TopicHost):
    """A topic that exists while it is used."""

    _host_type = NonPersistentSubscription
    _sender_type = _UnstoredSender

    def __init__(
        self, bundle: ServedBundle, name: TopicName, dropped: Callable[[NonPersistentTopic], None]
    ) -> None:
        super().__init__(
            bundle,
            name,
            Topic(str(name), bundle.ledger_ids, created_ms=bundle.context.clock.wall_ms()),
            EntryIndex(),
        )
        self._dropped = dropped
        self._idle = False
        self._timer: asyncio.TimerHandle | None = None
        self._watch()

    async def update_properties(self, changes: Mapping[str, str]) -> None:
        self.check_serving()
        self._updated(changes)

    def append_update(self, changes: Mapping[str, str], on_durable: Callable[[], None]) -> None:
        """There is no log."""
        del changes
        on_durable()

    def _dispatch_limits(self) -> DispatchLimits:
        """Nothing can wait: neither for its time nor for a change of the active consumer."""
        return replace(super()._dispatch_limits(), delayed_delivery=False, failover_delay_ms=0)

    # --- messages ---------------------------------------------------------------------------------

    def publish(self, session: AttachedProducer, run: SendRun) -> None:
        """Deliver what policies allow of a run of entries, and answer."""
        if not self.admits(session, run) or (
            self.core.ledger < 0 and not self.admission.take_ledger(session, run)
        ):
            return
        if not self.admission.refusing:
            self._take(session, run)
            return
        begin = 0
        for index, entry in enumerate(run.entries):
            refusal = self.admission.refusal(entry)
            if refusal is None:
                continue
            self._take(session, run.part(begin, index))
            begin = index + 1
            session.refuse_send(run.top(index), *refusal)
            if session.leaving:
                # closed for it: its client gives up what lies behind, too, or sends it again
                return
        self._take(session, run.part(begin, len(run)))

    def admits(self, session: AttachedProducer, run: SendRun) -> bool:
        """While frozen SENDs are dropped: the client sends them again to the new owner."""
        del session, run
        return not self.frozen

    def _take(self, session: AttachedProducer, run: SendRun) -> None:
        if not len(run):
            return
        taken = session.connection.admit_in_flight(
            len(run), self.context.settings.non_persistent_in_flight_max
        )
        receipts = [
            commands.send_receipt(
                session.producer_id,
                sequence,
                TAKEN if at < taken else DROPPED,
                run.batch_top(at),
            )
            for at, sequence in enumerate(run.sequences)
        ]
        if not session.closed:
            session.connection.queue(b"".join(receipts))
        session.messages_dropped += sum(run.counts[taken:])
        if taken:
            self._pass_on(session, run.entries[:taken], run.counts[:taken])

    def _pass_on(
        self,
        session: AttachedProducer,
        entries: Sequence[memoryview],
        message_counts: Sequence[int],
    ) -> None:
        first = self.core.confirm(self.core.publish(len(entries)), len(entries))
        if session.sends_chunks:
            self.core.chunks.seen = True
        # the receive buffer is used again
        kept = [memoryview(bytes(entry)) for entry in entries] if self.subscriptions else []
        for subscription in list(self.subscriptions.values()):
            assert isinstance(subscription, NonPersistentSubscription)
            subscription.pass_on(first, kept, message_counts)
        self.traffic.published(
            session,
            sum(message_counts),
            sum(map(len, entries)),
            self.context.clock.wall_ms(),
        )

    # --- subscriptions ----------------------------------------------------------------------------

    def open_subscription(
        self, name: str, start: tuple[int, int], **options: Unpack[SubscriptionOptions]
    ) -> SubscriptionHost:
        """The subscription, created if need be; it begins now, whatever `start` and `durable`
        say. Raises NotAllowed, ServiceNotReady."""
        del start
        options["durable"] = False
        return super().open_subscription(name, LATEST, **options)

    # --- end --------------------------------------------------------------------------------------

    @property
    def _used(self) -> bool:
        registry = self.core.producers
        consumers = any(found.core.connected for found in self.subscriptions.values())
        return consumers or bool(registry.by_name) or bool(list(registry.waiting))

    def _watch(self) -> None:
        period_s = self.context.settings.inactive_topic_s
        if period_s > 0:
            self._timer = asyncio.get_running_loop().call_later(
                max(IDLE_CHECK_S_MIN, period_s / 2), self._look
            )

    def _look(self) -> None:
        """Drop the topic if it was unused at two looks in a row."""
        idle, self._idle = self._idle, not self._used
        if idle and self._idle:
            self._dropped(self)
        else:
            self._watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class NonPersistentTopics:
    """The non-persistent topics of one bundle."""

    def __init__(self, bundle: ServedBundle, registry: TopicRegistry) -> None:
        self._bundle, self._registry = bundle, registry
        self.by_name: dict[str, NonPersistentTopic] = {}

    async def topic(self, name: TopicName, create: bool) -> NonPersistentTopic | None:
        """The topic, created if need be and allowed; None if it does not exist and `create` is
        False. Raises ServiceNotReady."""
        found = self.by_name.get(str(name))
        if found is not None or not create:
            return found
        if not self._bundle.serving:
            raise ServiceNotReady(
                f"bundle {self._bundle.name} of topic {name} is being unloaded; look it up again"
            )
        created = self.by_name[str(name)] = NonPersistentTopic(self._bundle, name, self.drop)
        await self._registry.add(self._bundle, name)
        return created

    def drop(self, topic: NonPersistentTopic) -> None:
        """Drop a topic that is unused or was deleted, from lists too."""
        if self.by_name.get(str(topic.name)) is topic:
            del self.by_name[str(topic.name)]
            topic.stop()
            # a producer that still holds it is refused, looks it up again and finds a new one
            topic.core.freeze()
            self._registry.forget(self._bundle, topic.name)

    async def delete(self, name: TopicName) -> None:
        """Delete a topic and close its clients, which may create it again."""
        topic = self.by_name.get(str(name))
        if topic is not None:
            self.drop(topic)
            topic.close_clients(None)
            await self._registry.remove(self._bundle, name)

    def freeze(self) -> None:
        for topic in self.by_name.values():
            topic.core.freeze()

    def close_clients(self, successor: Successor | None) -> None:
        """Close all clients; they create the topics at the new owner."""
        for topic in self.by_name.values():
            topic.stop()
            topic.close_clients(successor)

    def refresh_policies(self) -> None:
        for topic in self.by_name.values():
            topic.refresh_policies()
