"""Access modes of producers: who gets in, who waits, who is fenced; as examples and as a state
machine."""

from __future__ import annotations

from collections.abc import Hashable
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.errors import ProducerBusy, ProducerFenced
from magnetar.topics.producers import AccessMode, Grant, Producer, ProducerRegistry, Succession

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode


def producer(
    name: str,
    mode: AccessMode = SHARED,
    *,
    connection: Hashable = None,
    identity: int = 0,
    epoch: int = 0,
    since: int | None = None,
) -> Producer:
    """`since` is the topic epoch it once held."""
    return Producer(name, f"{name} {epoch}", connection or name, identity, epoch, mode, since)


def registry(*present: Producer) -> ProducerRegistry:
    producers = ProducerRegistry("t")
    for each in present:
        assert producers.add(each) is not None
    return producers


# --- names ----------------------------------------------------------------------------------------


def test_only_its_own_next_self_takes_over_a_name() -> None:
    """Same connection, same id, higher epoch; anything else is ProducerBusy, and the host may
    ask whether the holder lives."""
    producers = registry(producer("p", connection="a", identity=1, epoch=1))
    for other in (
        producer("p", connection="a", identity=1, epoch=1),
        producer("p", connection="a", identity=2, epoch=2),
        producer("p", connection="b", identity=1, epoch=2),
    ):
        with pytest.raises(ProducerBusy, match="already connected"):
            producers.add(other)
        assert bool(producers.in_the_way_of(other)) == (other.connection == "b")
    grant = producers.add(producer("p", connection="a", identity=1, epoch=2))
    assert grant is not None
    assert [closed.epoch for closed in grant.closed] == [1]
    assert producers.remove("p", "p 1") is None, "the old handle owns nothing any more"
    assert producers.remove("p", "p 2") == Succession()
    assert len(producers) == 0


# --- modes ----------------------------------------------------------------------------------------


def test_exclusive_keeps_everybody_out_and_everybody_keeps_it_out() -> None:
    """ProducerFenced for who wants it alone, ProducerBusy for who would share; the host may ask
    whether the holder lives."""
    producers = registry(producer("p", EXCLUSIVE))
    asked = {mode: producers.in_the_way_of(producer("q", mode)) for mode in AccessMode}
    assert {mode for mode, found in asked.items() if [held.name for held in found] == ["p"]} == {
        SHARED,
        EXCLUSIVE,
        WAIT,
    }
    assert not producers.in_the_way_of(producer("q", EXCLUSIVE, connection="p")), (
        "who asks is alive"
    )
    assert not producers.in_the_way_of(producer("q", EXCLUSIVE, since=-1)), (
        "it is fenced, no matter which producers live"
    )
    with pytest.raises(ProducerFenced):
        producers.add(producer("q", EXCLUSIVE))
    with pytest.raises(ProducerBusy, match="existing exclusive producer: p"):
        producers.add(producer("q"))
    producers.remove("p", "p 0")
    assert producers.add(producer("q")) == Grant(producer("q"))
    with pytest.raises(ProducerFenced):
        producers.add(producer("p", EXCLUSIVE))


def test_all_other_producers_are_in_the_way_of_exclusive_access_at_once() -> None:
    """The host may ask all of them whether they live, those that wait too, so many at a time;
    one on its own connection does for sure."""
    producers = registry(producer("p"), producer("q"))
    assert producers.add(producer("w", WAIT)) is None

    def names(asking: Producer) -> list[str]:
        return [found.name for found in producers.in_the_way_of(asking)]

    assert names(producer("x", EXCLUSIVE)) == ["p", "q", "w"]
    assert names(producer("p", EXCLUSIVE, connection="x")) == ["p", "q", "w"], (
        "one of its name is in the way as well"
    )
    assert names(producer("p", EXCLUSIVE, epoch=1)) == ["q"], (
        "its own earlier self is not, nor those that wait for that to leave"
    )
    assert (
        names(producer("x", EXCLUSIVE, connection="w"))
        == names(producer("x"))
        == names(producer("x", WAIT))
        == []
    )
    with mock.patch("magnetar.topics.producers.ASKED_AT_ONCE_MAX", 2):
        assert names(producer("x", EXCLUSIVE)) == ["p", "q"]


def test_every_exclusive_grant_raises_the_epoch_and_a_return_keeps_it() -> None:
    """0 for the first; who comes back with the epoch that is current goes on in it, with an
    older one it is fenced."""
    producers = registry()
    for expected in (0, 1, 2):
        grant = producers.add(producer("p", EXCLUSIVE))
        assert grant is not None
        assert grant.topic_epoch == expected
        producers.remove("p", "p 0")
    back = producers.add(producer("p", EXCLUSIVE, since=2))
    assert back is not None
    assert back.topic_epoch == 2
    producers.remove("p", "p 0")
    for mode in (EXCLUSIVE, WAIT, FENCING):
        with pytest.raises(ProducerFenced, match="its epoch 1 is over, the topic's is 2"):
            producers.add(producer("p", mode, since=1))


def test_those_that_wait_get_their_turn_in_order() -> None:
    """The first at once if the topic is free; each leaves its place to the next; nobody shares
    concurrently."""
    producers = registry(producer("a", WAIT))
    assert producers.add(producer("b", WAIT)) is None
    assert producers.add(producer("c", WAIT)) is None
    with pytest.raises(ProducerBusy):
        producers.add(producer("d"))
    with pytest.raises(ProducerFenced):
        producers.add(producer("d", EXCLUSIVE))
    assert producers.remove("b", "b 0") == Succession(), "it gave up waiting"
    assert producers.remove("a", "a 0") == Succession(Grant(producer("c", WAIT), 1))
    assert producers.exclusive == producer("c", WAIT)


