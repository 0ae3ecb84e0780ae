"""One back-off for all requests to a service that refuses them."""

from __future__ import annotations

import asyncio

from magnetar.storage.volumes import outage as object_outage
from magnetar.storage.volumes.objects import ObjectThrottled, RetryingObjects
from tests.simulation.kernel.world import World
from tests.support.objects_in_memory import MemoryService

CALLERS = 40
OUTAGE_S = 20.0


class Refusing(MemoryService):
    """Refuses requests while `refuses` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = True
        self.requests = 0

    async def get(self, key: str, offset: int, length: int | None) -> bytes:
        self.requests += 1
        if self.refuses:
            raise ObjectThrottled("slow down")
        return await super().get(key, offset, length)


def test_many_callers_cost_no_more_requests_than_one_and_go_on_together() -> None:
    """During an outage one request per pause is sent, however many callers wait; when it is over
    everybody goes on within one pause."""
    requests = {}

    async def play(world: World, callers: int) -> None:
        service = Refusing()
        service.objects["key"] = (b"here", "")
        objects = RetryingObjects(service, world.outsider("reader").clock)
        reads = [asyncio.create_task(objects.get("key")) for _ in range(callers)]
        await asyncio.sleep(OUTAGE_S)
        requests[callers] = service.requests
        service.refuses = False
        over = world.now
        assert await asyncio.gather(*reads) == [b"here"] * callers
        assert world.now - over <= 2 * object_outage.LAST_PAUSE_S

    for callers in (1, CALLERS):
        with World(1) as world:
            world.complete(play(world, callers), within_s=600.0)
    assert requests[CALLERS] < 2 * requests[1] + CALLERS
    assert requests[1] > 5
