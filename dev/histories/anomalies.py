"""Every contradiction in a history of transactions, by the names that the literature has for them.

Owns: `Kind`, `Anomaly`, `anomalies`. Imports: transactions. Source: Jepsen's checks of Kafka (facts
on transactions 5.1), read for Pulsar. Invariants: judging changes nothing; each check takes time
linear in the history (but for sorting what it found); what nobody knows is accused of nothing: a
transaction without an outcome may have taken place or not, but as a whole.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from dev.histories.transactions import (
    Fate,
    History,
    Input,
    Place,
    Send,
    Session,
    Stored,
    TransactionHistory,
)

SHOWN_MAX = 3


class Kind(enum.Enum):
    """What can be wrong."""

    ABORTED_READ = "aborted read"
    """G1a: a consumer got a message of a transaction that did not take place."""
    PRECOMMITTED_READ = "precommitted read"
    """A consumer got a message of a transaction before its commit was asked for."""
    LOST_COMMIT = "lost commit"
    """A transaction was committed and nothing of it took place."""
    TORN = "torn transaction"
    """Some of its messages are there and some are not, or some of its acknowledgements took
    effect and some did not."""
    SPLIT = "ack/produce split"
    """Its messages are there and its acknowledgements did not take effect, or the other way
    round."""
    PENDING_LEAK = "pending-ack leak"
    """What a transaction that did not take place had acknowledged never comes again."""
    DOUBLE_PROCESSING = "double processing"
    """Two transactions that took place acknowledged one message, or produced from it."""
    LOST_WRITE = "lost write"
    """An ordinary message was confirmed and is not there."""
    DUPLICATE = "duplicate"
    """A message of a transaction is there more than once."""
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    """Two messages at one place."""
    SEND_ORDER = "internal nonmonotonic send"
    """Messages of one transaction lie in another order than they were sent in."""
    NONMONOTONIC_POLL = "nonmonotonic poll"
    """A consumer that is alone got messages in another order than they lie in."""
    POLL_SKIP = "poll skip"
    """A reader from the beginning was not given a message, and was given a later one."""
    UNSEEN = "unseen"
    """A message that nobody acknowledged is not before the subscription any more."""
    INVENTED = "invented"
    """A message that nobody sent."""
    ACK_UNDONE = "acknowledgement undone"
    """A message came to a consumer that subscribed after its acknowledgement, in a transaction
    that took place, had been confirmed."""
    OUTCOME_CHANGED = "outcome changed"
    """A transaction was said to be committed and aborted, or committed although nobody had asked
    for that."""
    ID_USED_TWICE = "id used twice"
    """Two transactions with one id."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One of them, with what shows it."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"


def anomalies(history: History) -> list[Anomaly]:
    """All of them; of each transaction, session and topic at most one of a kind. [] for what a
    correct system may do."""
    world = _World(history)
    return [Anomaly(kind, detail) for check in _CHECKS for kind, detail in check(world)]


_Found = Iterator[tuple[Kind, str]]


