"""Messages in chunks on a Shared subscription: one consumer gets all of one, in order, whatever
happens concurrently."""

from __future__ import annotations

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import (
    ChunkTrait,
    Consumer,
    DispatchLimits,
    EntryTraits,
    SubscriptionType,
)
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription


def chunk(number: int, count: int = 3, uuid: str = "u") -> EntryTraits:
    return EntryTraits(chunk=ChunkTrait(uuid, number, count))


class Scene:
    """A Shared subscription over entries with these traits."""

    def __init__(self, *traits: EntryTraits | None) -> None:
        self.traits = traits
        self.subscription = Subscription(
            "s", True, Cursor(LedgerTable([(3, len(traits))]), 0), limits=DispatchLimits()
        )

    def connect(self, handle: str, permits: int) -> None:
        self.subscription.add_consumer(handle, SubscriptionType.SHARED)
        if permits:
            self.subscription.flow(handle, permits)

    def deliver(self, first: int, end: int) -> list[tuple[object, int]]:
        """Dispatch what was fetched from `first` on, for any consumer that asked."""
        found = self.subscription.dispatch(first, [1] * (end - first), self.traits[first:end])
        return [(delivery.consumer, ordinal) for delivery in found for ordinal in delivery.ordinals]

    def deliver_all(self) -> list[tuple[object, int]]:
        given: list[tuple[object, int]] = []
        while (request := self.subscription.next_read(100)) is not None:
            given += self.deliver(request.first, request.first + request.entries)
        return given


def test_the_rest_of_a_message_waits_for_its_consumer() -> None:
    """Others get what lies behind; a wait costs no read."""
    scene = Scene(chunk(0), chunk(1), None, chunk(2))
    scene.connect("a", 1)
    assert scene.deliver_all() == [("a", 0)]
    scene.connect("b", 10)
    assert scene.deliver_all() == [("b", 2)]
    assert scene.subscription.next_read(10) is None
    scene.subscription.flow("a", 1)
    assert scene.deliver_all() == [("a", 1)]
    scene.subscription.flow("a", 1)
    assert scene.deliver_all() == [("a", 3)]


def test_the_rest_goes_to_another_consumer_if_its_own_leaves() -> None:
    """Also if the first chunk has been acknowledged and does not come again."""
    scene = Scene(chunk(0), chunk(1), chunk(2))
    scene.connect("a", 1)
    assert scene.deliver_all() == [("a", 0)]
    scene.subscription.acknowledge("a", [(0, 1)])
    scene.connect("b", 10)
    assert scene.deliver_all() == []
    scene.subscription.remove_consumer("a")
    assert scene.deliver_all() == [("b", 1), ("b", 2)]


def test_a_chunk_that_was_fetched_does_not_overtake_one_that_came_back_in_between() -> None:
    """Chunk 1 waits for permits; they come while chunk 2 is being read from storage."""
    scene = Scene(chunk(0), chunk(1), chunk(2))
    scene.connect("a", 1)
    scene.deliver_all()
    scene.connect("b", 10)
    assert scene.deliver(1, 2) == []
    scene.subscription.flow("a", 10)
    assert scene.deliver(2, 3) == []
    assert scene.deliver_all() == [("a", 1), ("a", 2)]


def test_a_redelivered_message_begins_with_its_first_chunk() -> None:
    """All of its chunks were nacked: the consumer that gets the first gets all."""
    scene = Scene(chunk(0), chunk(1), chunk(2))
    scene.connect("a", 10)
    scene.deliver_all()
    scene.connect("b", 10)
    scene.subscription.redeliver("a", [(0, 1), (1, 2), (2, 3)])
    given = scene.deliver_all()
    assert len({consumer for consumer, _ in given}) == 1
    assert [ordinal for _, ordinal in given] == [0, 1, 2]


def test_unfinished_messages_are_forgotten_beyond_a_limit() -> None:
    """Producers that die in the middle must not fill the memory; the one begun first is
    forgotten first."""
    assignments, consumer = ChunkAssignments(messages_max=2), Consumer("a")
    uuids = ("1", "2", "3" * 1_000_000)
    for uuid in uuids:
        assignments.given(ChunkTrait(uuid, 0, 5), consumer)
    assert len(assignments) == 2
    assert [assignments.consumer_of(ChunkTrait(uuid, 1, 5)) for uuid in uuids] == [
        None,
        consumer,
        consumer,
    ]
    assignments.given(ChunkTrait("2", 4, 5), consumer)
    assert len(assignments) == 1
    assignments.forget(consumer)
    assert len(assignments) == 0
