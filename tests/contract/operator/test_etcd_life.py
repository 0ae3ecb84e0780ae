"""The incarnation of a managed etcd with real etcd processes: grow, replace, restart, shrink and
heal under writes; nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreError
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.store import Delete
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.membership import AddLearner, EtcdPlan, Promote, RemoveMember
from magnetar_operator.etcd.upkeep import ROOM_SHARE, Upkeep
from tests.contract.metadata.backends import PatientStore
from tests.contract.operator.etcd_pods import EtcdPods, Operator

pytestmark = [pytest.mark.etcd, pytest.mark.slow]
DEADLINE_S = 240.0
POLL_S = 0.1


class Writer:
    """Writes one key after another for as long as it lives, and remembers what was acknowledged."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.acknowledged: list[str] = []

    async def write_on(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                await self._store.put(f"written/{number:06}", b"x")
            except StoreError:
                continue  # its outcome is unknown: it counts for nothing
            self.acknowledged.append(f"written/{number:06}")
            await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        """Wait for another acknowledged write."""
        before = len(self.acknowledged)
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acknowledged) == before:
                await asyncio.sleep(POLL_S)

    async def verify(self) -> None:
        """Everything acknowledged is there."""
        found = {item.key for item in (await PatientStore(self._store).range("written/")).items}
        assert set(self.acknowledged) <= found
        assert self.acknowledged


@asynccontextmanager
async def stage(
    directory: Path, flags: tuple[str, ...] = ()
) -> AsyncIterator[tuple[EtcdPods, Operator, EtcdStore]]:
    pods = EtcdPods(directory, flags)
    operator = Operator(pods)
    store = EtcdStore(list(pods.clients.values()), clock=SystemClock())
    try:
        yield pods, operator, store
    finally:
        await store.close()
        await operator.admin.close()
        pods.stop()


@asynccontextmanager
async def writing(store: EtcdStore) -> AsyncIterator[Writer]:
    writer = Writer(store)
    task = asyncio.create_task(writer.write_on())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(
    operator: Operator, wanted: int, what: str, reached: Callable[[EtcdPlan, Upkeep], bool]
) -> None:
    """Operator and kubelet take turns until `reached`."""
    plan = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                plan, upkeep = await operator.once(wanted)
                if reached(plan, upkeep):
                    return
                await asyncio.to_thread(operator.pods.step)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_S} s: {what}; last plan {plan}")


def is_well(operator: Operator, upkeep: Upkeep) -> bool:
    """By what its only member has just said: nothing is known of one that does not answer."""
    seen = operator.seen
    return upkeep.reason is None and seen.members is not None and 0 in seen.figures


async def settled(operator: Operator, wanted: int) -> None:
    """As wanted, and every member is a voter."""
    await until(operator, wanted, f"{wanted} members", lambda plan, _: plan == EtcdPlan(wanted))
    assert operator.seen.members is not None
    found = {member.ordinal: member.learner for member in operator.seen.members}
    assert found == dict.fromkeys(range(wanted), False)


async def fill(store: EtcdStore, key: Callable[[int], str]) -> None:
    """Write until etcd refuses: it compares the size of its file, which grows when a tenth of a
    second's writes are committed together."""
    for number in range(5000):
        try:
            await store.put(key(number), b"x" * (100 << 10))
        except StoreError as error:
            if "space" in str(error):
                return  # any other one is a busy machine's
    pytest.fail("500 MB were taken with a quota of 8 MiB")


async def test_one_member_grows_to_three_replaces_one_restarts_all_and_shrinks_again(
    tmp_path: Path,
) -> None:
    """Writes go on through all of it, every acknowledged one is there at the end, and a voter is
    only ever added after its time as a learner."""

    async with stage(tmp_path) as (pods, operator, store):
        await settled(operator, 1)
        async with writing(store) as writer:
            await writer.goes_on()
            await settled(operator, 3)
            kinds = [type(step) for step in operator.steps]
            assert kinds == [AddLearner, Promote, AddLearner, Promote]
            await writer.goes_on()

            old = {member.ordinal: member.id for member in operator.seen.members or ()}
            pods.lose(1)
            await settled(operator, 3)
            new = {member.ordinal: member.id for member in operator.seen.members or ()}
            assert (new[0], new[2]) == (old[0], old[2])
            assert new[1] != old[1], "it came back under a new id"
            assert [step for step in operator.steps if isinstance(step, RemoveMember)] == [
                RemoveMember(old[1], 1, "its volume holds no data any more")
            ]
            await writer.goes_on()

            pods.template += 1
            operator.steps.clear()
            await settled(operator, 3)
            assert sorted(ordinal for ordinal, _ in operator.restarts) == [0, 1, 2]
            # The leader last, which may be any: a busy machine may elect another one on the way.
            assert all(ordinal != leader for ordinal, leader in operator.restarts)
            assert set(operator.moves) <= {1}
            await writer.goes_on()

            await settled(operator, 1)
            pods.step()
            assert set(pods.pods) == {0}
            await writer.goes_on()
            # The volumes of the members that left hold what etcd would refuse: it is set aside.
            await until(
                operator,
                3,
                "member 1 has joined again",
                lambda *_: any(
                    member.ordinal == 1 and not member.learner
                    for member in operator.seen.members or ()
                ),
            )
            assert (pods.volume(1) / etcd_start.SET_ASIDE).is_dir()
            await writer.goes_on()
        await writer.verify()


