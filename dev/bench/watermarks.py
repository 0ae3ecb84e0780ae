"""`python -m dev.bench.watermarks`: what one assertion costs a topic and one subscription.

Owns: the cases, each with `--producers` active producers, and their table. Imports:
magnetar.watermarks, dev.bench.report. Figures are microseconds of processor time an update, the
best of some rounds: assertions are made in an order and by steps that come from a seed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Mapping
from itertools import count

from dev.bench.report import table
from magnetar.transactions.ids import TxnId
from magnetar.watermarks.codec import encode
from magnetar.watermarks.generator import Generator
from magnetar.watermarks.records import Assertion, End, Event, Hold, Idle
from magnetar.watermarks.timeline import Anchored, SnapshotInterval, Timeline

PRODUCERS, UPDATES, ROUNDS = 10_000, 20_000, 5
BAR_US = 5.0
LEDGER = 7


class Topic:
    """A timeline and a subscription that has acknowledged everything."""

    def __init__(self, producers: int) -> None:
        self.chance = random.Random(producers)
        self.names = [f"standalone-1f-{number}" for number in range(producers)]
        self.timeline = Timeline(interval=SnapshotInterval(records=1 << 30))
        self.generator = Generator(self.timeline, (LEDGER, 0))
        self.entry = 0
        for name in self.names:
            self.take(Assertion(name, 0))

    def take(self, event: Event) -> None:
        """A record is durable, and the subscription follows."""
        self.entry += 1
        self.timeline.apply(*self.timeline.queue((LEDGER, self.entry), event))
        self.generator.advance((LEDGER, self.entry))

    def event(self, number: int) -> Assertion:
        return Assertion(self.chance.choice(self.names), number)


def any_producer(topic: Topic) -> Callable[[int], list[Event]]:
    return lambda number: [topic.event(number)]


def slowest_first(topic: Topic) -> Callable[[int], list[Event]]:
    """Each assertion is of the producer that decides: every one moves the watermark."""
    names = topic.names
    return lambda number: [Assertion(names[number % len(names)], number)]


def one_transaction_each(topic: Topic) -> Callable[[int], list[Event]]:
    """A transaction with an assertion in it: three records."""

    def events(number: int) -> list[Event]:
        name, txn = topic.event(number).producer, TxnId(0, number)
        return [Hold(name, txn), Assertion(name, number, txn), End(txn, True)]

    return events


def leave_and_return(topic: Topic) -> Callable[[int], list[Event]]:
    """Idle and back: two records."""

    def events(number: int) -> list[Event]:
        event = topic.event(number)
        return [Idle(event.producer), event]

    return events


CASES: Mapping[str, Callable[[Topic], Callable[[int], list[Event]]]] = {
    "any producer asserts": any_producer,
    "the slowest asserts": slowest_first,
    "idle and back": leave_and_return,
    "in a transaction": one_transaction_each,
}


def update_us(case: str, producers: int, updates: int = UPDATES, rounds: int = ROUNDS) -> float:
    """What a record costs: its anchor, the topic's standing, and the subscription's."""
    topic = Topic(producers)
    events, numbers, best = CASES[case](topic), count(1), float("inf")
    for _ in range(rounds):
        made = [event for _ in range(updates) for event in events(next(numbers))]
        gc.collect()
        began = time.process_time()
        for event in made:
            topic.take(event)
        best = min(best, (time.process_time() - began) / len(made) * 1e6)
    return best


def snapshot_ms(producers: int) -> dict[str, float]:
    """What is done once an interval, or once a seek or an attach."""
    topic, found = Topic(producers), {}
    began = time.process_time()
    snapshot = topic.timeline.head.to_snapshot()
    found["snapshot"] = (time.process_time() - began) * 1e3
    began = time.process_time()
    segments = encode(Anchored(topic.timeline.last, snapshot))
    found["encode"] = (time.process_time() - began) * 1e3
    found["kilobytes"] = sum(map(len, segments)) / 1024
    began = time.process_time()
    topic.timeline.standing_at((LEDGER, topic.entry))
    found["seek over an interval"] = (time.process_time() - began) * 1e3
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.bench.watermarks", description=__doc__)
    parser.add_argument("--producers", type=int, default=PRODUCERS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {case: update_us(case, options.producers) for case in CASES}
    once = snapshot_ms(options.producers)
    if options.json:
        print(json.dumps({"update_us": figures, "once_ms": once, "bar_us": BAR_US}))
        return
    print(table(("case", "us a record"), [(case, f"{us:.2f}") for case, us in figures.items()]))
    print(table(("once", "ms"), [(case, f"{ms:.1f}") for case, ms in once.items()]))


if __name__ == "__main__":
    main()
