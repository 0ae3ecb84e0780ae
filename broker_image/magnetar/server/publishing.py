"""Producers of one topic in service.

Owns: attaching and detaching producers as the topic's registry decides, and whether the topic takes producers at all. Imports: topics, errors,
wire, server siblings.
Source: facts on protocol semantics 2.11 (backlog quotas), 2.12.
Invariants: whoever the registry puts out or refuses is told; an exclusive grant is told only after its epoch is durable.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from magnetar.errors import BacklogQuotaExceeded, BacklogQuotaRefused, ProducerFenced, ServiceNotReady, TopicTerminated
from magnetar.server.sessions import ProducerSession
from magnetar.topics.deduplication import NOTHING
from magnetar.topics.producers import Grant, Producer, Succession

if TYPE_CHECKING:
    from magnetar.server.topic_host import TopicHost

TOPIC_EPOCH, TERMINATED = "topic_epoch", "terminated"
"""Durable properties of a topic."""


class PublishBlock(enum.StrEnum):
    """Why a topic takes no producers: its backlog is beyond a quota that says to let them wait, or to refuse them."""

    HOLD = "hold"
    EXCEPTION = "exception"


class Publishing:
    """What a topic does with producers as a whole."""

    def __init__(self, topic: TopicHost) -> None:
        self._topic, self._registry = topic, topic.core.producers
        epoch = topic.core.properties.get(TOPIC_EPOCH)
        self._registry.topic_epoch = int(epoch) if epoch is not None else None
        self._block: PublishBlock | None = None

    # --- whether producers are taken --------------------------------------------------------------------------------------------

    @property
    def block(self) -> PublishBlock | None:
        """Why no producers are taken now."""
        return self._block

    @block.setter
    def block(self, block: PublishBlock | None) -> None:
        """Setting one sends all producers away: they come back, and are refused until it is lifted."""
        self._block = block
        if block is not None:
            self.close_all(None)

    def check(self) -> None:
        """Raises TopicTerminated, BacklogQuotaExceeded, BacklogQuotaRefused, ServiceNotReady if no producer may come."""
        name = self._topic.name
        if self._topic.frozen:
            raise ServiceNotReady(f"topic {name} is being unloaded; look it up again")
        if TERMINATED in self._topic.core.properties:
            raise TopicTerminated(f"Topic {name} was already terminated; nothing can be published to it")
        if self._block is not None:
            kind = BacklogQuotaExceeded if self._block is PublishBlock.HOLD else BacklogQuotaRefused
            raise kind(f"Cannot create producer on topic {name} with backlog quota exceeded; consume or raise the quota")

    # --- producers --------------------------------------------------------------------------------------------------------------

    async def attach(self, session: ProducerSession, producer: Producer) -> int | None:
        """Let a producer in; the topic's epoch that it holds, None for Shared.

        May wait long for exclusive access: then `session.waits` is called first. A caller that is cancelled must `detach`. Raises
        ProducerBusy, ProducerFenced, ServiceNotReady, StorageError.
        """
        await self._put_ghost_out(producer)
        self.check()
        grant = self._registry.add(producer)
        if grant is None:
            grant = await session.wait_for_grant()
        else:
            self._tell(grant)
        if grant.topic_epoch is not None:
            await self._topic.update_properties({TOPIC_EPOCH: str(grant.topic_epoch)})
        return grant.topic_epoch

    async def _put_ghost_out(self, producer: Producer) -> None:
        """The holder of our name may be what is left of a connection that nobody has noticed the end of."""
        holder = self._registry.taken_by(producer)
        if holder is not None:
            assert isinstance(holder.handle, ProducerSession)
            await holder.handle.connection.is_alive()

    async def last_sequence(self, name: str) -> int:
        """The highest sequence id that deduplication knows to be durable under a producer's name; -1 for none. Raises StorageError."""
        known = self._topic.core.deduplication
        if known is None:
            return NOTHING
        if not known.settled(name):
            await self._topic.context.log.barrier()  # of what is still on its way nobody may say that it is there
        return known.last_sequence(name)

    def detach(self, session: ProducerSession) -> None:
        """A producer leaves, or gives up waiting; the next one gets its chance."""
        succession = self._registry.remove(session.name, session)
        if succession is not None:
            self._succeed(succession)

    def _succeed(self, succession: Succession) -> None:
        for refused in succession.refused:
            _session(refused).refuse(_fenced(self._topic))
        if succession.granted is not None:
            _session(succession.granted.producer).grant(succession.granted)

    def _tell(self, grant: Grant) -> None:
        """Whoever had to make room hears of it."""
        for closed in grant.closed:
            if closed.connection is grant.producer.connection and closed.producer_id == grant.producer.producer_id:
                _session(closed).closed = True  # replaced by itself
            else:
                _session(closed).close_by_broker(None)
        for refused in grant.refused:
            _session(refused).refuse(_fenced(self._topic))

    def close_all(self, service_url: str | None) -> None:
        """Send all producers away, to `service_url` if known, and those that wait, too."""
        away = ServiceNotReady(f"topic {self._topic.name} is being unloaded; look it up again")
        for waiting in self._registry.waiting:
            self._registry.remove(waiting.name, waiting.handle)
            _session(waiting).refuse(away)
        for producer in list(self._registry.by_name.values()):
            _session(producer).close_by_broker(service_url)


def _session(producer: Producer) -> ProducerSession:
    assert isinstance(producer.handle, ProducerSession)
    return producer.handle


def _fenced(topic: TopicHost) -> ProducerFenced:
    return ProducerFenced(f"Fenced out: exclusive access to topic {topic.name} has passed to another producer")