def test_it_waits_for_the_last_of_those_that_share() -> None:
    """And none can join them any more."""
    producers = registry(producer("a"), producer("b"))
    assert producers.add(producer("c", WAIT)) is None
    with pytest.raises(ProducerBusy):
        producers.add(producer("d"))
    assert producers.remove("a", "a 0") == Succession()
    assert producers.remove("b", "b 0") == Succession(Grant(producer("c", WAIT), 0))


def test_fencing_puts_everybody_out() -> None:
    """Those that are in are closed, those that wait are refused, and the topic is its own."""
    producers = registry(producer("a", EXCLUSIVE))
    producers.add(producer("b", WAIT))
    grant = producers.add(producer("c", FENCING))
    assert grant == Grant(
        producer("c", FENCING), 1, (producer("a", EXCLUSIVE),), (producer("b", WAIT),)
    )
    assert (list(producers.by_name), list(producers.waiting)) == (["c"], [])
    with pytest.raises(ProducerFenced):
        producers.add(producer("a", EXCLUSIVE, epoch=1, since=0))


def test_one_that_waited_with_an_epoch_that_has_passed_is_refused_at_its_turn() -> None:
    """It had exclusive access, lost its connection, and another producer had it in between."""
    producers = registry(producer("a", EXCLUSIVE))
    producers.remove("a", "a 0")
    producers.add(producer("b"))
    assert producers.add(producer("c", WAIT)) is None
    assert producers.add(producer("a", WAIT, epoch=1, since=0)) is None
    producers.remove("b", "b 0")
    late = producer("a", WAIT, epoch=1, since=0)
    assert producers.remove("c", "c 0") == Succession(None, (late,))


class Modes(RuleBasedStateMachine):
    """Producers come, wait, give up and leave, in any mode and with any epoch they were ever
    granted."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = ProducerRegistry("t")
        self.present: dict[Hashable, Producer] = {}
        self.queue: list[Producer] = []
        self.granted: list[int] = []
        self.number = 0

    @rule(
        mode=st.sampled_from(AccessMode),
        name=st.sampled_from("abc"),
        connection=st.sampled_from("xy"),
        back=st.booleans(),
    )
    def come(self, mode: AccessMode, name: str, connection: str, back: bool) -> None:
        self.number += 1
        since = (
            self.granted[self.number % len(self.granted)]
            if back and self.granted and mode is not SHARED
            else None
        )
        new = Producer(name, self.number, connection, 1, self.number, mode, since)
        before = (
            dict(self.producers.by_name),
            list(self.producers.waiting),
            self.producers.topic_epoch,
        )
        alone = self.producers.exclusive is not None
        expected = (ProducerBusy,) if mode is SHARED else (ProducerFenced, ProducerBusy)
        grant = None
        try:
            grant = self.producers.add(new)
        except expected:
            assert before == (
                dict(self.producers.by_name),
                list(self.producers.waiting),
                self.producers.topic_epoch,
            )
            return
        assert since is None or since == max(self.granted), (
            "an epoch that is over comes back to nothing"
        )
        if grant is None:
            assert mode is WAIT
            own = before[0].get(name)
            if own is not None and new.replaces(own):
                del self.present[own.handle]
            self.queue.append(new)
            return
        assert mode is not SHARED or not alone or [closed.name for closed in grant.closed] == [name]
        for closed in grant.closed:
            del self.present[closed.handle]
        for refused in grant.refused:
            self.queue.remove(refused)
        self._enter(grant, self.granted[-1] if since is not None else None)

    @precondition(lambda self: self.present or self.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from([*self.present.values(), *self.queue]))
        succession = self.producers.remove(leaver.name, leaver.handle)
        assert succession is not None
        if leaver in self.queue:
            self.queue.remove(leaver)
            assert succession == Succession()
            return
        del self.present[leaver.handle]
        for refused in succession.refused:
            assert self.queue.pop(0) == refused
            assert refused.topic_epoch is not None
            assert refused.topic_epoch < self.granted[-1]
        if succession.granted is not None:
            assert self.queue.pop(0) == succession.granted.producer, (
                "the first that waits is the next"
            )
            self._enter(succession.granted, succession.granted.producer.topic_epoch)

    def _enter(self, grant: Grant, since: int | None) -> None:
        self.present[grant.producer.handle] = grant.producer
        if grant.producer.mode is SHARED:
            assert grant.topic_epoch is None
            return
        assert grant.topic_epoch is not None
        expected = since if since is not None else (self.granted[-1] + 1 if self.granted else 0)
        assert grant.topic_epoch == expected
        self.granted.append(grant.topic_epoch)

    @invariant()
    def agrees(self) -> None:
        assert {found.handle: found for found in self.producers.by_name.values()} == self.present
        assert list(self.producers.waiting) == self.queue

    @invariant()
    def exclusive_is_alone(self) -> None:
        exclusive = [found for found in self.present.values() if found.mode is not SHARED]
        assert not exclusive or list(self.present.values()) == exclusive == [
            self.producers.exclusive
        ]

    @invariant()
    def nobody_waits_for_a_free_topic(self) -> None:
        assert self.present or not self.queue


Modes.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestModes = Modes.TestCase
