"""What the topic cores cost per run and per entry.

Owns: a micro-benchmark of publish, dispatch and acknowledgement without sockets or disk. Imports:
magnetar.topics, the standard library. Run: `PYTHONPATH=broker_image python
dev/bench/dispatch_core.py`. Prints the best of several rounds, in microseconds, and a reference
loop measured in the same run, by which figures of different machines can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from magnetar.hashes import murmur3
from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import DispatchLimits, EntryTraits, SubscriptionType
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic

ENTRIES = 100_000
RUN = 100
ROUNDS = 5
KEYS = 10_000
TRAITS = [EntryTraits(murmur3(b"key-%d" % (number * 7919 % KEYS))) for number in range(ENTRIES)]
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
    for _number in range(ENTRIES // RUN):
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


def main() -> None:
    exclusive, shared, by_key = (
        SubscriptionType.EXCLUSIVE,
        SubscriptionType.SHARED,
        SubscriptionType.KEY_SHARED,
    )
    single, batch = [1] * RUN, [5] * RUN
    per_run, per_entry = ENTRIES / RUN, float(ENTRIES)
    rows: list[tuple[str, Callable[[], Subscription], Callable[[Subscription], None], float]] = [
        (
            "reference loop, per iteration",
            lambda: subscription_of(exclusive, 1),
            reference,
            per_entry,
        ),
        (
            "publish and confirm, per run of 100",
            lambda: subscription_of(exclusive, 1),
            publish,
            per_run,
        ),
        (
            "exclusive dispatch, per run of 100",
            lambda: subscription_of(exclusive, 1),
            lambda s: deliver(s, single),
            per_run,
        ),
        (
            "shared dispatch, 3 consumers, per entry",
            lambda: subscription_of(shared, 3),
            lambda s: deliver(s, single),
            per_entry,
        ),
        (
            "shared dispatch, batches of 5, per entry",
            lambda: subscription_of(shared, 3),
            lambda s: deliver(s, batch),
            per_entry,
        ),
        (
            "shared dispatch, 1000 consumers, per entry",
            lambda: subscription_of(shared, 1000),
            lambda s: deliver(s, single),
            per_entry,
        ),
        *(
            (
                f"key_shared dispatch, {consumers} consumers, per entry",
                lambda consumers=consumers: subscription_of(by_key, consumers),
                lambda s: deliver(s, single),
                per_entry,
            )
            for consumers in (1, 8, 100, 1000)
        ),
        (
            "exclusive acknowledgement, per entry",
            delivered(exclusive, 1),
            acknowledge_each,
            per_entry,
        ),
        (
            "shared acknowledgement in order, per entry",
            delivered(shared, 3),
            acknowledge_each,
            per_entry,
        ),
        (
            "key_shared acknowledgement in order, per entry",
            delivered(by_key, 3),
            acknowledge_each,
            per_entry,
        ),
        (
            "shared acknowledgement scattered, per entry",
            delivered(shared, 3),
            acknowledge_scattered,
            per_entry,
        ),
    ]
    for title, prepare, work, units in rows:
        print(f"{title:<48}{best(prepare, work) / units * 1e6:8.3f} us")


if __name__ == "__main__":
    main()
