"""A broker with transactions in a few lines, and brokers that are wrong in one way each; what
clients of it do is drawn from numbers.

Owns: `ModelBroker`, its naive variants (`NAIVE`: which anomaly each must be accused of), and
`play`, which records a history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dev.histories.anomalies import Kind
from dev.histories.transactions import Fate, History, Input, Place, Session, TransactionHistory

SOURCE, TARGETS, MOVER = "source", ("left", "right"), "mover"
OPEN_MAX = 3


@dataclass
class ModelTransaction:
    """What the broker holds of a transaction."""

    id: int
    sends: list[tuple[str, str]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    ended: Fate = Fate.UNKNOWN


class ModelBroker:
    """Right in everything: topics, one subscription of SOURCE, transactions. `crash` forgets
    what may be forgotten."""

    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[Place, str]]] = {name: [] for name in (SOURCE, *TARGETS)}
        self.acknowledged: set[str] = set()
        self.pending: dict[str, int] = {}
        self.transactions: dict[int, ModelTransaction] = {}
        self.next_id = 0
        self.next_entry = 0

    def begin(self) -> int:
        number, self.next_id = self.next_id, self.next_id + 1
        self.transactions[number] = ModelTransaction(number)
        return number

    def append(self, topic: str, value: str) -> None:
        self.topics[topic].append(((1, self.next_entry, -1), value))
        self.next_entry += 1

    def publish(self, topic: str, value: str) -> None:
        self.append(topic, value)

    def send(self, txn: int, topic: str, value: str) -> None:
        self.transactions[txn].sends.append((topic, value))

    def acknowledge(self, txn: int, value: str) -> bool:
        if value in self.acknowledged or self.pending.get(value, txn) != txn:
            return False
        self.pending[value] = txn
        self.transactions[txn].acknowledged.append(value)
        return True

    def end(self, txn: int, fate: Fate) -> Fate:
        """Idempotent; what it is afterwards."""
        found = self.transactions[txn]
        if found.ended is Fate.UNKNOWN:
            found.ended = fate
            self.commit(found) if fate is Fate.COMMITTED else self.abort(found)
        return found.ended

    def commit(self, found: ModelTransaction) -> None:
        self.make_visible(found)
        self.take_effect(found)

    def make_visible(self, found: ModelTransaction) -> None:
        for topic, value in found.sends:
            self.append(topic, value)

    def take_effect(self, found: ModelTransaction) -> None:
        for value in found.acknowledged:
            del self.pending[value]
            self.acknowledged.add(value)

    def abort(self, found: ModelTransaction) -> None:
        for value in found.acknowledged:
            del self.pending[value]

    def crash(self) -> None:
        """Everything is durable here."""

    def deliverable(self) -> list[tuple[Place, str]]:
        """What the subscription may be given."""
        return [
            (place, value)
            for place, value in self.topics[SOURCE]
            if value not in self.acknowledged and value not in self.pending
        ]

    def readable(self, topic: str) -> list[tuple[Place, str]]:
        """What a reader finds."""
        return self.topics[topic]


# --- naive variants -------------------------------------------------------------------------------


class AbortShows(ModelBroker):
    """An abort forgets to take back what was published."""

    def abort(self, found: ModelTransaction) -> None:
        super().abort(found)
        self.make_visible(found)


class Uncommitted(ModelBroker):
    """Readers see what lies in the log, whatever its transaction does; what is aborted is
    cleaned up."""

    def send(self, txn: int, topic: str, value: str) -> None:
        super().send(txn, topic, value)
        self.append(topic, value)

    def make_visible(self, found: ModelTransaction) -> None:
        """It is."""

    def abort(self, found: ModelTransaction) -> None:
        super().abort(found)
        for name, entries in self.topics.items():
            self.topics[name] = [entry for entry in entries if (name, entry[1]) not in found.sends]


class CommitForgotten(ModelBroker):
    """A crash between the answer and the markers."""

    def commit(self, found: ModelTransaction) -> None:
        if found.id % 3 == 2:
            self.abort(found)
        else:
            super().commit(found)


class Half(ModelBroker):
    """A crash between two markers, and nobody goes on with what was decided."""

    def make_visible(self, found: ModelTransaction) -> None:
        for topic, value in found.sends[: (len(found.sends) + 1) // 2]:
            self.append(topic, value)


class OnlyProduces(ModelBroker):
    """Subscriptions do not learn of the commit."""

    def take_effect(self, found: ModelTransaction) -> None:
        for value in found.acknowledged:
            del self.pending[value]


class OnlyAcknowledges(ModelBroker):
    """Topics do not learn of the commit."""

    def make_visible(self, found: ModelTransaction) -> None:
        """Nothing."""


class AbortLeaks(ModelBroker):
    """An abort does not give back what was held."""

    def abort(self, found: ModelTransaction) -> None:
        """Nothing."""


class HoldsNothing(ModelBroker):
    """Acknowledgements of transactions are not held, and not looked at again at the commit."""

    def acknowledge(self, txn: int, value: str) -> bool:
        self.transactions[txn].acknowledged.append(value)
        return True

    def take_effect(self, found: ModelTransaction) -> None:
        self.acknowledged.update(found.acknowledged)

    def abort(self, found: ModelTransaction) -> None:
        """There is nothing to give back."""


class MarkerTwice(ModelBroker):
    """A repeated END_TXN is carried out again."""

    def end(self, txn: int, fate: Fate) -> Fate:
        found = self.transactions[txn]
        if found.ended is Fate.COMMITTED is fate:
            self.make_visible(found)
        return super().end(txn, fate)


class Backwards(ModelBroker):
    """The entries of a marker are taken from the wrong end."""

    def make_visible(self, found: ModelTransaction) -> None:
        for topic, value in reversed(found.sends):
            self.append(topic, value)


class ForgetsOutcomes(ModelBroker):
    """What has ended is unknown, and what is unknown was aborted."""

    def end(self, txn: int, fate: Fate) -> Fate:
        return (
            super().end(txn, fate) if self.transactions[txn].ended is Fate.UNKNOWN else Fate.ABORTED
        )


class ReusesIds(ModelBroker):
    """The allocator is not durable."""

    def crash(self) -> None:
        if self.next_id and self.transactions[self.next_id - 1].ended is not Fate.UNKNOWN:
            self.next_id -= 1


class ForgetsAcknowledgements(ModelBroker):
    """The cursor of a crashed broker goes back."""

    def crash(self) -> None:
        for value in sorted(self.acknowledged)[-1:]:
            self.acknowledged.remove(value)


class ReusesPlaces(ModelBroker):
    """Ids of entries are given again after a crash."""

    def crash(self) -> None:
        self.next_entry = max(0, self.next_entry - 1)


class CommitsInThePast(ModelBroker):
    """Entries appear where they were sent, before what others have read already."""

    def make_visible(self, found: ModelTransaction) -> None:
        before = {name: len(entries) for name, entries in self.topics.items()}
        super().make_visible(found)
        for name, entries in self.topics.items():
            self.topics[name] = entries[before[name] :] + entries[: before[name]]


class CursorPasses(ModelBroker):
    """The cursor goes past a message that was held by nobody."""

    def crash(self) -> None:
        for _, value in self.deliverable()[:1]:
            self.acknowledged.add(value)


class MakesUp(ModelBroker):
    """Recovery reads bytes that nobody wrote."""

    def crash(self) -> None:
        self.append(TARGETS[0], f"made up {self.next_entry}")


class LosesPlain(ModelBroker):
    """What was published outside of transactions is not durable."""

    def crash(self) -> None:
        if self.topics[SOURCE] and self.topics[SOURCE][-1][1] not in self.acknowledged | set(
            self.pending
        ):
            self.topics[SOURCE].pop()


class SkipsReads(ModelBroker):
    """A reader does not see every fifth entry while it is new."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0

    def readable(self, topic: str) -> list[tuple[Place, str]]:
        self.looked += 1
        entries = self.topics[topic]
        return (
            entries
            if topic == SOURCE or self.looked % 2
            else [entry for entry in entries if entry[0][1] % 5]
        )


