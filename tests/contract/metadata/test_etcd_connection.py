"""What is particular to a store behind a network: failover, deadlines, requests that must not be
repeated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.ports import free_port
from dev.testbed.etcd_admin import EtcdAdmin
from dev.testbed.etcd_server import EtcdServer
from magnetar.clock import SystemClock
from magnetar.errors import LeaseLost, StoreError, StoreUnavailable
from magnetar.hosting import lease_thread
from magnetar.hosting.lease_thread import ThreadedLeaseKeeper
from magnetar.metadata.backends import etcd, etcd_channels
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.store import Compare, Put
from tests.contract.metadata.backends import PatientStore

CLOCK = SystemClock()
LEASE_S = 6.0
pytestmark = [pytest.mark.etcd, pytest.mark.slow]


class FirstEndpointClock(SystemClock):
    """Draws always the first endpoint."""

    def random_bits(self, bits: int) -> int:
        return super().random_bits(bits) * 0


@pytest.fixture
def first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that was drawn is connected to, however long a busy machine needs for that."""
    monkeypatch.setattr(etcd_channels, "FIRST_CHOICE_S", 60.0)


async def run(store: EtcdStore, scenario: Callable[[EtcdStore], Coroutine[Any, Any, None]]) -> None:
    try:
        await asyncio.wait_for(scenario(store), 240)
    finally:
        await store.close()


