"""A checkpoint of many topics is made in turns, and what happens between them is in the log behind it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from magnetar.metadata.records import LogRange
from magnetar.names import TopicName
from magnetar.server.bundles import bundle
from magnetar.server.storage.log_scans import LogScans
from magnetar.server.storage.recovery import BundleReplay
from tests.unit.server.brokers import TOPIC, open_peer, running_broker

TOPICS = 20


def test_others_have_their_turns_and_a_successor_has_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One topic is deleted and two are made between the first topic of the checkpoint and the last: recovery finds those that there are."""
    monkeypatch.setattr(bundle, "CHECKPOINT_SLICE_BYTES", 1)

    async def scenario() -> None:
        async with running_broker(tmp_path, keep_alive_s=3600.0, maintenance_s=3600.0) as broker, open_peer(broker) as peer:
            await peer.lookup()
            name = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
            owned = broker.ownership.owned[str(name)]
            found = (TopicName.parse(f"{TOPIC}-{number:03}") for number in itertools.count())
            ours = (topic for topic in found if name.contains(topic))
            topics = [await owned.topic(next(ours), create=True) for _ in range(TOPICS)]
            assert all(topics)
            log = broker.context.log
            position = log.position
            writing = asyncio.create_task(owned.write_checkpoint(position))

            async def meanwhile() -> None:
                last = TopicName.parse(max(owned.topics))
                await owned.delete_topic(last)
                for topic in (last, next(ours)):
                    await owned.topic(topic, create=True)

            acting, turns = asyncio.create_task(meanwhile()), 0
            while not writing.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns >= TOPICS
            await acting
            await log.barrier()
            replay = BundleReplay(name, 1 << 40)
            await replay.load(broker.context, (await writing)[0])
            await replay.replay(LogScans(broker.context.volume), owned.epoch, LogRange(broker.incarnation, position, log.position))
            assert set(replay.topics) == set(owned.topics)
            assert len(owned.topics) == TOPICS + 1

    asyncio.run(scenario())