class _World:
    """What the checks look up."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.copies: Counter[tuple[str, str]] = Counter(
            (topic, entry.value) for topic, entries in history.stored.items() for entry in entries
        )
        self.received: dict[tuple[str, str], int] = {}
        """The first moment at which anybody got a message."""
        for session in history.sessions:
            for moment, _, value in session.received:
                key = session.topic, value
                self.received[key] = min(moment, self.received.get(key, moment))
        self.visible = set(self.copies) | {
            key for key in self.received if key[0] in history.trimmed
        }
        self.held: defaultdict[str, list[str]] = defaultdict(list)
        """What every subscription of a topic was to get, or be rid of: it is there, or was until
        it was trimmed."""
        for topic, value in dict.fromkeys([*self.copies, *self.received]):
            if (topic, value) in self.visible:
                self.held[topic].append(value)
        self.remaining = {
            Input(*key, value) for key, values in history.remaining.items() for value in values
        }
        self.took_place: dict[int, bool | None] = {
            id(txn): self._took_place(txn) for txn in history.transactions
        }
        """None: nothing shows it."""
        self.holders: defaultdict[Input, list[TransactionHistory]] = defaultdict(list)
        """Transactions that took place, and acknowledged it for certain."""
        self.possible: set[Input] = {ack.input for ack in history.acknowledged}
        """Acknowledged by what took place, or may have."""
        for txn in history.transactions:
            for ack in txn.acknowledgements:
                if self.took_place[id(txn)] is not False:
                    self.possible.add(ack.input)
                if self.took_place[id(txn)] and ack.confirmed_at is not None:
                    self.holders[ack.input].append(txn)

    def is_there(self, send: Send) -> bool:
        return (send.topic, send.value) in self.visible

    def is_gone(self, found: Input) -> bool | None:
        """Whether a message is not before the subscription any more; None if nobody looked."""
        return (
            None
            if (found.topic, found.subscription) not in self.history.remaining
            else found not in self.remaining
        )

    def _took_place(self, txn: TransactionHistory) -> bool | None:
        if txn.fate is not Fate.UNKNOWN:
            return txn.fate is Fate.COMMITTED
        if any(self.is_there(send) for send in txn.sends):
            return True
        readable = [
            send for send in txn.sends if send.confirmed and send.topic in self.history.stored
        ]
        return False if readable else None


def _reads(world: _World) -> _Found:
    """Nobody gets messages of a transaction before its commit is asked for, nor ever if it did
    not take place."""
    for txn in world.history.transactions:
        first = [(send.value, world.received.get((send.topic, send.value))) for send in txn.sends]
        if txn.fate is Fate.ABORTED:
            seen = [
                send.value
                for send, (_, moment) in zip(txn.sends, first, strict=True)
                if moment is not None or world.is_there(send)
            ]
            if seen:
                yield Kind.ABORTED_READ, f"{txn}: {_some(seen)}"
            continue
        early = [
            value
            for value, moment in first
            if moment is not None and (txn.commit_asked is None or moment < txn.commit_asked)
        ]
        if early:
            yield Kind.PRECOMMITTED_READ, f"{txn}: {_some(early)}"


def _wholeness(world: _World) -> _Found:
    """What took place did so as a whole: every message of it is there, every acknowledgement of
    it has taken effect."""
    for txn in world.history.transactions:
        if not world.took_place[id(txn)]:
            continue
        sends = [
            send
            for send in txn.sends
            if send.confirmed and (send.topic in world.history.stored or world.is_there(send))
        ]
        absent = [send.value for send in sends if not world.is_there(send)]
        inputs = [ack.input for ack in txn.acknowledgements if ack.confirmed_at is not None]
        known = [(found, gone) for found in inputs if (gone := world.is_gone(found)) is not None]
        kept = [str(found) for found, gone in known if not gone]
        if not absent and not kept:
            continue
        nothing_there, nothing_gone = len(absent) == len(sends), len(kept) == len(known)
        if nothing_there and nothing_gone:
            yield Kind.LOST_COMMIT, f"{txn} is {txn.fate.value}; missing: {_some([*absent, *kept])}"
        elif absent and not nothing_there:
            yield (
                Kind.TORN,
                f"{txn}: {len(sends) - len(absent)} messages are there, missing: {_some(absent)}",
            )
        elif kept and not nothing_gone:
            yield (
                Kind.TORN,
                f"{txn}: {len(known) - len(kept)} acknowledgements took effect, not: {_some(kept)}",
            )
        else:
            what = (
                "its messages are there, its acknowledgements are not"
                if kept
                else "its acknowledgements are there, its messages are not"
            )
            yield Kind.SPLIT, f"{txn}: {what}: {_some([*absent, *kept])}"


def _inputs(world: _World) -> _Found:
    """A message leaves a subscription by an acknowledgement that took effect, and by no more
    than one transaction's."""
    unsettled: defaultdict[Input, list[TransactionHistory]] = defaultdict(list)
    for txn in world.history.transactions:
        if world.took_place[id(txn)] is False:
            for ack in txn.acknowledgements:
                unsettled[ack.input].append(txn)
    for topic, subscription in world.history.remaining:
        if topic in world.history.expiring:
            continue  # it may be gone by its age
        by_cause: defaultdict[Kind, list[str]] = defaultdict(list)
        for value in world.held[topic]:
            found = Input(topic, subscription, value)
            if found in world.remaining or found in world.possible:
                continue
            attempts = unsettled[found]
            unknown = [txn for txn in attempts if txn.fate is Fate.UNKNOWN]
            kind = Kind.SPLIT if unknown else Kind.PENDING_LEAK if attempts else Kind.UNSEEN
            by_cause[kind].append(
                value + (f" (acknowledged in {(unknown or attempts)[-1]})" if attempts else "")
            )
        for kind, values in by_cause.items():
            yield (
                kind,
                f"{topic}: gone from {subscription} without an acknowledgement that took effect: "
                f"{_some(values)}",
            )
    for found, holders in world.holders.items():
        if len(holders) > 1:
            yield Kind.DOUBLE_PROCESSING, f"{found} is acknowledged in {_some(holders)}"


def _sources(world: _World) -> _Found:
    """Outputs of one input, as far as clients say what follows from what, are of one
    transaction."""
    makers: defaultdict[Input, dict[int, TransactionHistory]] = defaultdict(dict)
    for txn in world.history.transactions:
        for send in txn.sends:
            if world.is_there(send):
                for source in send.sources:
                    makers[source][id(txn)] = txn
    for source, found in makers.items():
        if len(found) > 1:
            yield Kind.DOUBLE_PROCESSING, f"{source} has outputs of {_some(list(found.values()))}"


