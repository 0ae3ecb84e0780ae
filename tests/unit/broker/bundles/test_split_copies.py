"""What storage shows of a split that did not happen. A rebuild of a lost store takes children
that have copies in a log for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.broker.bundles import splitting
from magnetar.broker.bundles.splitting import Splitter
from magnetar.errors import MagnetarError, StorageError
from tests.support.brokers import running_broker
from tests.support.split_bundles import (
    LEFT_TOPIC,
    MIDDLE,
    RIGHT_TOPIC,
    WHOLE,
    attached,
    store_of,
)


@pytest.mark.parametrize("plans", [0, 1])
async def test_children_have_copies_once_they_have_manifests(tmp_path: Path, plans: int) -> None:
    """Manifests that cannot be written: nothing of the children is in the log, and what was
    there is its parent's; else both, in this order."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker, attached(broker, LEFT_TOPIC, RIGHT_TOPIC):
            steps: list[str] = []
            plan, keep = Splitter._plan, splitting.keep_copies

            async def planning(splitter: Splitter, *how: Any) -> Any:
                if not plans:
                    raise StorageError("no space for manifests")
                steps.append("manifests")
                return await plan(splitter, *how)

            async def keeping(*how: Any) -> None:
                steps.append("copies")
                await keep(*how)

            with (
                mock.patch.object(Splitter, "_plan", planning),
                mock.patch.object(splitting, "keep_copies", keeping),
            ):
                if plans:
                    await broker.ownership.split(WHOLE, MIDDLE)
                    assert steps == ["manifests", "copies"]
                    return
                with pytest.raises(MagnetarError):
                    await broker.ownership.split(WHOLE, MIDDLE)
            assert steps == []
            record = await store_of(broker, WHOLE)
            assert record is not None
            assert record.chain, "its contents are its own still"

    await scenario()
