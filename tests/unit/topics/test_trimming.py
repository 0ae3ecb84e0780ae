"""A topic that is trimmed, checkpointed and replayed at any moment: what is left is what is
left, for everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.topics.ledger_ids import LedgerIds, ledger_of
from magnetar.topics.ledgers import EARLIEST, LATEST, TRIMMED, Position, position_text
from magnetar.topics.state import TopicState
from magnetar.topics.topic import Topic
from magnetar.topics.trimming import trim_changes

NAME = "persistent://public/default/t"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("acknowledge"), st.integers(0, 30)),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("age"), st.integers(0, 3000)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("move"), st.just(0)),
    ),
    max_size=40,
)


class Lives:
    """A topic, its log since the last checkpoint, and what it should hold: positions in order
    and how many are gone."""

    def __init__(self) -> None:
        self.epoch = 1
        self.now_ms = 0
        self.topic = Topic(NAME, LedgerIds(self.epoch))
        self.checkpoint: TopicState | None = None
        self.records: list[Callable[[Topic], Any]] = []
        self.given: list[Position] = []
        self.gone = 0
        self.topic.subscribe("s", EARLIEST)
        self.topic.subscribe("idle", EARLIEST)
        self.log_cursors()

    def log_cursors(self) -> None:
        for name in ("s", "idle"):
            delta = self.topic.subscription(name).take_delta()
            if delta is not None:
                self.records.append(
                    lambda topic, name=name, delta=delta: topic.apply_cursor(name, delta)
                )

    def publish(self, count: int) -> None:
        first = self.topic.publish(count)
        self.topic.confirm(first, count)
        self.topic.counters.bytes_in += 10 * count
        self.given += [Position(first.ledger, first.entry + number) for number in range(count)]
        self.records.append(lambda topic: topic.apply_entries(first.ledger, first.entry, count))

    def acknowledge(self, ordinal: int) -> None:
        """By position, as clients do: what is gone already is passed over."""
        if ordinal < len(self.given):
            found = self.topic.ledgers.find(self.given[ordinal])
            assert (found is None) == (ordinal < self.gone)
            if found is not None:
                self.topic.subscription("s").acknowledge(None, ((found, found + 1),))
                self.log_cursors()

    def trim(self, count: int) -> None:
        ledgers = self.topic.ledgers
        wanted = min(self.gone + count, len(self.given))
        ordinal = ledgers.end - (len(self.given) - wanted)
        if ordinal > ledgers.first:
            text = position_text(ledgers.position_before(ordinal))
            self.topic.apply_update({TRIMMED: text})
            self.records.append(lambda topic: topic.apply_update({TRIMMED: text}))
            self.gone = wanted

    def age(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.topic.age(self.now_ms)

    def write_checkpoint(self) -> None:
        self.checkpoint, self.records = self.topic.to_state(), []

    def move(self) -> None:
        """A new owner: the checkpoint if there is one, and all records behind it; the first of
        them a second time changes nothing."""
        self.epoch += 1
        recovered = Topic(NAME, LedgerIds(self.epoch))
        if self.checkpoint is not None:
            recovered = Topic.from_state(NAME, LedgerIds(self.epoch), self.checkpoint)
        for record in self.records:
            record(recovered)
        before, self.topic = self.topic, recovered
        assert {name: found.backlog for name, found in before.subscriptions.items()} == {
            name: found.backlog for name, found in recovered.subscriptions.items()
        }

    def check(self) -> None:
        ledgers, kept = self.topic.ledgers, self.given[self.gone :]
        assert [ledgers.position(ordinal) for ordinal in range(ledgers.first, ledgers.end)] == kept
        assert self.topic.last_message_position() == (kept[-1] if kept else EARLIEST)
        assert self.topic.last_confirmed == (self.given[-1] if self.given else EARLIEST)
        for found in self.topic.subscriptions.values():
            assert found.cursor.mark_delete >= ledgers.first
        assert self.topic.subscription("idle").backlog == len(kept)
        assert self.topic.subscribe("new", EARLIEST).backlog == len(kept)
        assert self.topic.subscribe("newest", LATEST).backlog == 0
        self.topic.remove_subscription("new")
        self.topic.remove_subscription("newest")


@given(STEPS)
@example([("publish", 1), ("trim", 1), ("age", 10), ("checkpoint", 0)])
@settings(deadline=None)
def test_whatever_happens_in_whatever_order_nothing_but_the_trimmed_is_lost(
    steps: list[tuple[str, int]],
) -> None:
    """Positions, backlogs and the ends are those of a plain list, after every step and in every
    later term."""
    lives = Lives()
    for kind, number in steps:
        if kind == "checkpoint":
            lives.write_checkpoint()
        elif kind == "move":
            lives.move()
        else:
            getattr(lives, kind)(number)
        lives.check()


@given(STEPS, st.integers(0, 40))
@settings(deadline=None)
def test_a_checkpoint_later_than_its_position_changes_nothing(
    steps: list[tuple[str, int]], at: int
) -> None:
    """A checkpoint may hold more than the log up to its position: replaying records that it
    covers already is harmless."""
    lives = Lives()
    for number, (kind, value) in enumerate(steps):
        if number == at:
            behind = list(lives.records)
        if kind in ("publish", "acknowledge", "trim"):
            getattr(lives, kind)(value)
    records = lives.records if at >= len(steps) else lives.records[len(behind) :]
    state = lives.topic.to_state()
    recovered = Topic.from_state(NAME, LedgerIds(2), state)
    for record in records:
        record(recovered)
    assert recovered.to_state() == state


def test_ages_and_sizes_come_through_a_checkpoint() -> None:
    """What retention rests on is the same for the next owner."""
    topic = Topic(NAME, LedgerIds(1))
    for number in range(10):
        topic.confirm(topic.publish(5), 5)
        topic.counters.bytes_in += 500
        topic.age(number * 10_000)
    topic.trim(20, 20)
    again = Topic.from_state(NAME, LedgerIds(2), topic.to_state())
    for found in (topic, again):
        ledgers, ages = found.ledgers, found.ages
        assert ages.bytes_from(ledgers.first, ledgers.end) == 3000
        assert ledgers.position(ages.older_than(60_000)) == Position(ledger_of(1, 0), 35)
    again.confirm(again.publish(1), 1)
    again.counters.bytes_in += 100
    again.age(200_000)
    assert again.ages.bytes_from(again.ledgers.first, again.ledgers.end) == 3100


def test_entries_that_a_checkpoint_has_counted_still_get_an_age() -> None:
    """Before and after a recovery: else what nobody publishes to any more would never be old
    enough to be dropped."""
    topic = Topic(NAME, LedgerIds(1))
    topic.confirm(topic.publish(3), 3)
    topic.counters.bytes_in += 30
    state = topic.to_state()
    for left in (topic, Topic.from_state(NAME, LedgerIds(2), state)):
        assert left.has_grown
        left.age(1000)
        assert not left.has_grown
        assert left.ages.older_than(1000) == 3
        assert left.ages.bytes_from(0, 3) == 30


class ViewedLives(Lives):
    """As `Lives`, of a topic with a compacted view: retention drops what no subscription needs, and
    the view has entries from number `viewed` on."""

    def __init__(self) -> None:
        super().__init__()
        self.viewed, self.begun, self.acknowledged = 0, 0, set[int]()
        self.topic.remove_subscription("idle")
        self.records.append(lambda topic: topic.apply_subscription_removed("idle"))
        self.topic.subscribe("view", EARLIEST, reads_view=True)
        self.log_cursors()

    def log_cursors(self) -> None:
        for name in self.topic.subscriptions:
            delta = self.topic.subscription(name).take_delta()
            if delta is not None:
                self.records.append(
                    lambda topic, name=name, delta=delta: topic.apply_cursor(name, delta)
                )

    def trim(self, count: int) -> None:
        ledgers = self.topic.ledgers
        least = min(found.cursor.mark_delete for found in self.topic.subscriptions.values())
        wanted = min(self.gone + count, len(self.given) - (ledgers.end - least))
        if wanted <= self.gone:
            return
        viewed = min(self.viewed + count % 4, wanted)
        first = self.given[viewed] if viewed < wanted else None
        changes = trim_changes(self.topic, ledgers.end - (len(self.given) - wanted), first)
        self.topic.apply_update(changes)
        self.records.append(lambda topic: topic.apply_update(changes))
        self.gone, self.viewed = wanted, viewed

    def acknowledge(self, ordinal: int) -> None:
        """Everything up to there on one subscription; of the view by positions, as clients do."""
        ledgers = self.topic.ledgers
        end = min(ordinal, len(self.given))
        self.topic.subscription("s").acknowledge(
            None, ((ledgers.floor, ledgers.end - (len(self.given) - end)),)
        )
        for number in range(self.begun + ordinal % 2, end - ordinal % 3):
            found = ledgers.known(self.given[number])
            assert (found is None) == (number < self.viewed)
            if found is not None:
                self.acknowledged.add(number)
                self.topic.subscription("view").acknowledge(None, ((found, found + 1),))
        self.log_cursors()

    def rewind(self, _number: int) -> None:
        """A new subscription begins with the view, where the topic has dropped everything else."""
        self.topic.remove_subscription("view")
        self.topic.subscribe("view", EARLIEST, reads_view=True)
        self.records.append(lambda topic: topic.apply_subscription_removed("view"))
        self.begun, self.acknowledged = self.viewed, set()
        self.log_cursors()

    def check(self) -> None:
        ledgers, known = self.topic.ledgers, self.given[self.viewed :]
        assert [ledgers.position(at) for at in range(ledgers.floor, ledgers.end)] == known
        kept = self.given[self.gone :]
        assert [found for found in self.given if ledgers.find(found) is not None] == kept
        unread = set(range(self.begun, len(self.given))) - self.acknowledged
        assert self.topic.subscription("view").backlog == len(unread)
        assert self.topic.subscribe("new", EARLIEST).backlog == len(kept)
        assert self.topic.subscribe("reader", EARLIEST, reads_view=True).backlog == len(known)
        self.topic.remove_subscription("new")
        self.topic.remove_subscription("reader")


VIEWED_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "publish",
                "acknowledge",
                "acknowledge",
                "trim",
                "trim",
                "rewind",
                "move",
                "checkpoint",
            )
        ),
        st.integers(1, 30),
    ),
    min_size=5,
    max_size=40,
)


@given(VIEWED_STEPS)
@example(
    [
        ("publish", 9),
        ("acknowledge", 12),
        ("trim", 7),
        ("rewind", 1),
        ("acknowledge", 7),
        ("move", 1),
    ]
)
@settings(deadline=None)
def test_a_view_keeps_the_positions_that_it_has_of_dropped_entries(
    steps: list[tuple[str, int]],
) -> None:
    """And cursors that lie among them, after every step and in every later term."""
    lives = ViewedLives()
    for kind, number in steps:
        if kind == "checkpoint":
            lives.write_checkpoint()
        elif kind == "move":
            lives.move()
        else:
            getattr(lives, kind)(number)
        lives.check()