async def test_a_pod_without_data_never_starts_on_its_own(tmp_path: Path) -> None:
    """Neither the single member as a new cluster, nor the second of two lost ones as a member
    that has forgotten its votes."""

    async with stage(tmp_path) as (pods, operator, store):
        await settled(operator, 1)
        patient = PatientStore(store)
        await patient.put("k", b"v")
        kept = tmp_path / "kept"
        pods.delete(0)
        pods.volume(0).rename(kept)
        for _ in range(5):
            plan, _ = await operator.once(1)
            pods.step()
        assert pods.pods[0].empty
        assert (plan.step, plan.reason and plan.reason.value) == (None, "EtcdDataLost")
        pods.volume(0).rmdir()
        kept.rename(pods.volume(0))
        await settled(operator, 1)
        found = await patient.get("k")
        assert found is not None
        assert found.value == b"v"


async def test_a_full_etcd_is_compacted_defragmented_and_takes_writes_again(tmp_path: Path) -> None:
    """The alarm is raised by real writes beyond a tiny quota, most of them history."""
    quota = 8 << 20

    async with stage(tmp_path, (f"--quota-backend-bytes={quota}",)) as (_, operator, store):
        operator.quota_bytes = quota
        await settled(operator, 1)
        await fill(store, lambda _: "rewritten")
        alarmed: list[str] = []

        def healed(_: EtcdPlan, upkeep: Upkeep) -> bool:
            if upkeep.reason is not None:
                alarmed.append(upkeep.reason.value)
            return bool(alarmed) and is_well(operator, upkeep)

        await until(operator, 1, "the alarm is over", healed)
        assert set(alarmed) == {"EtcdOutOfSpace"}
        await PatientStore(store).put("rewritten", b"y")
        assert operator.seen.figures[0].size < quota // 2


async def test_a_full_etcd_whose_data_is_in_use_stays_alarmed_until_something_goes(
    tmp_path: Path,
) -> None:
    quota = 8 << 20

    async with stage(tmp_path, (f"--quota-backend-bytes={quota}",)) as (_, operator, store):
        operator.quota_bytes = quota
        await settled(operator, 1)
        numbers = itertools.count()

        async def stays_alarmed() -> bool:
            """For four looks, unless less is in use than was written: etcd's file has free pages,
            the more the slower writes come."""
            looks = 0
            while looks < 4:
                _, upkeep = await operator.once(1)
                if operator.seen.members is None:
                    continue  # no answer in time
                looks += 1
                if upkeep.end_alarms or upkeep.reason is None:
                    assert operator.seen.figures[0].size < ROOM_SHARE * quota
                    return False
            return True

        async with asyncio.timeout(DEADLINE_S):
            while True:
                await fill(store, lambda _: f"kept/{next(numbers)}")
                await until(
                    operator, 1, "the alarm is seen", lambda _, upkeep: upkeep.reason is not None
                )
                if await stays_alarmed():
                    break
        patient = PatientStore(store)
        await patient.transact((), [Delete("kept/", prefix=True)])  # deleting is allowed
        await until(operator, 1, "the alarm is over", lambda _, upkeep: is_well(operator, upkeep))
        await patient.put("k", b"v")


async def test_a_snapshot_is_streamed_whole(tmp_path: Path) -> None:
    """etcd appends the hash of what went before: 32 bytes after a whole number of pages."""

    async with stage(tmp_path) as (_, operator, store):
        await settled(operator, 1)
        await PatientStore(store).put("k", b"v" * 5000)
        data = b"".join([piece async for piece in operator.admin.snapshot(0)])
        assert len(data) % 512 == 32
        assert b"v" * 5000 in data
