"""Steps that a scenario leaves out, because what they show is not compared.

Owns: `is_left_out`. Imports: play. Pure. Invariant: docs/differences.md names each case and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dev.differential.play import Play, Step


def is_left_out(play: Play, step: Step) -> bool:
    """Whether the step, which comes next in `play`, shows something that is not compared."""
    kind, *arguments = step
    case = _CASES.get(kind)
    return case is not None and case(play, *arguments)


def _seek(play: Play, _number: int, target: str) -> bool:
    """By time, where a transaction has the topic."""
    return target.startswith("time:") and play.names.transactional


def _redeliver(play: Play, number: int, *_: Any) -> bool:
    """By one of several consumers of a Shared subscription: who has which messages is open."""
    found = play.consumers.get(number)
    return (
        found is not None
        and found.kind == "Shared"
        and any(
            other is not found and other.open and other.sub == found.sub
            for other in play.consumers.values()
        )
    )


def _ack(
    play: Play, _number: int, messages: list[str], options: dict[str, Any] | None = None
) -> bool:
    """In a transaction, of a message of a transaction that is open."""
    named = [play.names.find(name.partition(":")[0]) for name in messages]
    return (
        "txn" in (options or {})
        and any(published is not None and published.in_transaction for published in named)
        and any(txn.open for txn in play.txns.values())
    )


def _end(play: Play, number: int, commit: bool) -> bool:
    """An abort of acknowledgements of an Exclusive or Failover consumer that may lack permits: what
    it gets again comes with a later step."""
    return not commit and any(
        (found := play.consumers.get(consumer)) is not None
        and found.kind in ("Exclusive", "Failover")
        and "permits" in _options_of(play, consumer)
        for _, consumer, options in _acknowledged_in_transactions(play)
        if options["txn"] == number
    )


def _options_of(play: Play, consumer: int) -> dict[str, Any]:
    """How a consumer has subscribed last."""
    found = [step[3] for step in play.past if step[:2] == ["subscribe", consumer]]
    return found[-1] if found else {}


def _acknowledged_in_transactions(play: Play) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Such steps: their index, consumer and options."""
    for index, (kind, *arguments) in enumerate(play.past):
        if kind == "ack" and len(arguments) > 2 and "txn" in arguments[2]:
            yield index, arguments[0], arguments[2]


def _rest(play: Play, _method: str, operation: str, body: Any = None) -> bool:
    """Operations on a cursor, and moves, whose effect depends on what only one server has."""
    _, _, rest = operation.partition("subscription/")
    subscription, _, asked = rest.partition("/")
    if asked == "expireMessages":
        # up to a message, where messages behind it are acknowledged or a transaction has the topic
        return isinstance(body, str) and (
            play.names.transactional or subscription in play.acknowledged
        )
    if asked.startswith("skip/"):
        # over markers of transactions; after a move of a topic that had ended
        return play.names.transactional or _follows(play.past, _TERMINATED, _MOVED)
    # what transactions acknowledged before a seek
    return operation == "unload" and any(
        _follows(play.past[index:], _SOUGHT) for index, _, _ in _acknowledged_in_transactions(play)
    )


def _follows(steps: Sequence[Step], *prefixes: Step) -> bool:
    """Whether there are steps that begin so, in this order."""
    rest = iter(steps)
    return all(any(step[: len(prefix)] == prefix for step in rest) for prefix in prefixes)


_TERMINATED: Step = ["rest", "POST", "terminate"]
_MOVED: Step = ["rest", "PUT", "unload"]
_SOUGHT: Step = ["seek"]


_CASES: dict[str, Callable[..., bool]] = {
    "seek": _seek,
    "redeliver": _redeliver,
    "ack": _ack,
    "end": _end,
    "rest": _rest,
}
