"""What clients asked for and which answers they got.

Owns: `History`, the record of client operations and of a few broker facts, in one total order.
Imports: dataclasses, the checks. The recorders know nothing of the broker: they take plain names,
numbers and bytes. Every record gets the next number of one logical clock (`order`), which in the
simulation is exactly the order in which things happened. Invariant: recording never fails and never
changes what it recorded, except that an operation gets its outcome.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.topics.ledger_ids import epoch_of


class Position(NamedTuple):
    """A message id: ledger, entry, index in a batch (-1 = not a batch)."""

    ledger: int
    entry: int
    batch: int = -1

    @property
    def epoch(self) -> int:
        """The owner's term that wrote the message."""
        return epoch_of(self.ledger)


class Outcome(enum.Enum):
    """What the client knows of an operation."""

    UNKNOWN = "no answer"
    CONFIRMED = "confirmed"
    FAILED = "refused"


@dataclass(slots=True)
class Send:
    """One send. `position` is None while unknown, and for a receipt that says "duplicate"
    without telling where."""

    history: History
    topic: str
    producer: str
    sequence: int
    payload: bytes
    invoked: int
    outcome: Outcome = Outcome.UNKNOWN
    position: Position | None = None
    completed: int = 0

    def acknowledged(self, position: Position | None) -> None:
        """A receipt came."""
        self.outcome, self.position, self.completed = (
            Outcome.CONFIRMED,
            position,
            self.history.tick(),
        )

    def failed(self) -> None:
        """An error came: the message may be there all the same, unless the error says otherwise."""
        self.outcome, self.completed = Outcome.FAILED, self.history.tick()


@dataclass(slots=True)
class Session:
    """One attachment of a consumer to a subscription: record it when SUBSCRIBE is sent, again
    after every reconnect."""

    history: History
    consumer: str
    subscription: str
    topic: str
    opened: int
    durable: bool = True

    def received(self, position: Position, payload: bytes) -> None:
        """A message was delivered in this session."""
        self.history.received.append(Received(self, position, payload, self.history.tick()))

    def ack(self, position: Position, *, cumulative: bool = False) -> Ack:
        """An acknowledgement with a request id is sent; mark it `confirmed` when ACK_RESPONSE
        comes without an error."""
        ack = Ack(self, position, cumulative, self.history.tick())
        self.history.acks.append(ack)
        return ack


@dataclass(frozen=True, slots=True)
class Received:
    session: Session
    position: Position
    payload: bytes
    order: int


@dataclass(slots=True)
class Ack:
    session: Session
    position: Position
    cumulative: bool
    invoked: int
    completed: int = 0

    def confirmed(self) -> None:
        """ACK_RESPONSE came without an error."""
        self.completed = self.session.history.tick()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message as read back at the end."""

    position: Position
    producer: str
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """A broker is about to send a receipt: where, and which incarnation it is."""

    topic: str
    position: Position
    incarnation: str
    order: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """A bundle was recovered from a former owner: the last position found per topic (absent =
    none) under epochs up to `epoch`."""

    former: str
    epoch: int
    recovered: Mapping[str, Position]
    topics: frozenset[str]
    order: int


@dataclass(slots=True)
class History:
    """All records of one run. `trimmed` are topics that keep nothing that their only
    subscription has acknowledged."""

    sends: list[Send] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    logs: dict[str, list[LogEntry]] = field(default_factory=dict)
    trimmed: set[str] = field(default_factory=set)
    order: int = 0

    def tick(self) -> int:
        """The next number of the logical clock."""
        self.order += 1
        return self.order

    def send(self, topic: str, producer: str, sequence: int, payload: bytes) -> Send:
        """A client is about to send. `topic` is the partition's full name, `sequence` the
        producer's number."""
        send = Send(self, topic, producer, sequence, payload, self.tick())
        self.sends.append(send)
        return send

    def session(
        self, consumer: str, subscription: str, topic: str, *, durable: bool = True
    ) -> Session:
        """A consumer is about to attach; `durable` False for readers, whose acknowledgements
        mean nothing later."""
        return Session(self, consumer, subscription, topic, self.tick(), durable)

    def receipt(self, topic: str, position: Position, incarnation: str) -> None:
        """Hook for brokers: a receipt leaves `incarnation`."""
        self.receipts.append(Receipt(topic, position, incarnation, self.tick()))

    def takeover(
        self, former: str, epoch: int, topics: Iterable[str], recovered: Mapping[str, Position]
    ) -> None:
        """Hook for brokers: what was found when recovering `topics` from the log of `former`,
        whose term was `epoch`."""
        self.takeovers.append(
            Takeover(former, epoch, dict(recovered), frozenset(topics), self.tick())
        )

    def final_log(self, topic: str, entries: Iterable[LogEntry]) -> None:
        """Everything a reader from the earliest position finds at the end, in the order of
        delivery."""
        self.logs[topic] = list(entries)

    @property
    def acknowledged(self) -> int:
        """How many sends were acknowledged: a run that acknowledged nothing has proved nothing."""
        return sum(send.outcome is Outcome.CONFIRMED for send in self.sends)

    def check(self, *, deduplicated: bool) -> None:
        """Run every check. Raises HistoryViolated listing what was found."""
        from tests.simulation.kernel.checks import check_all

        check_all(self, deduplicated=deduplicated)