def patient_store(server: EtcdServer) -> EtcdStore:
    """For requests that are to be answered, however busy the machine is."""
    return EtcdStore([server.endpoint], clock=CLOCK, request_timeout_s=60.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that the test may freeze or kill."""
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_a_dead_endpoint_is_passed_over_for_writes_too(server: EtcdServer) -> None:
    """A request is sent only on an open connection, so one that found none may go elsewhere."""

    async def scenario(store: EtcdStore) -> None:
        for number in range(5):
            await store.put("k", b"%d" % number)
        item = await store.get("k")
        assert item is not None
        assert item.version == 5
        assert await store.delete("k")

    for _ in range(4):  # which member comes first is drawn
        dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        await run(
            EtcdStore([dead[0], server.endpoint, dead[1]], clock=CLOCK, request_timeout_s=60.0),
            scenario,
        )


async def test_nobody_there_is_said_within_the_deadline() -> None:
    async def scenario(store: EtcdStore) -> None:
        with pytest.raises(StoreUnavailable, match="not connected within"):
            await store.put("k", b"v")

    await run(EtcdStore([f"127.0.0.1:{free_port()}"], clock=CLOCK, request_timeout_s=0.5), scenario)


async def test_a_frozen_server_costs_one_deadline_and_a_write_is_sent_once(
    server: EtcdServer,
) -> None:
    async def scenario(store: EtcdStore) -> None:
        patient = PatientStore(store)
        await patient.put("k", b"before")
        server.freeze()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.put("k", b"during")
        assert time.monotonic() - started >= 2.9, "it was waited for"
        with pytest.raises(StoreUnavailable):
            await store.get("k")
        server.thaw()
        item = await patient.get("k")
        assert item is not None
        # Whether it arrived is unknown to the caller; that it arrived at most once is not.
        assert (item.value, item.version) in {(b"before", 1), (b"during", 2)}

    await run(EtcdStore([server.endpoint], clock=CLOCK, request_timeout_s=3.0), scenario)


@pytest.mark.usefixtures("first_is_waited_for")
async def test_a_read_goes_to_another_member_when_one_does_not_answer(
    tmp_path: Path, server: EtcdServer
) -> None:
    """The first member is frozen: it still accepts connections."""

    async def scenario(store: EtcdStore) -> None:
        (tmp_path / "frozen").mkdir()
        frozen = EtcdServer(tmp_path / "frozen")
        frozen.start()
        try:
            other = EtcdStore(
                [frozen.endpoint, server.endpoint],
                clock=FirstEndpointClock(),
                request_timeout_s=20.0,
            )
            await PatientStore(store).put("k", b"v")
            assert await other.get("k") is None, "the first member answers as long as it can"
            frozen.freeze()
            item = await other.get("k")
            assert item is not None
            assert item.value == b"v"
            await other.put("k", b"w")
            await other.close()
        finally:
            frozen.kill()

    await run(patient_store(server), scenario)


@pytest.mark.usefixtures("first_is_waited_for")
async def test_a_write_without_an_answer_is_not_sent_to_another_member(
    tmp_path: Path, server: EtcdServer
) -> None:
    (tmp_path / "frozen").mkdir()
    frozen = EtcdServer(tmp_path / "frozen")
    frozen.start()

    async def scenario(store: EtcdStore) -> None:
        other = EtcdStore(
            [frozen.endpoint, server.endpoint], clock=FirstEndpointClock(), request_timeout_s=10.0
        )
        await other.put("k", b"first")
        frozen.freeze()
        with pytest.raises(StoreUnavailable):
            await other.put("k", b"second")
        patient = PatientStore(store)
        assert await patient.get("k") is None
        await other.put("k", b"third")
        item = await patient.get("k")
        assert item is not None
        assert item.value == b"third", "a new request does go to the member that answers"
        await other.close()

    try:
        await run(patient_store(server), scenario)
    finally:
        frozen.kill()


@pytest.mark.usefixtures("first_is_waited_for")
async def test_a_caller_that_loses_patience_reaches_another_member_next(
    tmp_path: Path, server: EtcdServer
) -> None:
    """A lease keeper waits a third of the lease's time, which is less than the deadline of a
    request."""
    (tmp_path / "frozen").mkdir()
    frozen = EtcdServer(tmp_path / "frozen")
    frozen.start()

    async def scenario(_: EtcdStore) -> None:
        other = EtcdStore(
            [frozen.endpoint, server.endpoint], clock=FirstEndpointClock(), request_timeout_s=200.0
        )
        lease = await other.grant_lease(60)
        frozen.freeze()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.renew_lease(lease), 0.5)
        # the other server's answer: it is another cluster and knows no such lease
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(other.renew_lease(lease), 120.0)
        await other.close()

    try:
        await run(patient_store(server), scenario)
    finally:
        frozen.kill()


async def test_a_watch_resumes_after_its_member_was_down(server: EtcdServer) -> None:
    async def scenario(store: EtcdStore) -> None:
        start = await PatientStore(store).put("w", b"0") + 1
        watch = store.watch("w", start)
        await PatientStore(store).put("w", b"1")
        assert (await anext(watch)).events[0].value == b"1"
        server.kill()
        await asyncio.sleep(1.0)
        server.start()
        while True:
            try:
                await store.put("w", b"2")
                break
            except StoreUnavailable:
                continue
        assert (await anext(watch)).events[0].value == b"2"
        await watch.aclose()

    await run(patient_store(server), scenario)


@pytest.mark.usefixtures("first_is_waited_for")
async def test_a_watch_on_a_silent_connection_reconnects(
    tmp_path: Path, server: EtcdServer
) -> None:
    """Nothing closes the connection to a frozen member: a watch must find out by itself, even of
    a prefix that never changes."""
    (tmp_path / "frozen").mkdir()
    frozen = EtcdServer(tmp_path / "frozen")
    frozen.start()

    async def scenario(_: EtcdStore) -> None:
        store = EtcdStore([frozen.endpoint, server.endpoint], clock=FirstEndpointClock())
        watch = store.watch("w", 2)
        await PatientStore(store).put("w", b"frozen")
        assert (await anext(watch)).events[0].value == b"frozen"
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(2.5 * etcd.WATCH_SILENCE_S)
        assert not waiting.done(), "asking for progress does not disturb a silent watch"
        frozen.freeze()
        other = patient_store(server)
        for _turn in range(2):  # revisions 2 and 3: the watch resumes at 3
            await other.put("w", b"other")
        assert (await waiting).revision == 3
        await watch.aclose()
        await other.close()
        await store.close()

    try:
        await run(patient_store(server), scenario)
    finally:
        frozen.kill()


async def test_without_space_reads_and_leases_go_on_and_writes_have_to_wait(
    server: EtcdServer,
) -> None:
    """A used up quota is an outage for writers, not a refusal of what they write."""

    async def scenario(store: EtcdStore) -> None:
        await store.put("k", b"before")
        lease = await store.grant_lease(60)
        with EtcdAdmin(server.endpoint) as etcd:
            etcd.raise_space_alarm()
            with pytest.raises(StoreUnavailable, match="space"):
                await store.put("k", b"during")
            with pytest.raises(StoreUnavailable, match="space"):
                await store.transact((Compare("new", "create", "=", 0),), (Put("new", b"v"),))
            with pytest.raises(StoreUnavailable, match="space"):
                await store.grant_lease(60)
            item = await store.get("k")
            assert item is not None
            assert item.value == b"before"
            assert await store.renew_lease(lease) >= 60
            etcd.end_space_alarm()
        await store.put("k", b"after", lease)

    await run(patient_store(server), scenario)


async def test_cancelling_a_caller_is_not_mistaken_for_closing(server: EtcdServer) -> None:
    async def scenario(store: EtcdStore) -> None:
        revision = await store.put("w", b"0")
        watching = asyncio.create_task(anext(store.watch("w", revision + 1)))
        await asyncio.sleep(0.05)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert await store.get("w") is not None

    await run(patient_store(server), scenario)


async def test_value_compares_of_missing_keys_survive_a_race(server: EtcdServer) -> None:
    """The store asks again with what it saw; the outcome is that of one moment."""

    async def scenario(store: EtcdStore) -> None:
        async def flip() -> None:
            for number in range(60):
                await store.put("k", b"%d" % number)
                await store.delete("k")

        flipping = asyncio.create_task(flip())
        compares = (Compare("k", "value", "<", b"~"), Compare("missing", "value", "=", b""))
        outcomes = set()
        while not flipping.done():
            try:
                outcomes.add((await store.transact(compares, (Put("y", b"1"),))).succeeded)
            except StoreUnavailable as error:
                outcomes.add("nothing was written" in str(error))
        assert outcomes == {True}
        await flipping

    await run(patient_store(server), scenario)


async def test_a_busy_main_loop_keeps_its_lease_in_etcd(server: EtcdServer) -> None:
    async def scenario(store: EtcdStore) -> None:
        lost: list[str] = []
        keeper = ThreadedLeaseKeeper(
            lambda: EtcdStore([server.endpoint], clock=CLOCK), CLOCK, LEASE_S, lost.append, 60.0
        )
        lease = await keeper.start()
        await store.put("k", b"v", lease)
        time.sleep(2.1 * LEASE_S)  # the main loop is busy for more than two lease times
        assert keeper.valid()
        item = await store.get("k")
        assert item is not None
        assert item.lease == lease
        await keeper.stop(revoke=True)
        assert await store.get("k") is None
        assert lost == []

    await run(patient_store(server), scenario)


async def test_leases_that_end_in_an_outage_leave_nothing_behind_on_standard_error(
    server: EtcdServer,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever gRPC reports what became of their calls, be it when etcd is back: no other loop
    of the process fails by it."""
    # how long gRPC takes is nobody's to say
    monkeypatch.setattr(lease_thread, "LAST_WORDS_S", 0, raising=False)

    async def scenario(store: EtcdStore) -> None:
        def connect() -> EtcdStore:
            return EtcdStore([server.endpoint], clock=CLOCK, request_timeout_s=8.0)

        keepers = [
            ThreadedLeaseKeeper(connect, CLOCK, LEASE_S, lambda _reason: None, 60.0)
            for _ in range(6)
        ]
        await asyncio.gather(*(keeper.start() for keeper in keepers[:5]))
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.put("k", b"v")
        await asyncio.gather(*(keeper.stop(revoke=True) for keeper in keepers[:5]))
        with pytest.raises(StoreUnavailable):
            await keepers[5].start()
        await asyncio.to_thread(server.start)
        patient = PatientStore(store)
        await patient.put("k", b"v")
        for _ in range(20):  # whatever was reported before is passed on by now
            assert await patient.get("k") is not None

    await run(EtcdStore([server.endpoint], clock=CLOCK), scenario)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [("localhost", "host:port"), ("ftp://h:1", "host:port"), ("https://h:1", "needs TLS files")],
)
def test_malformed_endpoints_are_refused_by_name(endpoint: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        EtcdStore([endpoint], clock=CLOCK)


async def test_a_request_under_way_on_a_connection_that_is_replaced_does_not_end_its_task(
    server: EtcdServer,
) -> None:
    """gRPC reports the end of the channel as a cancellation, by which a task would end
    silently: a read is sent again on the new one, a write raises our error."""

    async def scenario(store: EtcdStore) -> None:
        await store.put("k", b"1")
        server.freeze()
        reading, writing = (
            asyncio.create_task(store.get("k")),
            asyncio.create_task(store.put("k", b"2")),
        )
        await asyncio.sleep(0.2)
        assert not reading.done()
        assert not writing.done()
        (address, member), *_ = store.channels._members.items()
        # what new certificates do to a connection that is down
        del store.channels._members[address]
        await member.channel.close()
        server.thaw()
        with pytest.raises(StoreUnavailable, match="closed under the request"):
            await writing
        item = await reading
        assert item is not None
        assert not reading.cancelled()

    await run(patient_store(server), scenario)
