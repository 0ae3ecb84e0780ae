"""Scenarios made from a seed.

Owns: `scenario(seed)`. Imports: the standard library. Pure. Invariants: the same seed gives the same
steps in every process; what a server is free to choose (which of several Shared consumers gets a
message) is never what a later step depends on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dev.differential.play import Step

STEPS_MIN, STEPS_MAX = 8, 24
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
SUBS = ("s1", "s2")
KEYS = ("a", "b", "c", "d", "e")
AVRO = [
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","int"],"default":null}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}',
]
SCHEMAS: list[dict[str, str]] = [
    *({"type": "Avro", "definition": text} for text in AVRO),
    {"type": "Json", "definition": AVRO[0]},
    {"type": "String"},
]


class _Author:
    """What the scenario has so far, as far as it can be known without running it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.steps: list[Step] = []
        self.sent = 0
        self.producers: dict[int, dict[str, Any]] = {}
        self.consumers: dict[int, tuple[str, str]] = {}
        self.connections: dict[int, int] = {}  # of consumers
        self.next_consumer = 0
        self.batches = self.chance.random() < 0.5
        """Batches and small permits do not go together: see the rule permits-in-entries."""
        self.types = {sub: self.chance.choice(TYPES) for sub in SUBS}

    def add(self, *step: Any) -> None:
        self.steps.append(list(step))

    def message(self) -> str:
        """A message that may have been published; sometimes one that was not."""
        return f"m{self.chance.randrange(self.sent + 1)}" if self.sent else "m0"

    def consumer(self) -> int | None:
        return self.chance.choice(sorted(self.consumers)) if self.consumers else None

    def crowded(self, number: int) -> bool:
        """Whether the server chooses who of the consumer's subscription gets what."""
        sub, kind = self.consumers[number]
        return kind == "Shared" and sum(other == sub for other, _ in self.consumers.values()) > 1


def _producer(author: _Author) -> None:
    number = len(author.producers)
    if number > 3:
        return
    options: dict[str, Any] = {"name": author.chance.choice(["p", "q", f"p{number}"])}
    if author.chance.random() < 0.25:
        options["access"] = author.chance.choice(["Exclusive", "ExclusiveWithFencing", "Shared"])
    if author.chance.random() < 0.15:
        options["schema"] = author.chance.choice(SCHEMAS)
    if author.chance.random() < 0.2:
        options["conn"] = 1
    if author.chance.random() < 0.05:
        options["initial"] = author.chance.choice(SUBS)
    author.producers[number] = {key: options[key] for key in ("conn",) if key in options}
    author.add("producer", number, options)


def _send(author: _Author) -> None:
    if not author.producers:
        _producer(author)
    options: dict[str, Any] = {}
    if author.chance.random() < 0.5:
        options["count"] = author.chance.randint(2, 5)
    if author.batches and author.chance.random() < 0.4:
        options["messages"] = author.chance.randint(1, 4)
    if author.chance.random() < 0.6:
        options["partition_key"] = author.chance.choice(KEYS)
    if author.chance.random() < 0.05:
        options["sequence"] = author.chance.randint(0, 3)
    author.sent += options.get("count", 1)
    author.add("send", author.chance.choice(list(author.producers)), options)


def _subscribe(author: _Author) -> None:
    sub = author.chance.choice(SUBS)
    kind = author.types[sub] if author.chance.random() < 0.85 else author.chance.choice(TYPES)
    number = author.next_consumer
    author.next_consumer += 1
    options: dict[str, Any] = {"type": kind, "name": f"c{number}"}
    if author.chance.random() < 0.7:
        options["position"] = "Earliest"
    if not author.batches and author.chance.random() < 0.3:
        options["permits"] = author.chance.randint(0, 4)
    if author.chance.random() < 0.1:
        options["durable"], sub = False, f"reader{number}"
        options["start"] = author.chance.choice(["earliest", "latest", author.message()])
        options.pop("position", None)
    if author.chance.random() < 0.1:
        options["priority"] = author.chance.randint(0, 2)
    if author.chance.random() < 0.15:
        options["conn"] = author.connections[number] = 1
    if author.chance.random() < 0.06:
        options["schema"] = author.chance.choice(SCHEMAS)
    author.consumers[number] = (sub, kind)
    author.add("subscribe", number, sub, options)


def _flow(author: _Author) -> None:
    number = author.consumer()
    if number is not None:
        author.add("flow", number, author.chance.randint(1, 5))


def _ack(author: _Author) -> None:
    number = author.consumer()
    if number is None or not author.sent:
        return
    cumulative = author.chance.random() < 0.3 and author.consumers[number][1] in (
        "Exclusive",
        "Failover",
    )
    count = 1 if cumulative else author.chance.randint(1, 3)
    names = sorted({author.message() for _ in range(count)})
    if author.chance.random() < 0.2:
        names = [f"{names[0]}:{author.chance.randint(0, 1)}"]
    author.add("ack", number, names, {"cumulative": True} if cumulative else {})


def _redeliver(author: _Author) -> None:
    number = author.consumer()
    if number is None or author.crowded(number):
        return
    names = [author.message()] if author.chance.random() < 0.5 and author.sent else []
    author.add("redeliver", number, names)


