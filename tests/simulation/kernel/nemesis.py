"""Random trouble on a schedule.

Owns: `Nemesis`, which draws faults from the rates in `Faults` and ends them. Imports: asyncio,
random (seeded), the world. Invariant: after `until_s` (virtual time) every fault it began has ended
and the world is calm, so liveness can be checked from then on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.kernel.network import Partition
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.kernel.world import World


class Nemesis:
    """Attacks `targets` (names of nodes); partitions and resets may also involve `bystanders`,
    typically clients."""

    def __init__(
        self, world: World, targets: Sequence[str], bystanders: Sequence[str] = ()
    ) -> None:
        assert targets, "a nemesis needs targets"
        self._world, self._targets = world, list(targets)
        self._hosts = [*targets, *bystanders]
        self._chance = random.Random(f"{world.seed}/nemesis")
        self._until_s = 0.0

    def start(self, until_s: float) -> None:
        """Begin now; at the virtual time `until_s` everything heals and calms down."""
        faults, self._until_s = self._world.faults, until_s
        acts: list[tuple[float | None, Callable[[], None]]] = [
            (faults.crash_every_s, self._crash),
            (faults.pause_every_s, self._pause),
            (faults.partition_every_s, self._partition),
            (faults.store_partition_every_s, self._partition_from_store),
            (faults.store_outage_every_s, self._store_outage),
            (faults.lease_loss_every_s, self._lease_loss),
            (faults.reset_every_s, self._reset),
            (faults.power_loss_every_s, self._world.power_loss),
            (faults.wall_jump_every_s, self._wall_jump),
            (faults.disk_full_every_s, self._disk_full),
            (faults.disk_hang_every_s, self._disk_hang),
        ]
        for every_s, act in acts:
            if every_s is not None:
                self._world.script(self._repeat(every_s, act))
        self._world.at(until_s, self._world.calm)

    async def _repeat(self, every_s: float, act: Callable[[], None]) -> None:
        while True:
            delay = self._chance.expovariate(1.0 / every_s)
            if self._world.now + delay >= self._until_s:
                return
            await asyncio.sleep(delay)
            act()

    def _later(
        self, span_s: tuple[float, float], action: Callable[..., object], *args: object
    ) -> None:
        """End a fault after a while; what would outlast the nemesis is ended by `calm`."""
        when = self._world.now + self._chance.uniform(*span_s)
        if when < self._until_s:
            self._world.at(when, action, *args)

    def _crash(self) -> None:
        name = self._chance.choice(self._targets)
        self._world.crash(name)

    def _pause(self) -> None:
        name = self._chance.choice(self._targets)
        if self._world.alive(name) and not self._world.current(name).paused:
            self._world.pause(name)
            self._later(self._world.faults.pause_s, self._world.resume, name)

    def _partition(self) -> None:
        if len(self._hosts) < 2:
            return
        first, second = self._chance.sample(self._hosts, 2)
        kind = self._chance.choice(list(Partition))
        self._world.fabric.partition(first, second, kind, one_way=self._chance.random() < 0.3)
        self._later(self._world.faults.partition_s, self._world.fabric.heal, first, second)

    def _partition_from_store(self) -> None:
        name = self._chance.choice(self._targets)
        self._world.fabric.partition(name, STORE_HOST, one_way=self._chance.random() < 0.3)
        self._later(self._world.faults.partition_s, self._world.fabric.heal, name, STORE_HOST)

    def _store_outage(self) -> None:
        if self._world.store.available:
            self._world.store.set_available(False)
            self._later(self._world.faults.outage_s, self._world.store.set_available, True)

    def _lease_loss(self) -> None:
        self._world.store.expire_leases_of(self._chance.choice(self._targets))

    def _reset(self) -> None:
        pairs = self._world.fabric.connections()
        if pairs:
            self._world.fabric.reset(*self._chance.choice(pairs))

    def _disk_full(self) -> None:
        assert self._world.faults.reserve_bytes, "a disk without a reserve is not filled"
        if self._world.disk.limit is None:
            self._world.fill_disk(self._chance.randint(0, self._world.faults.disk_full_slack_bytes))
            self._later(self._world.faults.disk_full_s, self._world.free_disk)

    def _disk_hang(self) -> None:
        self._world.hang_disk(self._chance.uniform(*self._world.faults.disk_hang_s))

    def _wall_jump(self) -> None:
        name = self._chance.choice(self._targets)
        self._world.environment(name).clock.jump_wall(
            self._chance.uniform(*self._world.faults.wall_jump_s)
        )
