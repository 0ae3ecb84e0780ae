"""The end of a term in the log: it fits there, however many topics a bundle has and whatever
they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from magnetar.names import TopicName
from tests.support.brokers import TOPIC, connected_peer


async def test_a_release_does_not_grow_with_its_topics(tmp_path: Path) -> None:
    """A record that does not fit into a block ends its incarnation: no such bundle could be
    moved, or divided, ever again."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.lookup()
        owned = broker.ownership.owned[
            str(await broker.ownership.bundle_of(TopicName.parse(TOPIC)))
        ]
        topics = [f"persistent://public/default/{'long' * 200}-{number}" for number in range(40)]
        for topic in topics:
            if owned.name.contains(TopicName.parse(topic)):
                await owned.topic(TopicName.parse(topic), True)
        assert len(owned.topics) > 1
        sizes: list[int] = []
        append = owned.append

        def measure(record: Any, on_durable: Any) -> None:
            sizes.append(record.size)
            append(record, on_durable)

        owned.freeze()
        with mock.patch.object(owned, "append", measure):
            await owned.append_release()
        assert len(sizes) == 1
        assert sizes[0] < 200
