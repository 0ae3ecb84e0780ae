"""Leader election on every backend: one leader at a time, and acts that fail once the term is
over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from magnetar.errors import Compacted
from magnetar.metadata.election import Election
from magnetar.metadata.store import Delete, MetadataStore, Put, WatchBatch
from tests.contract.metadata.backends import Backend, PatientStore


@pytest.mark.slow
def test_one_of_many_candidates_leads(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        candidates = []
        for number in range(4):
            lease = await store.grant_lease(60)
            candidates.append(Election(store._inner, backend.clock, "leader", f"c{number}", lease))
        campaigns = {asyncio.create_task(each.campaign()): each for each in candidates}
        terms = []
        while campaigns:
            done, _ = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            winner = campaigns.pop(done.pop())
            item = await store.get("leader")
            assert item is not None
            assert item.mod_revision == winner.term
            terms.append(winner.term)
            assert (
                await store.transact((winner.guard(),), (Put("act", b"%d" % winner.term),))
            ).succeeded
            # asked again, it must not end the next one's term
            await store.transact((winner.guard(),), (Delete("leader"),))
        assert terms == sorted(set(terms))

    backend.run(scenario)


@pytest.mark.slow
def test_a_leader_whose_lease_ended_changes_nothing_and_learns_it(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        first_lease, second_lease = await store.grant_lease(60), await store.grant_lease(60)
        first = Election(store._inner, backend.clock, "leader", "first", first_lease)
        second = Election(store._inner, backend.clock, "leader", "second", second_lease)
        await first.campaign()
        guard = first.guard()
        losing = asyncio.create_task(first.lost())
        winning = asyncio.create_task(second.campaign())
        await asyncio.sleep(0.01)
        assert not winning.done()
        assert not losing.done()
        await store.revoke_lease(first_lease)
        assert await winning > guard.operand  # type: ignore[operator]  # a revision
        assert "ended" in await losing
        assert first.term == 0
        assert not (await store.transact((guard,), (Put("act", b"late"),))).succeeded
        item = await store.get("leader")
        assert item is not None
        assert item.lease == second_lease

    backend.run(scenario)


class Refusals:
    """A store that counts the watches which asked for a compacted revision."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner, self.count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        try:
            async with aclosing(self._inner.watch(prefix, from_revision)) as batches:
                async for batch in batches:
                    yield batch
        except Compacted:
            self.count += 1
            raise


def test_who_waits_for_a_term_that_began_before_a_compaction_asks_once(backend: Backend) -> None:
    """Candidate and leader watch from the revision of their read: the one of the term is gone,
    and would be refused again and again."""

    async def scenario(store: PatientStore) -> None:
        watched = Refusals(store._inner)
        lease = await store.grant_lease(60)
        first = Election(cast(MetadataStore, watched), backend.clock, "leader", "first", lease)
        second = Election(
            cast(MetadataStore, watched),
            backend.clock,
            "leader",
            "second",
            await store.grant_lease(60),
        )
        await first.campaign()
        await backend.compact(await store.put("other", b"1"))
        losing, winning = asyncio.create_task(first.lost()), asyncio.create_task(second.campaign())
        for number in range(20):
            await store.put("other", b"%d" % number)
        assert watched.count == 0
        assert not losing.done()
        assert not winning.done()
        await store.revoke_lease(lease)
        await winning
        assert "ended" in await losing

    backend.run(scenario)


def test_resigning_lets_the_next_one_lead(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        first = Election(store, backend.clock, "leader", "first", await store.grant_lease(60))
        second = Election(store, backend.clock, "leader", "second", await store.grant_lease(60))
        await first.campaign()
        winning = asyncio.create_task(second.campaign())
        await first.resign()
        await winning
        await first.resign()
        assert (await store.get("leader")).mod_revision == second.term  # type: ignore[union-attr]

    backend.run(scenario)


def test_a_restarted_candidate_takes_its_own_stale_term_at_once(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        before = Election(
            store._inner, backend.clock, "leader", "same", await store.grant_lease(60)
        )
        stale = await before.campaign()
        after = Election(store._inner, backend.clock, "leader", "same", await store.grant_lease(60))
        assert await after.campaign() > stale
        assert "another candidate" in await before.lost()

    backend.run(scenario)


def test_a_term_can_be_seized_from_a_living_holder(backend: Backend) -> None:
    """As the operator does: its Kubernetes Lease decided, the store only has to end the
    predecessor's acts."""

    async def scenario(store: PatientStore) -> None:
        first = Election(store, backend.clock, "operator/term", "old", 0)
        second = Election(store, backend.clock, "operator/term", "new", 0)
        await first.seize()
        stale = first.guard()
        await second.seize()
        assert not (await store.transact((stale,), (Put("act", b"old"),))).succeeded
        assert (await store.transact((second.guard(),), (Put("act", b"new"),))).succeeded
        assert await second.current() == ("new", second.term)

    backend.run(scenario)
