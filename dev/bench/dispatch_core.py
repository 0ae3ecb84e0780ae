"""What the topic cores cost per run and per entry.

Owns: a micro-benchmark of publish, dispatch and acknowledgement without sockets or disk. Imports:
magnetar.topics, the standard library. Run: `PYTHONPATH=broker_image python
dev/bench/dispatch_core.py`. Prints the best of several rounds, in microseconds, and a reference
loop measured in the same run, by which figures of different machines can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from magnetar.hashes import murmur3
from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import DispatchLimits, EntryTraits, SubscriptionType
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic

ENTRIES = 100_000
RUN = 100
RUNS = ENTRIES // RUN
ROUNDS = 5
KEYS = 10_000
TRAITS = [EntryTraits(murmur3(b"key-%d" % (number * 7919 % KEYS))) for number in range(ENTRIES)]
EXCLUSIVE, SHARED, KEY_SHARED = (
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.SHARED,
    SubscriptionType.KEY_SHARED,
)
NO_LIMITS = DispatchLimits(
    unacknowledged_per_consumer_messages_max=0, unacknowledged_per_subscription_messages_max=0
)


def subscription_of(kind: SubscriptionType, consumers: int) -> Subscription:
    subscription = Subscription(
        "bench", True, Cursor(LedgerTable([(3, ENTRIES)]), 0), limits=NO_LIMITS
    )
    for handle in range(consumers):
        subscription.add_consumer(handle, kind, name=f"consumer-{handle}")
        subscription.flow(handle, ENTRIES * 10)
    return subscription


def deliver(subscription: Subscription, counts: list[int]) -> None:
    """next_read and dispatch until everything is out."""
    while (request := subscription.next_read(RUN)) is not None:
        subscription.dispatch(
            request.first, counts, TRAITS[request.first : request.first + request.entries]
        )


def best(prepare: Callable[[], Subscription], work: Callable[[Subscription], None]) -> float:
    """Seconds of the fastest round."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        subscription = prepare()
        started = time.perf_counter()
        work(subscription)
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


def acknowledge_each(subscription: Subscription) -> None:
    """One ACK per entry, in order: what most consumers send."""
    for ordinal in range(ENTRIES):
        subscription.acknowledge(ordinal // 20 % 3, ((ordinal, ordinal + 1),))


def acknowledge_scattered(subscription: Subscription) -> None:
    """One ACK per entry in an order that leaves many holes on the way."""
    for offset in range(0, ENTRIES, 2000):
        for step in range(2000):
            ordinal = offset + step * 7 % 2000
            subscription.acknowledge(ordinal // 20 % 3, ((ordinal, ordinal + 1),))


def publish(_: Subscription) -> None:
    """Assign and confirm runs of 100."""
    topic = Topic("persistent://public/default/bench", LedgerIds(1))
    for _number in range(RUNS):
        topic.confirm(topic.publish(RUN), RUN)


def reference(_: Subscription) -> None:
    """A plain loop of additions: the machine's speed in this run."""
    total = 0
    for number in range(ENTRIES):
        total += number


def delivered(kind: SubscriptionType, consumers: int) -> Callable[[], Subscription]:
    def prepare() -> Subscription:
        subscription = subscription_of(kind, consumers)
        deliver(subscription, [1] * RUN)
        return subscription

    return prepare


Row = tuple[str, Callable[[], Subscription], Callable[[Subscription], None], float]
"""Title, what is prepared, what is measured, and of how many units the time is."""


def connected(kind: SubscriptionType, consumers: int) -> Callable[[], Subscription]:
    return lambda: subscription_of(kind, consumers)


def dispatch_rows() -> Iterator[Row]:
    def single(subscription: Subscription) -> None:
        deliver(subscription, [1] * RUN)

    def batched(subscription: Subscription) -> None:
        deliver(subscription, [5] * RUN)

    yield "exclusive dispatch, per run of 100", connected(EXCLUSIVE, 1), single, RUNS
    yield "shared dispatch, 3 consumers, per entry", connected(SHARED, 3), single, ENTRIES
    yield "shared dispatch, batches of 5, per entry", connected(SHARED, 3), batched, ENTRIES
    yield "shared dispatch, 1000 consumers, per entry", connected(SHARED, 1000), single, ENTRIES
    for consumers in (1, 8, 100, 1000):
        title = f"key_shared dispatch, {consumers} consumers, per entry"
        yield title, connected(KEY_SHARED, consumers), single, ENTRIES


def rows() -> Iterator[Row]:
    one = connected(EXCLUSIVE, 1)
    yield "reference loop, per iteration", one, reference, ENTRIES
    yield "publish and confirm, per run of 100", one, publish, RUNS
    yield from dispatch_rows()
    for name, kind, consumers in (
        ("exclusive acknowledgement", EXCLUSIVE, 1),
        ("shared acknowledgement in order", SHARED, 3),
        ("key_shared acknowledgement in order", KEY_SHARED, 3),
    ):
        yield f"{name}, per entry", delivered(kind, consumers), acknowledge_each, ENTRIES
    title = "shared acknowledgement scattered, per entry"
    yield title, delivered(SHARED, 3), acknowledge_scattered, ENTRIES


def main() -> None:
    for title, prepare, work, units in rows():
        print(f"{title:<48}{best(prepare, work) / units * 1e6:8.3f} us")


if __name__ == "__main__":
    main()
