"""`python -m dev.soak.hostile_peer <plan.json>`: the process of the hostile client.

Owns: drawing attacks from the seed, one after another, and noting each in a file (one JSON line:
`Turn`). Imports: dev.soak.attacks. It runs at the lowest priority and sleeps after each attack
until it has used no more than CPU_SHARE of one CPU: so what the ordinary workload feels is what the
brokers do with the attacks, not a lack of CPU that the attacker took. Invariants: attack `n` of a
seed is the same attack with the same choices in every run; one attack at a time; each has a
deadline; SIGTERM ends the process after the attack under way; every clock that was moved is true
again in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dev.soak.attacks import (
    acks,
    credentials,
    largest,
    resources,
    rest,
    sends,
    storms,
    transactions,
)
from dev.soak.attacks.raw import Access, Gone, Target, connection, produce, subscribe
from dev.soak.clock_jumps import ClockJumps
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry

CPU_SHARE = 0.3
NICE = 19
PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 1.5
ATTACK_S_MAX = 90.0
JUMP_SHARE = 0.15
"""Attacks before which clocks are moved."""
GRACE_S = 3.0
"""For the attack under way when the process is to end."""
PRELOAD_RUN = 1000
Attack = Callable[[Target], Awaitable[str]]
RESOURCE_ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (*resources.ATTACKS, *credentials.ATTACKS)
}
"""On a server with security; they are asked for by name."""
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *acks.ATTACKS,
        *sends.ATTACKS,
        *largest.ATTACKS,
        *storms.ATTACKS,
        *transactions.ATTACKS,
        *rest.ATTACKS,
    )
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the process."""

    seed: str
    http_urls: list[str]
    coordinators: list[tuple[str, int]]
    namespace: str
    rest_namespace: str
    victims: list[str]
    servers: list[str]
    """Names of processes whose clocks may be moved."""
    skew_directory: str
    turns_path: str
    entries: int
    only: list[str] = field(default_factory=list)
    clocks: bool = True
    access: Access | None = None
    scale: float = 1.0

    @property
    def topic(self) -> str:
        return f"persistent://{self.namespace}/loaded"


@dataclass(frozen=True, slots=True)
class Turn:
    """One attack that took place; moments by the monotonic clock."""

    number: int
    attack: str
    began: float
    ended: float
    outcome: str
    notes: list[str]
    """What must not be: each is a finding."""
    cpu_s: float
    """What the attacker computed for it."""


def target_of(plan: Plan, number: int) -> Target:
    """Whom attack `number` hits."""
    return Target(
        plan.http_urls,
        [(host, port) for host, port in plan.coordinators],
        plan.namespace,
        plan.rest_namespace,
        plan.topic,
        plan.victims,
        random.Random(f"{plan.seed}/{number}"),
        plan.access,
        plan.scale,
    )


def attack_of(plan: Plan, number: int) -> str:
    """The name of attack `number`: all of them in an order of the seed's, then all again in
    another."""
    names = plan.only or sorted(ATTACKS)
    turn, place = divmod(number, len(names))
    return random.Random(f"{plan.seed}/order/{turn}").sample(names, len(names))[place]


async def preload(plan: Plan) -> None:
    """Small entries in the attacker's own topic, kept there by a subscription nobody consumes.
    Raises Gone."""
    target = target_of(plan, -1)
    async with connection(target, plan.topic) as raw:
        refusal = await subscribe(raw, plan.topic, "keeper") or await produce(raw, plan.topic)
        if refusal:
            raise Gone(refusal)
        metadata = api.MessageMetadata(
            producer_name="hostile", sequence_id=0, publish_time=int(time.time() * 1000)
        )
        entry = encode_entry(metadata, sends.PAYLOAD)
        for start in range(0, plan.entries, PRELOAD_RUN):
            run = range(start, min(plan.entries, start + PRELOAD_RUN))
            await raw.send(b"".join(requests.send(1, number, entry) for number in run))
            said = await raw.answers(len(run), api.BaseCommand.SEND_RECEIPT)
            if said != "answered":
                raise Gone(f"entries were not taken: {said}")


async def one_turn(plan: Plan, number: int, stopping: asyncio.Event) -> Turn:
    """Attack `number`; cut short soon after `stopping`."""
    name, target = attack_of(plan, number), target_of(plan, number)
    began, cpu_s = time.monotonic(), time.process_time()
    try:
        async with asyncio.timeout(ATTACK_S_MAX) as deadline:
            cut = asyncio.ensure_future(_cut_short(stopping, deadline))
            try:
                outcome = await (ATTACKS | RESOURCE_ATTACKS)[name](target)
            finally:
                cut.cancel()
    except Gone as error:
        outcome = str(error)
    except TimeoutError:
        outcome = "no end"
    return Turn(
        number, name, began, time.monotonic(), outcome, target.notes, time.process_time() - cpu_s
    )


async def _cut_short(stopping: asyncio.Event, deadline: asyncio.Timeout) -> None:
    await stopping.wait()
    deadline.reschedule(asyncio.get_running_loop().time() + GRACE_S)


async def run(plan: Plan, first: int) -> None:
    """Attacks from `first` on until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    jumps = ClockJumps(Path(plan.skew_directory), plan.servers)
    number, turns = first, Path(plan.turns_path)
    try:
        while not stopping.is_set():
            chance = random.Random(f"{plan.seed}/pause/{number}")
            if plan.clocks and chance.random() < JUMP_SHARE:
                jumps.jump(chance)
            turn = await one_turn(plan, number, stopping)
            with turns.open("a") as file:
                file.write(json.dumps({**asdict(turn), "clocks": jumps.described()}) + "\n")
            number += 1
            pause_s = max(
                chance.uniform(PAUSE_S_MIN, PAUSE_S_MAX),
                turn.cpu_s / CPU_SHARE - (turn.ended - turn.began),
            )
            try:
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
            except TimeoutError:
                continue
    finally:
        jumps.settle()


def read_plan(text: str) -> Plan:
    """The inverse of writing a plan as JSON."""
    values: dict[str, Any] = json.loads(text)
    access = values.pop("access")
    return Plan(**values, access=Access(**access) if access is not None else None)


def main() -> None:
    os.nice(NICE)
    plan, first = read_plan(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    asyncio.run(preload(plan) if first < 0 else run(plan, first))


if __name__ == "__main__":
    main()
