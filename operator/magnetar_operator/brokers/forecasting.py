"""Brokers that a forecast asks for.

Owns: what load analytics foretells of a cluster's load, read from its document, and the number of
brokers that it asks for. Imports: balance.advice, resources.scaling. Pure. Invariants: a document
that is not sound, has expired or is switched off foretells nothing, and the reason is said; a forecast
never asks for more than `RATIO_MAX` times the brokers that the present load needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.balance.advice import BYTES, CPU, DOCUMENT, MESSAGES, LoadAdvice
from magnetar.errors import StoreError
from magnetar.resources.scaling import ForecastUse
from magnetar_operator.conditions import timestamp

RATIO_MAX = 2
INPUTS = {CPU: "cpu", MESSAGES: "messages/s", BYTES: "bytes/s"}
"""The autoscaler's name of each measure."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The highest load of all brokers together within `lead_s`, by the autoscaler's names of its
    inputs; CPU in brokers that it fills. `sentence` says whose it is, or why there is none."""

    sentence: str = ""
    lead_s: int = 0
    totals: tuple[tuple[str, float], ...] = ()

    @property
    def used(self) -> bool:
        return bool(self.totals)


def outlook_of(
    documents: Mapping[str, Any] | None, use: ForecastUse, cores: Sequence[float], now_ms: int
) -> Outlook:
    """What the stored `documents` of load analytics foretell (None: there are none). `cores` are
    those that each broker may use."""
    if documents is None or not use.enabled:
        return Outlook()
    try:
        advice = LoadAdvice.read(documents.get(DOCUMENT), now_ms)
    except StoreError as error:
        return Outlook(f"Ignored: {str(error)[:300]}")
    until_ms = now_ms + 1000 * use.lead_seconds
    capacity = sum(cores) / len(cores) if cores else 0.0
    totals = []
    for found in advice.forecasts:
        highest = found.highest(now_ms, until_ms, use.percent / 100)
        if found.measure == CPU:
            highest = highest / capacity if capacity > 0 else 0.0
        if highest > 0:
            totals.append((INPUTS[found.measure], highest))
    if not totals:
        return Outlook("Ignored: load advice: it foretells nothing of the time to come")
    made, until = timestamp(advice.made_ms), timestamp(advice.valid_until_ms)
    sentence = f"Used: by job {advice.job[:200]}, made {made}, valid until {until}"
    return Outlook(sentence, use.lead_seconds, tuple(sorted(totals)))


def most(loads: Sequence[tuple[float, float]]) -> int:
    """The highest number of brokers that a forecast may ask for, by present totals and their
    targets."""
    needed = max((math.ceil(total / target) for total, target in loads), default=1)
    return RATIO_MAX * max(1, needed)