NAIVE: tuple[tuple[Callable[[], ModelBroker], Kind], ...] = (
    (AbortShows, Kind.ABORTED_READ),
    (Uncommitted, Kind.PRECOMMITTED_READ),
    (Uncommitted, Kind.ABORTED_READ),
    (CommitForgotten, Kind.LOST_COMMIT),
    (Half, Kind.TORN),
    (OnlyProduces, Kind.SPLIT),
    (OnlyAcknowledges, Kind.SPLIT),
    (AbortLeaks, Kind.PENDING_LEAK),
    (HoldsNothing, Kind.DOUBLE_PROCESSING),
    (MarkerTwice, Kind.DUPLICATE),
    (Backwards, Kind.SEND_ORDER),
    (ForgetsOutcomes, Kind.OUTCOME_CHANGED),
    (ReusesIds, Kind.ID_USED_TWICE),
    (ForgetsAcknowledgements, Kind.ACK_UNDONE),
    (ReusesPlaces, Kind.INCONSISTENT_OFFSETS),
    (CommitsInThePast, Kind.NONMONOTONIC_POLL),
    (SkipsReads, Kind.POLL_SKIP),
    (CursorPasses, Kind.UNSEEN),
    (MakesUp, Kind.INVENTED),
    (LosesPlain, Kind.LOST_WRITE),
)


