"""Steps that a scenario leaves out, because what they show is not compared.

Owns: `is_left_out`. Imports: play. Pure. Invariant: docs/differences.md names each case and says why.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _rest(play: Play, _method: str, operation: str, body: Any = None) -> bool:
    """Expiry up to a message, where messages behind it are acknowledged or a transaction has the
    topic."""
    _, _, rest = operation.partition("subscription/")
    subscription, _, asked = rest.partition("/")
    return (
        asked == "expireMessages"
        and isinstance(body, str)
        and (play.names.transactional or subscription in play.acknowledged)
    )


_CASES: dict[str, Callable[..., bool]] = {
    "seek": _seek,
    "redeliver": _redeliver,
    "ack": _ack,
    "rest": _rest,
}
