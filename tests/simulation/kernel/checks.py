"""Invariants 1 to 4, judged from a history alone.

Owns: one function per invariant, from a `History` to the violations found. Imports: history.
Nothing here knows how a broker works beyond the meaning of a message id (the epoch in a ledger id,
and that a ledger is one topic's). Invariant: a check only accuses: what a correct system may do
under the fault model is never a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.kernel.history import Ack, History, LogEntry, Outcome, Position, Send

SHOWN_MAX = 20
SHOWN_PAYLOAD_BYTES = 40


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise. `invariant` is its number in the design."""

    invariant: int
    topic: str
    text: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}, {self.topic}: {self.text}"


class HistoryViolated(AssertionError):
    """The history shows broken promises; `violations` has all of them."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        # Some of each invariant: what cannot be read any more is many messages, and may hide the
        # one that says why.
        kinds = sorted({violation.invariant for violation in violations})
        each = max(1, SHOWN_MAX // max(1, len(kinds)))
        shown = [
            violation
            for kind in kinds
            for violation in [v for v in violations if v.invariant == kind][:each]
        ]
        more = len(violations) - len(shown)
        lines = [str(violation) for violation in shown]
        super().__init__(
            "\n".join(
                [
                    f"{len(violations)} violations",
                    *lines,
                    *([f"and {more} more"] if more > 0 else []),
                ]
            )
        )


def check_all(history: History, *, deduplicated: bool) -> None:
    """Every check below. Raises HistoryViolated."""
    found = [*check_durability(history), *check_single_owner(history), *check_order(history)]
    found += [*check_acknowledgements(history), *check_identity(history)]
    if deduplicated:
        found += duplicates(history)
    if found:
        raise HistoryViolated(found)


def check_durability(history: History) -> list[Violation]:
    """1: an acknowledged message is in the final log with the same bytes at the acknowledged
    position; a delivered one too.

    A topic with acknowledged messages but without a final log is a violation: a check that nobody
    fed proves nothing.
    """
    return [*_lost_sends(history), *_vanished_deliveries(history)]


def _lost_sends(history: History) -> Iterator[Violation]:
    contents = {
        topic: {entry.position: entry for entry in entries}
        for topic, entries in history.logs.items()
    }
    numbers = {
        topic: {(entry.producer, entry.sequence) for entry in entries}
        for topic, entries in history.logs.items()
    }
    given_up = _given_up(history)
    for send in history.sends:
        if send.outcome is not Outcome.CONFIRMED or (send.topic, send.position) in given_up:
            continue
        if send.topic not in contents:
            yield Violation(
                1,
                send.topic,
                f"{_named(send)} was acknowledged, but the final log of the topic was not recorded",
            )
        elif send.position is None:
            if (send.producer, send.sequence) not in numbers[send.topic]:
                yield Violation(
                    1,
                    send.topic,
                    f"{_named(send)} was acknowledged as a duplicate, but is not in the log",
                )
        elif (entry := contents[send.topic].get(send.position)) is None:
            yield Violation(
                1,
                send.topic,
                f"{_named(send)} was acknowledged at {_shown(send.position)}, where nothing is",
            )
        elif entry.payload != send.payload:
            text = (
                f"{_named(send)} was acknowledged at {_shown(send.position)}, where "
                f"{_bytes(entry.payload)} is"
            )
            yield Violation(1, send.topic, text)


def _given_up(history: History) -> set[tuple[str, Position]]:
    """What may be gone: messages of trimmed topics that a consumer acknowledged, confirmed or not.
    (Nobody acknowledges those cumulatively.)"""
    return {
        (ack.session.topic, ack.position)
        for ack in history.acks
        if ack.session.topic in history.trimmed
    }


def _vanished_deliveries(history: History) -> Iterator[Violation]:
    positions = {
        topic: {entry.position for entry in entries} for topic, entries in history.logs.items()
    }
    given_up = _given_up(history)
    for received in history.received:
        topic = received.session.topic
        if (topic, received.position) in given_up:
            continue
        if topic in positions and received.position not in positions[topic]:
            text = (
                f"{_bytes(received.payload)} was delivered to {received.session.consumer} at "
                f"{_shown(received.position)}"
            )
            yield Violation(1, topic, f"{text}, but is not in the log")


def check_single_owner(history: History) -> list[Violation]:
    """2: one incarnation acknowledges per topic and epoch, and whatever a former owner acknowledges
    its successor has found.

    Also from clients alone: a message sent after another one's receipt gets a higher position,
    which a former owner that goes on acknowledging breaks.
    """
    return [*_shared_epochs(history), *_beyond_takeover(history), *_real_time(history)]


def _shared_epochs(history: History) -> Iterator[Violation]:
    owners: dict[tuple[str, int], str] = {}
    for receipt in history.receipts:
        owner = owners.setdefault((receipt.topic, receipt.position.epoch), receipt.incarnation)
        if owner != receipt.incarnation:
            text = (
                f"{owner} and {receipt.incarnation} both acknowledged in epoch "
                f"{receipt.position.epoch}"
            )
            yield Violation(2, receipt.topic, text)


def _beyond_takeover(history: History) -> Iterator[Violation]:
    for takeover in history.takeovers:
        for receipt in history.receipts:
            if receipt.incarnation != takeover.former or receipt.topic not in takeover.topics:
                continue
            last = takeover.recovered.get(receipt.topic)
            if receipt.position.epoch <= takeover.epoch and (
                last is None or receipt.position > last
            ):
                when = "after" if receipt.order > takeover.order else "before"
                text = (
                    f"{takeover.former} acknowledged {_shown(receipt.position)} {when} the "
                    "takeover, which found"
                )
                yield Violation(
                    2, receipt.topic, f"{text} {_shown(last) if last is not None else 'nothing'}"
                )


def _real_time(history: History) -> Iterator[Violation]:
    """Sweep each topic in real time: at every first invocation, remember the highest position
    acknowledged before it."""
    invoked: dict[tuple[str, str, int], int] = {}
    # a resend may get the position of its first copy, so the first invocation counts
    for send in history.sends:
        invoked.setdefault((send.topic, send.producer, send.sequence), send.invoked)
    located = [
        send
        for send in history.sends
        if send.outcome is Outcome.CONFIRMED and send.position is not None
    ]
    events = sorted(
        [
            (invoked[send.topic, send.producer, send.sequence], False, index)
            for index, send in enumerate(located)
        ]
        + [(send.completed, True, index) for index, send in enumerate(located)]
    )
    highest: dict[str, Send] = {}
    for _, completed, index in events:
        send = located[index]
        before = highest.get(send.topic)
        if completed:
            if before is None or _position(send) > _position(before):
                highest[send.topic] = send
        elif before is not None and _position(send) <= _position(before):
            text = (
                f"{_named(send)} got {_shown(_position(send))} though it was sent after the "
                f"receipt of {_named(before)}"
            )
            yield Violation(2, send.topic, f"{text} at {_shown(_position(before))}")


def _position(send: Send) -> Position:
    assert send.position is not None
    return send.position


def check_order(history: History) -> list[Violation]:
    """3: per topic and producer, the first copies of the sequence numbers rise in log order.
    (Where a topic is trimmed they may be gone.)"""
    found: list[Violation] = []
    for topic, entries in history.logs.items():
        if topic in history.trimmed:
            continue
        seen: dict[str, tuple[int, set[int]]] = {}
        for entry in entries:
            highest, numbers = seen.get(entry.producer, (-1, set()))
            if entry.sequence not in numbers and entry.sequence < highest:
                text = (
                    f"{entry.producer} #{entry.sequence} at {_shown(entry.position)} follows "
                    f"#{highest}"
                )
                found.append(Violation(3, topic, text))
            numbers.add(entry.sequence)
            seen[entry.producer] = max(highest, entry.sequence), numbers
    return found


def duplicates(history: History) -> list[Violation]:
    """3: messages that are in the log more than once. A violation only with deduplication on, or
    without any resend."""
    found: list[Violation] = []
    for topic, entries in history.logs.items():
        copies = Counter((entry.producer, entry.sequence) for entry in entries)
        found += [
            Violation(3, topic, f"{producer} #{sequence} is in the log {count} times")
            for (producer, sequence), count in copies.items()
            if count > 1
        ]
    return found


def check_acknowledgements(history: History) -> list[Violation]:
    """3: a message whose acknowledgement was confirmed is not delivered in a session of that
    subscription opened afterwards.

    Sessions opened earlier are not judged: the message may have been on its way to them.
    """
    single: dict[tuple[str, str, Position], int] = {}
    cumulative: dict[tuple[str, str], list[Ack]] = {}
    for ack in history.acks:
        if ack.completed and ack.session.durable:
            key = (ack.session.topic, ack.session.subscription)
            if ack.cumulative:
                cumulative.setdefault(key, []).append(ack)
            else:
                first = single.setdefault((*key, ack.position), ack.completed)
                single[(*key, ack.position)] = min(first, ack.completed)
    found: list[Violation] = []
    for received in history.received:
        session = received.session
        key = (session.topic, session.subscription)
        confirmed = [
            ack.completed for ack in cumulative.get(key, ()) if ack.position >= received.position
        ]
        confirmed += (
            [single[(*key, received.position)]] if (*key, received.position) in single else []
        )
        if session.durable and confirmed and min(confirmed) < session.opened:
            text = (
                f"{_shown(received.position)} was delivered again to {session.consumer} on "
                f"{session.subscription}"
            )
            found.append(
                Violation(
                    3,
                    session.topic,
                    f"{text}, in a session opened after its acknowledgement had been confirmed",
                )
            )
    return found


def check_identity(history: History) -> list[Violation]:
    """4: message ids rise strictly in log order, no id was ever seen with two payloads, and no
    two topics share a ledger, sidecars included."""
    found: list[Violation] = []
    for topic, entries in history.logs.items():
        before: LogEntry | None = None
        for entry in entries:
            if before is not None and entry.position <= before.position:
                found.append(
                    Violation(
                        4,
                        topic,
                        f"{_shown(entry.position)} follows {_shown(before.position)} in the log",
                    )
                )
            before = entry
    payloads: dict[tuple[str, Position], bytes] = {}
    for topic, position, payload in _sightings(history):
        first = payloads.setdefault((topic, position), payload)
        if first != payload:
            found.append(
                Violation(
                    4, topic, f"{_shown(position)} named {_bytes(first)} and {_bytes(payload)}"
                )
            )
    return [*found, *_shared_ledgers(history)]


def _shared_ledgers(history: History) -> Iterator[Violation]:
    seen = {(receipt.position.ledger, receipt.topic): None for receipt in history.receipts}
    seen |= {(position.ledger, topic): None for topic, position, _ in _sightings(history)}
    owners: dict[int, str] = {}
    for ledger, topic in seen:
        if (owner := owners.setdefault(ledger, topic)) != topic:
            yield Violation(4, topic, f"ledger {ledger} is that of {owner} as well")


def _sightings(history: History) -> Iterator[tuple[str, Position, bytes]]:
    for send in history.sends:
        if send.outcome is Outcome.CONFIRMED and send.position is not None:
            yield send.topic, send.position, send.payload
    for received in history.received:
        yield received.session.topic, received.position, received.payload
    for topic, entries in history.logs.items():
        for entry in entries:
            yield topic, entry.position, entry.payload


def _named(send: Send) -> str:
    return f"{send.producer} #{send.sequence} {_bytes(send.payload)}"


def _bytes(payload: bytes) -> str:
    return repr(payload[:SHOWN_PAYLOAD_BYTES]) + (
        f" ({len(payload)} bytes)" if len(payload) > SHOWN_PAYLOAD_BYTES else ""
    )


def _shown(position: Position) -> str:
    return f"{position.ledger}:{position.entry}" + (
        f":{position.batch}" if position.batch >= 0 else ""
    )
