"""The simulation's store as one more backend of the contract, in virtual time.

Owns: `SimulatedBackend`. Imports: the simulation kernel. What passes here may stand in for a real
store in every scenario.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.contract.metadata.backends import PATIENCE_S, SEED, Backend, PatientStore
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.kernel.world import World

FAULTS = Faults.none().but(
    lost_request_probability=0.05, lost_reply_probability=0.05, watch_disconnect_probability=0.1
)


class SimulatedBackend(Backend):
    """The store of a world. Requests and replies get lost; leases are long enough for two lost
    renewals."""

    ttl_s = 10.0
    expiry_s = 2.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._world = World(SEED, FAULTS)
        self._environment = self._world.outsider("caller")
        self.clock = self._environment.clock

    async def compact(self, revision: int) -> None:
        self._world.store.core.compact(revision)

    async def disturb(self) -> None:
        """Cut the caller off, and let it back in a little later."""
        self._world.fabric.partition("caller", STORE_HOST)
        self._world.at(self._world.now + 0.5, self._world.fabric.heal, "caller", STORE_HOST)

    def run(self, scenario: Callable[[PatientStore], Awaitable[None]]) -> None:
        async def body() -> None:
            try:
                await scenario(PatientStore(self._environment.store))
            finally:
                await self._environment.store.close()

        with self._world as world:
            world.complete(body(), within_s=PATIENCE_S * 10)
