"""Clusters for tests of load balancing.

Owns: brokers, bundles and cycles in a line each. Imports: magnetar.balance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from magnetar.balance.cluster import Broker, Bundle, Cluster, Memory, Outcome
from magnetar.balance.decision import Decision
from magnetar.balance.filters import Policies, Situation
from magnetar.balance.load import History, LoadReport, Rates, Resource
from magnetar.balance.settings import MIB, Settings
from magnetar.balance.shedding.cycle import shed

NOW_MS = 10_000_000
MINUTE_MS = 60_000


def rates(messages: float | None = None, mib: float = 0.0) -> Rates:
    """Half of them in, half out; a message has a MiB unless said."""
    messages = mib if messages is None else messages
    return Rates(messages / 2, messages / 2, mib * MIB / 2, mib * MIB / 2)


def broker(
    name: str, cpu: float = 0.0, messages: float = 0.0, mib: float = 0.0, **fields: Any
) -> Broker:
    """One with a fresh report; CPU in percent. Fields of `Broker`, or of its report."""
    of_broker = {key: fields.pop(key) for key in list(fields) if hasattr(Broker, key)}
    report = LoadReport(
        name, fields.pop("updated_ms", NOW_MS), Resource(cpu, 100), rates=rates(messages, mib)
    )
    return Broker(name, replace(report, **fields), **of_broker)


def name_of(at: int, namespace: str = "public/default") -> str:
    return f"{namespace}/0x{at:08x}_0x{at + 1:08x}"


def bundles(
    owner: str, loads: Iterable[Rates], start: int = 0, namespace: str = "public/default"
) -> tuple[Bundle, ...]:
    """One bundle for each load, all on one broker."""
    return tuple(
        Bundle(name_of(start + at, namespace), owner, History.steady(load), topics=2)
        for at, load in enumerate(loads)
    )


def situation(
    brokers: Iterable[Broker],
    owned: Iterable[Bundle] = (),
    settings: Mapping[str, object] | None = None,
    memory: Memory | None = None,
    policies: Policies | None = None,
    seed: int = 0,
) -> Situation:
    return Situation(
        Cluster(NOW_MS, tuple(brokers), tuple(owned)),
        memory or Memory(),
        policies or Policies(),
        Settings.read(settings or {}),
        seed,
    )


def cycle(now: Situation, minutes: float = 0) -> Outcome:
    """Shed once, `minutes` later, with reports of that time."""
    at_ms = now.cluster.now_ms + int(minutes * MINUTE_MS)
    brokers = tuple(
        replace(item, report=item.report and replace(item.report, updated_ms=at_ms))
        for item in now.cluster.brokers
    )
    return shed(replace(now, cluster=Cluster(at_ms, brokers, now.cluster.bundles)))


def remembering(now: Situation, outcome: Outcome) -> Situation:
    return replace(now, memory=outcome.memory)


def moved(outcome: Outcome) -> list[tuple[int, str]]:
    """The low end of every bundle that moves, and where to."""
    return [(int(move.bundle[-21:-11], 16), move.destination) for move in outcome.moves]


class KeptDecisions:
    """A `DecisionLog` in memory: what was decided, in order."""

    def __init__(self) -> None:
        self._added: list[bytes] = []
        self.saved: list[Decision] = []

    def add(self, _at_ms: int, encoded: bytes) -> None:
        self._added.append(encoded)

    async def save(self, _author: int) -> None:
        self.saved += map(Decision.decode, self._added)
        self._added.clear()
