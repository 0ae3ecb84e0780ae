"""Lists of transactions: bounded, and never less than they seem to be."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from magnetar.broker.routes.application import create_application
from magnetar.coordinator.probes import LISTED, LISTED_MAX
from tests.support.resources import every_resource
from tests.support.rest import refusal_text

OURS, PULSAR = "/magnetar/v1/transactions", "/admin/v3/transactions/slowTransactions"


class ManyTransactions:
    """A broker whose coordinators have so many open ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.application = create_application(every_resource(self))

    async def transactions(self, tcid: int | None, older_ms: int, limit: int) -> dict[str, Any]:
        assert (tcid, older_ms) in ((None, 0), (None, 5), (0, 5))
        rows = [
            {"txn": f"(0,{number})", "status": "OPEN", "owner": ""}
            for number in range(min(self.count, limit))
        ]
        return {"transactions": rows, "more": self.count > limit, "unreachable": []}

    def get(self, path: str) -> httpx.Response:
        async def run() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.application), base_url="http://test"
            ) as client:
                return await client.get(path)

        return asyncio.run(run())


def test_slow_transactions_are_all_of_them_or_a_refusal() -> None:
    """Pulsar's shape is a map without a place for "and more": beyond the bound it says what to
    ask instead."""
    answer = ManyTransactions(LISTED + 1).get(f"{PULSAR}/5")
    assert answer.status_code == 200
    assert len(answer.json()) == LISTED + 1
    refused = ManyTransactions(LISTED_MAX + 1).get(f"{PULSAR}/5?coordinatorId=0")
    assert refused.status_code == 400
    assert all(
        word in refusal_text(refused.json())
        for word in ("timeout", str(LISTED_MAX), "coordinatorId", OURS)
    )


def test_our_list_says_that_there_are_more() -> None:
    port = ManyTransactions(LISTED + 1)
    assert port.get(OURS).json()["more"] is True
    assert port.get(f"{OURS}?limit={LISTED + 1}").json()["more"] is False
    refused = port.get(f"{OURS}?limit={LISTED_MAX + 1}")
    assert refused.status_code == 400
    assert "limit" in refused.json()["reason"]
