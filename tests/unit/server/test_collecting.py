"""The collector and files that were set aside to be used again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.storage import names
from magnetar.storage.document import encode_document
from tests.unit.server.brokers import CLOCK, running_broker

DEAD, CLAIMED = "broker-7.0000000000000007", "broker-8.0000000000000008"


def test_what_a_dead_incarnation_set_aside_is_deleted_and_nothing_of_the_living(tmp_path: Path) -> None:
    """Only the incarnation that set a file aside may use it: once it has lost its claim, nobody ever will."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            volume = broker.context.volume
            claim = encode_document("claim", 1, {"incarnation": CLAIMED, "created_ms": CLOCK.wall_ms()})
            assert await volume.put_if_absent(names.claim(CLAIMED), claim)
            spares = {incarnation: names.spare(incarnation, 3) for incarnation in (DEAD, CLAIMED, broker.incarnation)}
            for name in spares.values():
                assert await volume.put_if_absent(name, b"x")
            await broker.maintenance.collector.collect_dead()
            left = [name for name in await volume.list(names.LOGS) if name.endswith(names.SPARE_SUFFIX)]
            assert left == sorted([spares[CLAIMED], spares[broker.incarnation]])

    asyncio.run(scenario())
