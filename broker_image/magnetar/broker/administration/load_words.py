"""Why load leaves a bundle where it is, and what would move it: the words.

Owns: the sentences about load of `GET /magnetar/v1/explain`, made of what `Balance.explain` answers.
Imports: amounts, balance.settings. Pure. Invariant: equal facts, equal words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.amounts import age_text
from magnetar.balance.settings import PLANNER

NAMES_MAX = 5


def load_in_words(load: Mapping[str, Any] | None, now_ms: int) -> list[str]:
    """A few sentences; none about a bundle that no broker ever had."""
    if load is None:
        return []
    found = [_weight(load)]
    allowed = load["allowed"]
    shown = ", ".join(allowed[:NAMES_MAX])
    more = f" and {len(allowed) - NAMES_MAX} more" if len(allowed) > NAMES_MAX else ""
    found.append(
        f"{shown}{more} may have it."
        if allowed
        else "No broker may have it now: isolation policies leave none that takes bundles."
    )
    found += [f"Without its owner {load['placement']} would get it: {load['reason']}."] * bool(
        load["placement"]
    )
    return [*found, *_what_moves_it(load, now_ms), *_advised(load, now_ms)]


def _advised(load: Mapping[str, Any], now_ms: int) -> list[str]:
    """What load analytics says of it, or why nothing."""
    advice = load.get("advice")
    if advice is None:
        why = load.get("no_advice")
        return [f"Load analytics gives no advice: {why}."] if why else []
    left = age_text(max(0, advice["valid_until_ms"] - now_ms) / 1000)
    found = f"Load analytics (advice valid for {left} more)"
    if advice["usual"] is None:
        return [f"{found} has not seen it."]
    sentences = [
        f"{found}: it usually has {advice['usual']:.1f} messages/s, and {advice['peak']:.1f} at its "
        "peak."
    ]
    if advice["parts"] > 1:
        sentences.append(f"Once it is too hot, it is cut into {advice['parts']} parts by load.")
    if advice["merge_with"]:
        sentences.append(f"It may be merged early with {', '.join(advice['merge_with'])}.")
    return sentences


def _weight(load: Mapping[str, Any]) -> str:
    """How much of its broker's load it is."""
    measured = "" if load["measured"] else ", an estimate, because no report has measured it,"
    text = f"Its load{measured} is {load['load']:.1f} messages/s"
    broker = load["broker"]
    if broker not in load["shares"]:
        return f"{text}."
    return (
        f"{text}, of {load['brokers'][broker]:.1f} of {broker}, which has "
        f"{load['shares'][broker]:.0%} of the mean."
    )


def _what_moves_it(load: Mapping[str, Any], now_ms: int) -> list[str]:
    strategy = load["strategy"]
    if not load["enabled"]:
        return ["Load balancing is off (loadBalancerEnabled, loadBalancerSheddingEnabled)."]
    if load["next"]:
        return [f"{strategy} would move it to {load['next']} now: {load['next_reason']}."]
    found = []
    if load["pinned"]:
        found.append("It is pinned, or changes owners: load balancing leaves it until that ends.")
    if load["kept"]:
        found.append(f"Load balancing leaves it: {load['kept']}.")
    if load["moved_ms"] is not None and strategy == PLANNER:
        age = age_text(max(0, now_ms - load["moved_ms"]) / 1000)
        found.append(
            f"It moved {age} ago: within {load['grace_minutes']:g} min it moves again only if its "
            f"load changes by {load['repeat_change']:.0%}, or if a broker stays more than "
            f"{load['trigger']:.0%} too full otherwise."
        )
    if load["next_moves"] is None:
        found.append("What would move now, the leader knows: magnetar balance plan.")
    elif load["next_moves"]:
        found.append(f"{strategy} would move {load['next_moves']} other bundles now, and not it.")
    elif strategy == PLANNER:
        fullest = max(load["shares"].values(), default=1.0)
        found.append(
            f"The planner moves bundles once a broker is more than {load['trigger']:.0%} from the "
            f"mean and a move helps; the fullest is at {fullest:.0%} of it."
        )
    else:
        found.append(f"{strategy} moves nothing now: {load['next_reason']}.")
    return found
