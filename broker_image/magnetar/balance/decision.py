"""The record of a decision.

Owns: `Request` (the question and all that it depends on), `decide`, and `Decision`, which keeps
both with the answer in JSON of bounded size. Imports: errors, metadata.codec, balance. Pure.
Invariants: `replay(decision) == decision.outcome` for every decision that is replayable; a decision
without its inputs says so, and never replays as something else.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from magnetar.balance.advice import LoadAdvice
from magnetar.balance.cluster import Cluster, Memory, Move, Outcome
from magnetar.balance.filters import Policies, Situation
from magnetar.balance.placement import place
from magnetar.balance.planner import unmeasured
from magnetar.balance.settings import Settings
from magnetar.balance.shedding.cycle import shed
from magnetar.balance.splitting import merge, split
from magnetar.errors import InvalidRequest, StoreError
from magnetar.metadata.codec import Record

INPUTS_BYTES_MAX = 16 << 20
"""Of one decision, uncompressed: some 25 000 bundles with their histories."""
ENCODED_BYTES_MAX = 1 << 20
KEPT_MAX = 1000
"""Moves, splits and merges of an outcome that is cut."""
SHED, PLACE, SPLIT, MERGE = "shed", "place", "split", "merge"


@dataclass(frozen=True, slots=True)
class Request(Record):
    """One question to the balancer. `bundle` is the one to place. `settings` are by Pulsar's
    names; what is left out has its default. `advice` is what load analytics says of the bundles
    that are decided about."""

    kind: str
    cluster: Cluster
    memory: Memory = field(default_factory=Memory)
    policies: Policies = field(default_factory=Policies)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    bundle: str = ""
    advice: LoadAdvice | None = None

    SCHEMA = 3

    def situation(self) -> Situation:
        settings = Settings.read(self.settings)
        return Situation(self.cluster, self.memory, self.policies, settings, self.seed, self.advice)


def shedding(
    cluster: Cluster,
    policies: Policies,
    memory: Memory,
    settings: Settings,
    seed: int,
    advice: LoadAdvice | None,
) -> Request:
    """What the strategy in force is asked. Of the advice that is kept which a plan takes."""
    found = unmeasured(cluster, advice)
    return Request(SHED, cluster, memory, policies, settings.named(), seed, advice=found)


def _placed(request: Request) -> Outcome:
    situation = request.situation()
    bundle = request.cluster.bundle.get(request.bundle)
    if bundle is None:
        raise InvalidRequest(f"bundle: {request.bundle!r} is not one of the cluster's")
    found = place(bundle, situation)
    if not found.broker:
        return Outcome(found.memory, found.reason)
    move = Move(bundle.name, bundle.broker, found.broker, found.reason)
    return Outcome(found.memory, found.reason, (move,))


_ANSWERS: Mapping[str, Callable[[Request], Outcome]] = MappingProxyType(
    {
        SHED: lambda request: shed(request.situation()),
        PLACE: _placed,
        SPLIT: lambda request: split(request.situation()),
        MERGE: lambda request: merge(request.situation()),
    }
)


def decide(request: Request) -> Outcome:
    """The answer. Raises InvalidRequest for a request that is none."""
    answer = _ANSWERS.get(request.kind)
    if answer is None:
        raise InvalidRequest(f"kind: {request.kind!r} is none of {', '.join(_ANSWERS)}")
    return answer(request)


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """A request, compressed, and its outcome. Without `inputs` it was too large to keep them."""

    at_ms: int
    kind: str
    outcome: Outcome
    inputs: str = ""

    @property
    def replayable(self) -> bool:
        return bool(self.inputs)


def recorded(request: Request, outcome: Outcome) -> Decision:
    """The record of a decision, within `ENCODED_BYTES_MAX` once encoded."""
    data = request.encode()
    inputs = ""
    if len(data) <= INPUTS_BYTES_MAX:
        inputs = base64.b64encode(zlib.compress(data, 6)).decode()
    decision = Decision(request.cluster.now_ms, request.kind, outcome, inputs)
    if len(decision.encode()) <= ENCODED_BYTES_MAX:
        return decision
    short = replace(
        outcome,
        memory=Memory(),
        moves=outcome.moves[:KEPT_MAX],
        splits=outcome.splits[:KEPT_MAX],
        merges=outcome.merges[:KEPT_MAX],
    )
    return replace(decision, outcome=short, inputs="")


def replay(decision: Decision) -> Outcome:
    """Decide again. Raises StoreError if the record has no inputs, or is damaged."""
    return decide(asked(decision))


def asked(decision: Decision) -> Request:
    """The request of a record. Raises StoreError if it has no inputs, or is damaged."""
    if not decision.inputs:
        raise StoreError("decision: it was too large to keep its inputs")
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(decision.inputs), INPUTS_BYTES_MAX)
    except (zlib.error, binascii.Error) as error:
        raise StoreError(f"decision: its inputs are damaged: {error}") from error
    return Request.decode(data)
