"""What clients were promised, what became of it, and every contradiction between the two.

Owns: `TopicHistory`, `SubscriptionHistory` and `violations`. Imports: nothing but the standard
library. Invariants: a message counts as acknowledged only by its receipt; an acknowledgement as
confirmed only by the broker's answer, and what is delivered to a consumer that subscribed after
that contradicts it; judging changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Message = tuple[str, int]
"""Producer and number; each producer counts from 0."""
Place = tuple[int, int, int]
"""Ledger, entry, index in the batch (-1 without one)."""
Where = tuple[int, Place]
"""Partition (-1 for a plain topic) and place in it."""
SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    kind: str
    topic: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.topic}: {self.detail}"


@dataclass(slots=True)
class SubscriptionHistory:
    """One subscription of one topic, made before the first message. `ordered`: one consumer at a
    time is given messages."""

    name: str
    kind: str
    ordered: bool
    delivered: list[tuple[int, Message]] = field(default_factory=list)
    """Partition and message, in order of arrival."""
    confirmed: dict[Where, float] = field(default_factory=dict)
    """When the broker's answer to the acknowledgement came."""
    undone: list[str] = field(default_factory=list)
    distinct: set[Message] = field(default_factory=set)

    def deliver(self, where: Where, message: Message, session_began: float) -> None:
        """A message came to a consumer that began to subscribe at `session_began`."""
        self.delivered.append((where[0], message))
        self.distinct.add(message)
        confirmed = self.confirmed.get(where)
        if confirmed is not None and confirmed < session_began:
            self.undone.append(
                f"{message} at {where}, confirmed {session_began - confirmed:.2f} s before the "
                "consumer subscribed"
            )


@dataclass(slots=True)
class TopicHistory:
    """One topic with all its partitions."""

    name: str
    deduplicated: bool
    partitions: tuple[int, ...] = (-1,)
    client: str = ""
    """Which client publishes."""
    sent: Counter[str] = field(default_factory=Counter)
    """How many messages each producer has sent."""
    receipts: dict[Message, Where | None] = field(default_factory=dict)
    """Acknowledged messages; None where the receipt only says that the message is known already."""
    times: list[float] = field(default_factory=list)
    """When receipts came."""
    failed: list[str] = field(default_factory=list)
    stored: dict[int, list[tuple[Place, Message]]] = field(default_factory=dict)
    """What each partition holds in the end, in the order in which a reader gets it."""
    subscriptions: list[SubscriptionHistory] = field(default_factory=list)

    def receipt(self, message: Message, where: Where, at: float) -> None:
        self.receipts[message] = where if where[1][0] >= 0 else None
        self.times.append(at)

    def unanswered(self) -> int:
        """Sends that have neither a receipt nor an error."""
        return self.sent.total() - len(self.receipts) - len(self.failed)

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time without a receipt that overlaps the span, in seconds."""
        times = sorted(self.times)  # callbacks of several threads: nearly in order
        first, last = bisect_left(times, since), bisect_right(times, until)
        before, after = (
            times[first - 1] if first else since,
            times[last] if last < len(times) else until,
        )
        points = [before, *times[first:last], after]
        return max(following - point for point, following in pairwise(points))


def violations(topics: Iterable[TopicHistory]) -> list[Violation]:
    """Everything that contradicts the answers that clients got."""
    return [
        Violation(kind, topic.name, detail) for topic in topics for kind, detail in _judge(topic)
    ]


def _judge(topic: TopicHistory) -> Iterator[tuple[str, str]]:
    yield from _judge_sends(topic)
    yield from _judge_log(topic)
    for subscription in topic.subscriptions:
        yield from (
            (kind, f"subscription {subscription.name} ({subscription.kind}): {detail}")
            for kind, detail in _judge_deliveries(topic, subscription)
        )


def _judge_sends(topic: TopicHistory) -> Iterator[tuple[str, str]]:
    if topic.failed:
        yield "send failed", _some(topic.failed)
    if topic.unanswered():
        yield "send unanswered", f"{topic.unanswered()} of {topic.sent.total()}"
    at = {
        (partition, place): message
        for partition, entries in topic.stored.items()
        for place, message in entries
    }
    everything = {message for entries in topic.stored.values() for _, message in entries}
    lost = sorted(message for message in topic.receipts if message not in everything)
    if lost:
        yield "lost", _some(lost)
    wrong = [
        (message, where)
        for message, where in topic.receipts.items()
        if where is not None and at.get(where) != message
    ]
    misplaced = [
        f"{message} is not at {where}, there is {at.get(where)}"
        for message, where in wrong
        if message in everything
    ]
    if misplaced:
        yield "misplaced", _some(misplaced)


def _judge_log(topic: TopicHistory) -> Iterator[tuple[str, str]]:
    times_stored: Counter[Message] = Counter()
    for partition, entries in topic.stored.items():
        places = [place for place, _ in entries]
        if len(set(places)) != len(places):
            yield (
                "id used twice",
                f"partition {partition}: "
                f"{_some([place for place, n in Counter(places).items() if n > 1])}",
            )
        falling = [(first, second) for first, second in pairwise(places) if second < first]
        if falling:
            yield "ids fall", f"partition {partition}: {_some(falling)}"
        times_stored.update(message for _, message in entries)
        for detail in _disorder(message for _, message in entries):
            yield "order", f"partition {partition}: {detail}"
    invented = [message for message in times_stored if not 0 <= message[1] < topic.sent[message[0]]]
    if invented:
        yield "invented", _some(invented)
    if topic.deduplicated and (
        twice := [message for message, count in times_stored.items() if count > 1]
    ):
        yield "duplicate", _some(sorted(twice))


def _judge_deliveries(
    topic: TopicHistory, subscription: SubscriptionHistory
) -> Iterator[tuple[str, str]]:
    stored = {message for entries in topic.stored.values() for _, message in entries}
    missing = sorted(stored - subscription.distinct)
    if missing:
        yield "undelivered", _some(missing)
    unknown = sorted(subscription.distinct - stored)
    if unknown:
        yield "delivered and not in the log", _some(unknown)
    if subscription.undone:
        yield "acknowledgement undone", _some(subscription.undone)
    if subscription.ordered:
        by_partition: dict[int, list[Message]] = defaultdict(list)
        for partition, message in subscription.delivered:
            by_partition[partition].append(message)
        for partition, messages in by_partition.items():
            for detail in _disorder(messages):
                yield "delivery order", f"partition {partition}: {detail}"


def _disorder(messages: Iterable[Message]) -> list[str]:
    """First appearances of a producer's messages that come after a later one; repetitions do not
    count."""
    highest: dict[str, int] = {}
    seen: set[Message] = set()
    found = []
    for producer, number in messages:
        if (producer, number) in seen:
            continue
        seen.add((producer, number))
        if number < highest.get(producer, -1):
            found.append(f"{producer} {number} after {highest[producer]}")
        highest[producer] = max(number, highest.get(producer, -1))
    return found[:SHOWN_MAX]


def _some(found: Sequence[object]) -> str:
    shown = ", ".join(str(item) for item in found[:SHOWN_MAX])
    return f"{len(found)}: {shown}{', ...' if len(found) > SHOWN_MAX else ''}"
