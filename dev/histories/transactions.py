"""The history of clients that use transactions.

Owns: `History` and the records below it: what was begun, sent, acknowledged, asked for, answered
and received, and what lay in the topics and before the subscriptions in the end. Imports: the
standard library. Pure: moments are a counter, so the recording program decides the order.
Invariants: a question is recorded before it is asked, an answer after it has come, and a reception
after the session that got it has begun; a value is sent once in a history (a client that sends it
again does so with the same request, not with a new one); an outcome that did not come is none.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int, int]
"""Ledger, entry, index in the batch (-1 without one)."""


class Input(NamedTuple):
    """A message as a subscription sees it."""

    topic: str
    subscription: str
    value: str

    def __str__(self) -> str:
        return f"{self.value} of {self.topic} on {self.subscription}"


class Fate(enum.Enum):
    """What is known of a transaction's end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """An answer said so, or nobody ever asked for its commit."""
    UNKNOWN = "unknown"
    """Its commit was asked for, and nobody said what came of it."""


@dataclass(slots=True)
class Send:
    """One message. `sources`: the inputs it follows from; `producer`: whose order it is in."""

    topic: str
    value: str
    producer: str = ""
    sources: tuple[Input, ...] = ()
    confirmed: bool = False
    """The broker said that it is stored. One that never said so may be there or not."""

    def confirm(self) -> None:
        """The receipt came."""
        self.confirmed = True


@dataclass(slots=True)
class Acknowledgement:
    """One acknowledgement of one message; a cumulative one is as many as it covers."""

    input: Input
    _moments: Iterator[int]
    confirmed_at: int | None = None

    def confirm(self) -> None:
        """The broker's answer came."""
        self.confirmed_at = next(self._moments)


@dataclass(slots=True)
class TransactionHistory:
    """One transaction. `id`: what the coordinator gave; answers of several clients about it come
    together here."""

    id: Hashable
    client: str
    _moments: Iterator[int]
    began: int
    sends: list[Send] = field(default_factory=list)
    """In the order in which the client sent them."""
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    commit_asked: int | None = None
    answers: list[Fate] = field(default_factory=list)
    """COMMITTED and ABORTED only."""

    def send(
        self, topic: str, value: str, sources: Sequence[Input] = (), producer: str = ""
    ) -> Send:
        """The client sends a message (of one partition) in the transaction."""
        sent = Send(topic, value, producer, tuple(sources))
        self.sends.append(sent)
        return sent

    def acknowledge(self, topic: str, subscription: str, value: str) -> Acknowledgement:
        """The client acknowledges a message in the transaction."""
        acknowledged = Acknowledgement(Input(topic, subscription, value), self._moments)
        self.acknowledgements.append(acknowledged)
        return acknowledged

    def ask_commit(self) -> None:
        """The client asks for the commit, perhaps again."""
        if self.commit_asked is None:
            self.commit_asked = next(self._moments)

    def answer(self, fate: Fate) -> None:
        """A coordinator said what became of it; UNKNOWN says nothing."""
        if fate is not Fate.UNKNOWN:
            self.answers.append(fate)

    @property
    def fate(self) -> Fate:
        """What must have become of it; the first answer counts."""
        if self.answers:
            return self.answers[0]
        return Fate.UNKNOWN if self.commit_asked is not None else Fate.ABORTED

    def __str__(self) -> str:
        return (
            f"transaction {self.id} of {self.client}" if self.client else f"transaction {self.id}"
        )


class Reception(NamedTuple):
    """A message that came to a client."""

    moment: int
    place: Place
    value: str


@dataclass(slots=True)
class Session:
    """One consumer or reader, from `began`, before it subscribed, on.

    `ordered`: it alone is given messages, each one first in order; `whole`: besides, it is a reader
    from the beginning, so that none is left out.
    """

    topic: str
    subscription: str
    ordered: bool
    whole: bool
    _moments: Iterator[int]
    began: int
    received: list[Reception] = field(default_factory=list)

    def receive(self, place: Place, value: str) -> None:
        """A message came."""
        self.received.append(Reception(next(self._moments), place, value))


class Stored(NamedTuple):
    """A message as a reader from the beginning finds it in the end."""

    place: Place
    value: str


class History:
    """Everything. Topics are named by their partitions. What lies in `trimmed` topics may be
    gone once a consumer has received it."""

    def __init__(self) -> None:
        self._moments = itertools.count()
        self.transactions: list[TransactionHistory] = []
        self.published: list[Send] = []
        """Outside of transactions."""
        self.acknowledged: list[Acknowledgement] = []
        """Outside of transactions."""
        self.sessions: list[Session] = []
        self.stored: dict[str, list[Stored]] = {}
        self.remaining: dict[tuple[str, str], list[str]] = {}
        """By topic and subscription."""
        self.trimmed: set[str] = set()
        self.expiring: set[str] = set()
        """Topics whose messages leave subscriptions by their age as well."""

    def begin(self, identifier: Hashable, client: str = "") -> TransactionHistory:
        """A coordinator answered with the id of a new transaction."""
        begun = TransactionHistory(identifier, client, self._moments, next(self._moments))
        self.transactions.append(begun)
        return begun

    def publish(self, topic: str, value: str) -> Send:
        """A client sends a message outside of transactions."""
        sent = Send(topic, value)
        self.published.append(sent)
        return sent

    def acknowledge(self, topic: str, subscription: str, value: str) -> Acknowledgement:
        """A client acknowledges a message outside of transactions."""
        acknowledged = Acknowledgement(Input(topic, subscription, value), self._moments)
        self.acknowledged.append(acknowledged)
        return acknowledged

    def subscribe(
        self, topic: str, subscription: str, *, ordered: bool = False, whole: bool = False
    ) -> Session:
        """A client is about to make a consumer or a reader (which has a subscription of its
        own)."""
        session = Session(
            topic, subscription, ordered or whole, whole, self._moments, next(self._moments)
        )
        self.sessions.append(session)
        return session

    def final_read(self, topic: str, entries: Iterable[tuple[Place, str]]) -> None:
        """All of a topic, in a reader's order, after every transaction has ended."""
        self.stored[topic] = [Stored(place, value) for place, value in entries]

    def final_cursor(self, topic: str, subscription: str, values: Iterable[str]) -> None:
        """All that a new consumer of a subscription gets, after every transaction has ended and
        all others have left."""
        self.remaining[topic, subscription] = list(values)
