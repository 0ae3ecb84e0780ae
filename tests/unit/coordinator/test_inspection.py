"""What a coordinator reports to administrators, over a real one and its log: bounded answers,
and an end for every request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from magnetar.coordinator.inspection import CoordinatorInspection
from magnetar.errors import StoreUnavailable
from magnetar.metadata.backends.memory import MemoryStore
from tests.support.brokers import CLOCK
from tests.support.coordinators import (
    code,
    running_coordinator,
    transaction_peer,
    transaction_stage,
)

A = "persistent://public/default/a"
TIMEOUT_S = 120.0
NAMES_BYTES = 4 << 20
ANSWER_BYTES_MAX = 16 << 20
"""What a broker takes of another process's answer."""


async def test_an_answer_is_bounded_whatever_names_transactions_have(tmp_path: Path) -> None:
    """Transactions whose names would not fit into an answer still say how many participants they
    have, alone and in a list."""

    store = MemoryStore(CLOCK)
    async with (
        running_coordinator(tmp_path, store) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        inspection = CoordinatorInspection(lambda: coordinator)
        small, large = await peer.begin(A), await peer.begin()
        many = [
            f"persistent://public/default/{'x' * 900}{number}"
            for number in range(NAMES_BYTES // 1000)
        ]
        for suffix in ("a", "b"):
            assert code(await peer.join(large, *(name + suffix for name in many))) is None
        rows = await inspection.transactions(0, 0, 100)
        assert [row["participants"] for row in rows] == [1, 2 * len(many)]
        assert rows[0]["partitions"] == [A]
        alone = await inspection.transaction(0, large.least)
        assert "partitions" not in rows[1]
        assert "partitions" not in alone
        assert len(json.dumps([rows, alone])) < ANSWER_BYTES_MAX
        assert (await inspection.transaction(0, small.least))["partitions"] == [A]


async def test_an_abort_ends_with_the_life_that_was_asked(tmp_path: Path) -> None:
    """A participant is silent, so the abort waits. The coordinator fails: the caller gets an error
    instead of waiting permanently."""

    async with transaction_stage(tmp_path, transaction_end_patience_s=60) as (
        server,
        coordinator,
        peer,
    ):
        server.silent = True
        txn = await peer.begin(A)
        abort = asyncio.create_task(CoordinatorInspection(lambda: coordinator).abort(0, txn.least))
        async with asyncio.timeout(TIMEOUT_S):
            await server.received.get()
            coordinator.fail("the test says so")
            with pytest.raises(StoreUnavailable, match="the test says so"):
                await abort