def _log(world: _World) -> _Found:
    """Topics hold what was sent, once, each at a place of its own in all topics; ordinary
    messages may be there twice (deduplication's affair)."""
    history = world.history
    plain = {(send.topic, send.value): send for send in history.published}
    transactional = {(send.topic, send.value) for txn in history.transactions for send in txn.sends}
    lost = [
        f"{value} of {topic}"
        for (topic, value), send in plain.items()
        if send.confirmed and topic in history.stored and not world.is_there(send)
    ]
    if lost:
        yield Kind.LOST_WRITE, _some(lost)
    twice = [
        f"{value} of {topic}"
        for (topic, value), count in world.copies.items()
        if count > 1 and (topic, value) in transactional
    ]
    if twice:
        yield Kind.DUPLICATE, _some(twice)
    invented = [
        f"{value} of {topic}"
        for topic, value in {**world.copies, **world.received}
        if (topic, value) not in plain and (topic, value) not in transactional
    ]
    if invented:
        yield Kind.INVENTED, _some(invented)
    at: dict[Place, tuple[str, str]] = {}
    confused: list[str] = []
    seen = [
        (topic, entry.place, entry.value)
        for topic, entries in history.stored.items()
        for entry in entries
    ]
    seen += [
        (session.topic, place, value)
        for session in history.sessions
        for _, place, value in session.received
    ]
    for topic, place, value in seen:
        if at.setdefault(place, (topic, value)) != (topic, value):
            first, other = at[place]
            confused.append(f"{place} is {other} of {first} and {value} of {topic}")
    if confused:
        yield Kind.INCONSISTENT_OFFSETS, _some(confused)


def _order(world: _World) -> _Found:
    """Messages of one transaction lie in the order in which they were sent; a consumer that is
    alone gets everything in the order of the log."""
    rank: dict[tuple[str, str], int] = {}
    for topic, entries in world.history.stored.items():
        for number, entry in enumerate(entries):
            rank.setdefault((topic, entry.value), number)
    for txn in world.history.transactions:
        by_producer: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for send in txn.sends:
            by_producer[send.topic, send.producer].append(send.value)
        for (topic, _), values in by_producer.items():
            if disorder := _disorder(topic, values, rank):
                yield Kind.SEND_ORDER, f"{txn}: {disorder}"
                break
    for session in world.history.sessions:
        if session.ordered:
            yield from _polls(session, world.history.stored.get(session.topic, []), rank)


def _polls(session: Session, entries: Sequence[Stored], rank: dict[tuple[str, str], int]) -> _Found:
    values = list(dict.fromkeys(value for _, _, value in session.received))
    if disorder := _disorder(session.topic, values, rank):
        yield Kind.NONMONOTONIC_POLL, f"{session.subscription}: {disorder}"
    if session.whole and values:
        got = set(values)
        last = max((rank.get((session.topic, value), -1) for value in values), default=-1)
        skipped = [entry.value for entry in entries[: last + 1] if entry.value not in got]
        if skipped:
            yield Kind.POLL_SKIP, f"{session.topic}, {session.subscription}: {_some(skipped)}"


def _disorder(topic: str, values: Sequence[str], rank: dict[tuple[str, str], int]) -> str:
    """The first of `values` that lie the other way round in the topic, or ""."""
    highest, before = -1, ""
    for value in values:
        number = rank.get((topic, value))
        if number is None:
            continue
        if number < highest:
            return f"{before} came before {value}, and lies behind it in {topic}"
        highest, before = number, value
    return ""


def _acknowledgements(world: _World) -> _Found:
    """What was acknowledged in a transaction that took place does not come to those who
    subscribe later: it was held, then acknowledged."""
    confirmed: dict[Input, int] = {}
    for txn in world.history.transactions:
        if world.took_place[id(txn)]:
            for ack in txn.acknowledgements:
                if ack.confirmed_at is not None:
                    confirmed[ack.input] = min(
                        ack.confirmed_at, confirmed.get(ack.input, ack.confirmed_at)
                    )
    for session in world.history.sessions:
        again = [
            value
            for _, _, value in session.received
            if confirmed.get(Input(session.topic, session.subscription, value), session.began)
            < session.began
        ]
        if again:
            yield Kind.ACK_UNDONE, f"{session.topic}, {session.subscription}: {_some(again)}"


def _coordinators(world: _World) -> _Found:
    """Ids are new, outcomes stay, and nothing is committed unasked."""
    by_id: defaultdict[Hashable, list[TransactionHistory]] = defaultdict(list)
    for txn in world.history.transactions:
        by_id[txn.id].append(txn)
        if len(set(txn.answers)) > 1:
            yield (
                Kind.OUTCOME_CHANGED,
                f"{txn} was said to be {', then '.join(answer.value for answer in txn.answers)}",
            )
        elif Fate.COMMITTED in txn.answers and txn.commit_asked is None:
            yield Kind.OUTCOME_CHANGED, f"{txn} was committed, and nobody had asked for that"
    for identifier, found in by_id.items():
        if len(found) > 1:
            yield Kind.ID_USED_TWICE, f"{identifier}: {len(found)} transactions"


_CHECKS: tuple[Callable[[_World], _Found], ...] = (
    _reads,
    _wholeness,
    _inputs,
    _sources,
    _log,
    _order,
    _acknowledgements,
    _coordinators,
)


def _some(found: Sequence[object]) -> str:
    shown = ", ".join(str(item) for item in found[:SHOWN_MAX])
    return f"{len(found)}: {shown}, ..." if len(found) > SHOWN_MAX else shown