def _again(author: _Author, sub: str) -> None:
    """The consumers of a subscription come back, as clients do when the broker closed them."""
    for number, (name, kind) in sorted(author.consumers.items()):
        if name == sub:
            options: dict[str, Any] = {"type": kind, "name": f"c{number}"}
            if author.connections.get(number):
                options["conn"] = author.connections[number]
            author.add("subscribe", number, sub, options)


def _seek(author: _Author) -> None:
    number = author.consumer()
    if number is None or author.consumers[number][0].startswith("reader"):
        return
    sub, kind = author.consumers[number]
    if kind == "Failover" and sum(other == sub for other, _ in author.consumers.values()) > 1:
        return  # see the rule seek-of-a-standby
    target = author.chance.choice(
        ["earliest", "latest", author.message(), author.message(), f"time:{author.message()}"]
    )
    author.add("seek", number, target)
    _again(author, sub)


def _close(author: _Author) -> None:
    number = author.consumer()
    if number is None:
        return
    sub, kind = author.consumers[number]
    closed = [other for other, found in sorted(author.consumers.items()) if found == (sub, kind)]
    if kind == "Shared":
        author.add("close_consumers", closed)
    else:
        author.add("close_consumer", number)
        closed = [number]
    for other in closed:
        del author.consumers[other]


def _unsubscribe(author: _Author) -> None:
    number = author.consumer()
    if number is not None:
        author.add("unsubscribe", number)
        del author.consumers[number]


def _ask(author: _Author) -> None:
    number = author.consumer()
    if number is None:
        author.add(author.chance.choice(["lookup", "partitions", "schema"]))
    elif author.crowded(number):
        author.add("last_id", number)
    else:
        author.add(author.chance.choice(["last_id", "consumer_stats"]), number)


def _unload(author: _Author) -> None:
    author.add("rest", "PUT", "unload")
    for number, kept in author.producers.items():
        author.add("producer", number, {"name": f"p{number}"} | kept)
    for sub in sorted(
        {sub for sub, _ in author.consumers.values() if not sub.startswith("reader")}
    ):
        _again(author, sub)
    for number in [n for n, (sub, _) in author.consumers.items() if sub.startswith("reader")]:
        del author.consumers[number]


def _admin(author: _Author) -> None:
    sub, message = author.chance.choice(SUBS), author.message()
    for requests in (
        [
            ("PUT", f"subscription/{sub}", author.chance.choice([None, f"${message}"])),
            ("POST", f"subscription/{sub}/skip/{author.chance.randint(1, 3)}", None),
            ("POST", f"subscription/{sub}/skip_all", None),
            ("POST", f"subscription/{sub}/resetcursor", f"${message}"),
            ("POST", f"subscription/{sub}/expireMessages", f"${message}"),
            ("DELETE", f"subscription/{sub}", None),
            ("GET", "subscriptions", None),
            ("GET", "lastMessageId", None),
            ("POST", "terminate", None),
        ],
    ):
        weights = [3, 3, 2, 3, 2, 2, 1, 1, 0.5]
        author.add("rest", *author.chance.choices(requests, weights)[0])
    if author.steps[-1][2].endswith("resetcursor"):
        _again(author, sub)


def _policy(author: _Author) -> None:
    name, body = author.chance.choice(
        [
            ("deduplicationEnabled", True),
            ("maxProducers", 1),
            ("maxConsumers", 1),
            ("maxSubscriptionsPerTopic", 1),
            ("subscriptionTypesEnabled", ["Shared", "Failover"]),
            ("schemaValidationEnforced", True),
        ]
    )
    author.add("rest", "POST", name, body)
    author.add("wait", 300)


def _txn(author: _Author) -> None:
    """A transaction that publishes and acknowledges, and ends."""
    if not author.producers:
        _producer(author)
    number = sum(step[0] == "begin" for step in author.steps)
    known = f"m{author.chance.randrange(author.sent // 2)}" if author.sent > 1 else None
    author.add("begin", number)
    author.add("enlist", number)
    author.add("send", author.chance.choice(list(author.producers)), {"txn": number, "count": 2})
    author.sent += 2
    consumer = author.consumer()
    if consumer is not None and known is not None and author.chance.random() < 0.6:
        author.add("enlist", number, author.consumers[consumer][0])
        author.add("ack", consumer, [known], {"txn": number})
    author.add("end", number, author.chance.random() < 0.6)


ACTIONS: tuple[tuple[Callable[[_Author], None], float], ...] = (
    (_producer, 1.5), (_send, 6), (_subscribe, 4), (_flow, 1.5), (_ack, 5), (_redeliver, 2),
    (_seek, 1.2), (_close, 1.5), (_unsubscribe, 0.6), (_ask, 1.5), (_unload, 0.4), (_admin, 1),
    (_policy, 0.15), (_txn, 0.25),
)  # fmt: skip


def scenario(seed: int) -> list[Step]:
    """The steps of a seed; at the end what every subscription still has."""
    author = _Author(seed)
    _producer(author)
    length = author.chance.randint(STEPS_MIN, STEPS_MAX)
    while len(author.steps) < length:
        actions, weights = zip(*ACTIONS, strict=True)
        author.chance.choices(actions, weights)[0](author)
    author.add("stats")
    author.add("close_consumers", sorted(author.consumers))
    for sub in SUBS:
        author.add("backlog", sub)
    return author.steps
