"""What `metadata.store` promises about leases, proved on every backend."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from magnetar.errors import LeaseLost, StoreError
from magnetar.metadata.store import Put, WatchBatch
from tests.contract.metadata.backends import Backend, PatientStore


@pytest.mark.slow
def test_all_keys_of_an_expired_lease_vanish_in_one_revision(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        other = await store.grant_lease(600)
        granted_at, lease, start = 0.0, 0, 0
        while not start:
            granted_at = backend.clock.boottime()
            lease = await store.grant_lease(backend.ttl_s)
            assert lease != 0
            with suppress(LeaseLost):  # a machine that stands still for so long begins again
                bound = await store.transact(
                    (),
                    (
                        Put("l/b", b"1", lease),
                        Put("l/a", b"2", lease),
                        Put("l/kept", b"3"),
                        Put("l/other", b"4", other),
                    ),
                )
                start = bound.revision + 1
        batch = await asyncio.wait_for(
            anext(store.watch("l/", start)), backend.ttl_s + backend.expiry_s
        )
        assert backend.clock.boottime() - granted_at >= backend.ttl_s, "never early"
        assert [(event.key, event.value) for event in batch.events] == [
            ("l/a", None),
            ("l/b", None),
        ]
        assert batch.revision == start
        assert [item.key for item in (await store.range("l/")).items] == ["l/kept", "l/other"]
        with pytest.raises(LeaseLost):
            await store.renew_lease(lease)
        with pytest.raises(LeaseLost):
            await store.put("l/a", b"again", lease)

    backend.run(scenario)


@pytest.mark.slow
def test_a_renewed_lease_outlives_its_time(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        lease = await store.grant_lease(backend.ttl_s)
        await store.put("l/k", b"v", lease)
        # often: a machine that is busy with other things may be late by most of the lease's time
        for _ in range(13):
            await asyncio.sleep(backend.ttl_s / 10)
            assert await store.renew_lease(lease) >= backend.ttl_s
        item = await store.get("l/k")
        assert item is not None
        assert item.lease == lease

    backend.run(scenario)


def test_revoking_deletes_the_keys_in_one_revision(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        lease = await store.grant_lease(60)
        for key in ("l/c", "l/a", "l/b"):
            await store.put(key, key.encode(), lease)
        before = (await store.range("")).revision
        await store.revoke_lease(lease)
        batch: WatchBatch = await anext(store.watch("l/", before + 1))
        assert [event.key for event in batch.events] == ["l/a", "l/b", "l/c"]
        assert (await store.range("")).revision == before + 1
        await store.revoke_lease(lease)
        with pytest.raises(LeaseLost):
            await store.renew_lease(lease)

    backend.run(scenario)


def test_a_lease_without_keys_ends_without_a_revision(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        before = (await store.range("")).revision
        lease = await store.grant_lease(60)
        await store.revoke_lease(lease)
        assert (await store.range("")).revision == before

    backend.run(scenario)


def test_the_last_write_decides_which_lease_a_key_is_bound_to(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        first, second = await store.grant_lease(60), await store.grant_lease(60)
        await store.put("l/freed", b"1", first)
        await store.put("l/freed", b"2")
        await store.put("l/moved", b"3", first)
        await store.put("l/moved", b"4", second)
        await store.put("l/deleted", b"5", first)
        await store.delete("l/deleted")
        await store.put("l/deleted", b"6")
        await store.revoke_lease(first)
        assert [item.key for item in (await store.range("l/")).items] == [
            "l/deleted",
            "l/freed",
            "l/moved",
        ]
        await store.revoke_lease(second)
        assert [item.key for item in (await store.range("l/")).items] == ["l/deleted", "l/freed"]

    backend.run(scenario)


def test_a_lease_needs_a_time(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        with pytest.raises(StoreError):
            await store.grant_lease(0)

    backend.run(scenario)