# --- what clients do ------------------------------------------------------------------------------


@dataclass
class _Client:
    """The client's side of one transaction."""

    id: int
    history: TransactionHistory
    inputs: list[Input] = field(default_factory=list)


class _Play:
    """Clients of one broker; each step takes numbers from `draw`."""

    def __init__(self, broker: ModelBroker, draw: Callable[[int], int]) -> None:
        self.broker, self.draw, self.history = broker, draw, History()
        self._numbers = itertools.count()
        self._open: list[_Client] = []
        self._ended: list[_Client] = []
        self._watching = {
            topic: self.history.subscribe(topic, "watch", whole=True) for topic in TARGETS
        }
        self._seen = dict.fromkeys(TARGETS, 0)
        self._consumer = self._subscribe()

    def _subscribe(self) -> Session:
        return self.history.subscribe(SOURCE, MOVER)

    def step(self, action: int) -> None:
        acts = (
            self._publish,
            self._begin,
            self._move,
            self._move,
            self._send,
            self._commit,
            self._abort,
            self._ask_again,
            self._watch,
            self._crash,
        )
        acts[action % len(acts)]()

    def _publish(self) -> None:
        value = f"in-{next(self._numbers):03}"
        sent = self.history.publish(SOURCE, value)
        self.broker.publish(SOURCE, value)
        sent.confirm()

    def _begin(self) -> None:
        if len(self._open) < OPEN_MAX:
            number = self.broker.begin()
            self._open.append(_Client(number, self.history.begin(number)))

    def _any_open(self) -> _Client | None:
        return self._open[self.draw(len(self._open))] if self._open else None

    def _move(self) -> None:
        """Receive, acknowledge and publish in one transaction; on a conflict the message is left
        alone."""
        client, found = self._any_open(), self.broker.deliverable()
        if client is None or not found:
            return
        place, value = found[self.draw(len(found))]
        self._consumer.receive(place, value)
        acknowledged = client.history.acknowledge(SOURCE, MOVER, value)
        if not self.broker.acknowledge(client.id, value):
            client.history.acknowledgements.remove(acknowledged)
            return
        acknowledged.confirm()
        self._send(client, Input(SOURCE, MOVER, value))

    def _send(self, client: _Client | None = None, *sources: Input) -> None:
        client = client or self._any_open()
        if client is not None:
            topic, value = TARGETS[self.draw(len(TARGETS))], f"out-{next(self._numbers):03}"
            sent = client.history.send(topic, value, sources)
            self.broker.send(client.id, topic, value)
            sent.confirm()

    def _commit(self) -> None:
        client = self._any_open()
        if client is not None:
            client.history.ask_commit()
            self._end(client, Fate.COMMITTED)

    def _abort(self) -> None:
        client = self._any_open()
        if client is not None:
            self._end(client, Fate.ABORTED)

    def _end(self, client: _Client, fate: Fate) -> None:
        """The request is lost, or its answer, or neither."""
        self._open.remove(client)
        self._ended.append(client)
        luck = self.draw(4)
        if luck > 0:
            answer = self.broker.end(client.id, fate)
            if luck > 1:
                client.history.answer(answer)

    def _ask_again(self) -> None:
        """A client that had asked for the commit before asks again."""
        asked = [client for client in self._ended if client.history.commit_asked is not None]
        if asked:
            client = asked[self.draw(len(asked))]
            client.history.answer(self.broker.end(client.id, Fate.COMMITTED))

    def _watch(self) -> None:
        for topic, session in self._watching.items():
            entries = self.broker.readable(topic)
            for place, value in entries[self._seen[topic] :]:
                session.receive(place, value)
            self._seen[topic] = len(entries)

    def _crash(self) -> None:
        self.broker.crash()
        self._consumer = self._subscribe()
        for place, value in self.broker.deliverable()[:3]:
            self._consumer.receive(place, value)

    def finish(self) -> History:
        """Everything left open times out; then all is read."""
        for number in list(self.broker.transactions):
            self.broker.end(number, Fate.ABORTED)
        self._watch()
        for topic, entries in self.broker.topics.items():
            self.history.final_read(topic, entries)
        last, found = self._subscribe(), self.broker.deliverable()
        for place, value in found:
            last.receive(place, value)
        self.history.final_cursor(SOURCE, MOVER, [value for _, value in found])
        return self.history


def play(broker: ModelBroker, numbers: Iterator[int]) -> History:
    """A history of clients of `broker`; the course is `numbers`: an action, then what it
    chooses, until they are used up."""
    course = _Play(broker, lambda count: next(numbers, 0) % count)
    for action in numbers:
        course.step(action)
    return course.finish()
