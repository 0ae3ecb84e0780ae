"""The claim of a transaction coordinator's number on every backend: one holder, rising epochs, a
word that can be relied on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.identity import CoordinatorIdentity
from magnetar.errors import Fenced
from magnetar.metadata import keys
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
    CoordinatorState,
    ListenerAddress,
)
from tests.contract.metadata.backends import Backend, PatientStore

TIMEOUT_S = 120.0


def claim(
    store: PatientStore, backend: Backend, tcid: int, life: str, restore: int = 0
) -> CoordinatorClaim:
    identity = CoordinatorIdentity(
        tcid,
        f"tx-coordinator-{tcid}",
        f"tx-coordinator-{tcid}.{life}",
        "pulsar://x:1",
        "http://x:2",
    )
    return CoordinatorClaim(store, backend.clock, identity, restore)  # type: ignore[arg-type]  # a store but for its end


async def record_of(store: PatientStore, tcid: int) -> CoordinatorRecord:
    item = await store.get(keys.coordinator(tcid))
    assert item is not None
    return CoordinatorRecord.decode(item.value)


async def set_of(store: PatientStore) -> CoordinatorSetRecord | None:
    item = await store.get(keys.COORDINATOR_SET)
    return CoordinatorSetRecord.decode(item.value) if item is not None else None


def test_a_second_process_of_a_number_waits_until_the_first_one_has_left(backend: Backend) -> None:
    """Released or expired, the number passes on with a higher epoch, and the former holder
    changes nothing any more."""

    async def scenario(store: PatientStore) -> None:
        first, second, third = (claim(store, backend, 0, life) for life in "abc")
        await first.acquire(await store.grant_lease(60))
        second_lease = await store.grant_lease(60)
        waiting = asyncio.create_task(second.acquire(second_lease))
        await first.settle(lambda: 0)
        assert not waiting.done()
        # an answer that was lost: the number was given back and taken before the second try
        with suppress(Fenced):
            await first.release(0)
        async with asyncio.timeout(TIMEOUT_S):
            await waiting
        assert second.epoch > first.epoch
        with pytest.raises(Fenced, match="another holder"):
            await first.settle(lambda: 1)

        taking = asyncio.create_task(third.acquire(await store.grant_lease(60)))
        await store.revoke_lease(second_lease)
        async with asyncio.timeout(TIMEOUT_S):
            await taking
        assert third.epoch > second.epoch
        for former in (first, second):
            if former.record is not None and former.record.state is not CoordinatorState.RELEASED:
                with pytest.raises(Fenced, match="another holder"):
                    await former.release(0)
        item = await store.get(keys.coordinator_claim(0))
        assert item is not None
        assert CoordinatorClaimRecord.decode(item.value).incarnation == "tx-coordinator-0.c"

    backend.run(scenario)


def test_changed_addresses_are_advertised_by_the_holder_alone(backend: Backend) -> None:
    """They go with the lease as before; a claim that lost the number advertises nothing more."""

    async def scenario(store: PatientStore) -> None:
        first, second = claim(store, backend, 0, "a"), claim(store, backend, 0, "b")
        lease, advertised = (
            await store.grant_lease(60),
            {"public": ListenerAddress("pulsar://198.51.100.1:6650")},
        )
        await first.acquire(lease)
        await first.settle(lambda: 0)
        await first.advertise(advertised)
        item = await store.get(keys.coordinator_claim(0))
        assert item is not None
        record = CoordinatorClaimRecord.decode(item.value)
        assert (record.incarnation, record.listeners) == (first.incarnation, advertised)
        await store.revoke_lease(lease)
        async with asyncio.timeout(TIMEOUT_S):
            await second.acquire(await store.grant_lease(60))
        with pytest.raises(Fenced, match="another holder"):
            await first.advertise({})
        item = await store.get(keys.coordinator_claim(0))
        assert item is not None
        assert CoordinatorClaimRecord.decode(item.value).listeners == {}

    backend.run(scenario)


def test_numbers_are_announced_in_order_and_only_below_the_limit(backend: Backend) -> None:
    """Whichever claim comes first, clients never learn of a number that was not ready."""

    async def scenario(store: PatientStore) -> None:
        claims = [claim(store, backend, tcid, "a") for tcid in range(3)]
        for one in claims:
            await one.acquire(await store.grant_lease(60))
        await claims[2].settle(lambda: 0)
        await claims[1].settle(lambda: 0)
        assert await set_of(store) is None
        await claims[0].settle(lambda: 0)
        assert await set_of(store) == CoordinatorSetRecord(limit=16, announced=1)
        async with asyncio.timeout(TIMEOUT_S):
            await claims[1].set_changed()
        await claims[1].settle(lambda: 0)
        await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(2, 2, "shop/tx").encode())
        async with asyncio.timeout(TIMEOUT_S):
            await claims[2].set_changed()
        await claims[2].settle(lambda: 0)
        assert await set_of(store) == CoordinatorSetRecord(2, 2, "shop/tx"), (
            "beyond the limit nobody announces itself"
        )

    backend.run(scenario)


def test_a_lowered_limit_is_confirmed_and_a_raised_one_brings_the_number_back(
    backend: Backend,
) -> None:
    """Retiring says how many transactions are open; the word is durable and outlives the
    process."""

    async def scenario(store: PatientStore) -> None:
        one = claim(store, backend, 0, "a")
        await one.acquire(await store.grant_lease(60))
        await one.settle(lambda: 4)
        assert (await record_of(store, 0)).state is CoordinatorState.SERVING
        await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(0, 0, "shop/tx").encode())
        await one.settle(lambda: 3)
        assert await record_of(store, 0) == CoordinatorRecord(
            "tx-coordinator-0.a", 1, CoordinatorState.RETIRING, 3
        )
        revision = (await store.get(keys.coordinator(0))).mod_revision  # type: ignore[union-attr]
        await one.settle(lambda: 3)
        assert (await store.get(keys.coordinator(0))).mod_revision == revision, (
            "what stands there is not written again"
        )  # type: ignore[union-attr]
        await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 0, "shop/tx").encode())
        await one.settle(lambda: 3)
        assert (await record_of(store, 0)).state is CoordinatorState.SERVING
        assert await set_of(store) == CoordinatorSetRecord(1, 1, "shop/tx")
        await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(0, 0, "shop/tx").encode())
        await one.settle(lambda: 0)
        await one.release(0)
        assert await record_of(store, 0) == CoordinatorRecord(
            "tx-coordinator-0.a", 1, CoordinatorState.RELEASED, 0
        )
        assert await store.get(keys.coordinator_claim(0)) is None

    backend.run(scenario)


def test_epochs_rise_over_a_restore_although_records_are_lost(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        before, after = (
            claim(store, backend, 0, "a", restore=2),
            claim(store, backend, 0, "b", restore=3),
        )
        lease = await store.grant_lease(60)
        await before.acquire(lease)
        await store.revoke_lease(lease)
        await store.delete(keys.coordinator(0))
        await after.acquire(await store.grant_lease(60))
        assert before.epoch == 2 * RESTORE_STRIDE + 1
        assert after.epoch == 3 * RESTORE_STRIDE + 1

    backend.run(scenario)


def test_a_life_that_has_not_looked_into_its_log_leaves_the_last_word_alone(
    backend: Backend,
) -> None:
    """The number of open transactions that the incarnation before reported is not replaced by a
    guess."""

    async def scenario(store: PatientStore) -> None:
        first, second = claim(store, backend, 0, "a"), claim(store, backend, 0, "b")
        lease = await store.grant_lease(60)
        await first.acquire(lease)
        await first.settle(lambda: 5)
        await store.revoke_lease(lease)
        await second.acquire(await store.grant_lease(60))
        await second.release(0)
        assert await record_of(store, 0) == CoordinatorRecord(
            "tx-coordinator-0.b", 2, CoordinatorState.RECOVERING, 5
        )

    backend.run(scenario)
