"""The rule by which the leader balances bundles, by example."""

from __future__ import annotations

from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.ownership.rebalancing import Move, next_move

A, B, C = "a-1", "b-1", "c-1"
NOW_MS = 1_000


def records(**owners: str) -> dict[str, BundleRecord]:
    """A record per letter; a capital one is pinned for a while, the pin of `x` is just over."""
    found = {}
    for incarnation, letters in owners.items():
        for letter in letters:
            until_ms = NOW_MS + 1 if letter.isupper() else NOW_MS if letter == "x" else 0
            found[letter] = BundleRecord(
                BundleState.OWNED, 7, f"{incarnation}-1", pinned_until_ms=until_ms
            )
    return found


def moves(
    found: dict[str, BundleRecord], *candidates: str, overdue: tuple[str, ...] = ()
) -> set[Move | None]:
    """Everything that chance may choose."""
    return {next_move(found, candidates, overdue, NOW_MS, chance) for chance in range(8)}


def test_the_broker_with_most_gives_to_the_one_with_fewest() -> None:
    """From a difference of two on, whichever of its bundles; nobody else's, and not to who takes
    none."""
    assert moves(records(a="kl", b="m"), A, B) == {None}
    assert moves(records(a="kl", b=""), A, B) == {Move("k", B), Move("l", B)}
    assert moves(records(a="kl", b="mno"), A, B, C) == {Move("m", C), Move("n", C), Move("o", C)}
    assert moves(records(a="kl", b=""), A) == {None}


def test_a_pinned_bundle_stays_and_counts() -> None:
    """The others of its broker go; if it has no others, those of the next one; a pin that is
    over is none."""
    assert moves(records(a="kL", b=""), A, B) == {Move("k", B)}
    assert moves(records(a="KL", b=""), A, B) == {None}
    assert moves(records(a="KLM", b="no", c=""), A, B, C) == {Move("n", C), Move("o", C)}
    assert moves(records(a="KLM", b="n", c=""), A, B, C) == {None}
    assert moves(records(a="Kx", b=""), A, B) == {Move("x", B)}


def test_nothing_moves_while_a_bundle_changes_hands() -> None:
    """Unless it has not got on for long."""
    found = {**records(a="kl", b=""), "m": BundleRecord(BundleState.RELEASING, 7, A, destination=B)}
    assert moves(found, A, B) == {None}
    assert moves(found, A, B, overdue=("m",)) == {Move("k", B), Move("l", B)}
