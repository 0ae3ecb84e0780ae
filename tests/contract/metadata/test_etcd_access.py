"""A real etcd as the operator runs it: its own authority, certificates as identities, a role per
component."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.etcd_tls import ReplaceableTls, TlsBytes
from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import MEMBER
from magnetar_operator.etcd.certificates import Subject, issue
from magnetar_operator.etcd.roles import USERS, Change, plan_access
from magnetar_operator.etcd.users import EtcdUsers
from tests.contract.metadata.guarded_etcd import HERE, Guarded

CLOCK = SystemClock()
pytestmark = [pytest.mark.etcd, pytest.mark.slow]


Scenario = Callable[[Guarded, EtcdStore], Coroutine[Any, Any, None]]


async def run(directory: Path, scenario: Scenario) -> None:
    """Run `scenario` with a new etcd and the operator's store of it."""

    guarded = Guarded(directory)
    await asyncio.to_thread(guarded.server.start)
    store = guarded.store(names.OPERATOR_USER)
    try:
        async with asyncio.timeout(400):
            await scenario(guarded, store)
    finally:
        await store.close()
        guarded.server.kill()


def lead() -> None:
    """This process leads, always."""


async def has_rights(
    guarded: Guarded, user: str, *, allowed: list[str], forbidden: list[str]
) -> None:
    """Read everything, write and watch below `allowed`, be refused below `forbidden`."""
    store = guarded.store(user)
    try:
        await store.range("")
        for key in allowed:
            await store.put(key, b"v")
            await store.delete(key)
        for key in forbidden:
            with pytest.raises(StoreError, match="permission denied"):
                await store.put(key, b"v")
    finally:
        await store.close()


async def test_every_component_may_do_its_work_and_no_more(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded, store: EtcdStore) -> None:
        assert await EtcdUsers(store.channels, lead).converge() > 0
        work = [
            f"{prefix}x" for prefix in (keys.BUNDLES, keys.LOGS, keys.NAMESPACES, keys.INCARNATIONS)
        ]
        for user in (names.BROKER_USER, names.COORDINATOR_USER):
            await has_rights(
                guarded,
                user,
                allowed=[*work, keys.LEADER, keys.JOBS + "a/b"],
                forbidden=[keys.OPERATOR_TERM, "operator/x"],
            )
        jobs = [keys.JOBS + "a/b", keys.INTENTS + "i", keys.MANIFESTS + "a/b/0_1"]
        await has_rights(
            guarded,
            names.JOB_USER,
            allowed=jobs,
            forbidden=[*work, keys.OPERATOR_TERM, keys.CORDONS + "b"],
        )
        await has_rights(
            guarded,
            names.OPERATOR_USER,
            allowed=[keys.OPERATOR_TERM, keys.CORDONS + "b"],
            forbidden=[],
        )
        for stranger in (MEMBER, "unknown-user"):
            other = guarded.store(stranger)
            with pytest.raises(StoreError):
                await other.get(keys.CLUSTER)
            await other.close()

    await run(tmp_path, scenario)


async def test_access_is_repaired_from_any_state_and_left_alone_when_right(tmp_path: Path) -> None:
    """Also after a restart of the operator, and where an etcd was restored without users."""

    async def scenario(guarded: Guarded, store: EtcdStore) -> None:
        users = EtcdUsers(store.channels, lead)
        await users.converge()
        assert await users.converge() == 0
        assert await EtcdUsers(store.channels, lead).converge() == 0
        await users._perform(Change("add_role", "theirs"))
        await users._perform(Change("add_user_role", names.JOB_USER, role=names.BROKER_USER))
        await users._perform(Change("remove_user_role", names.BROKER_USER, role=names.BROKER_USER))
        assert await users.converge() == 2
        await has_rights(
            guarded, names.JOB_USER, allowed=[keys.JOBS + "a/b"], forbidden=[keys.LEADER]
        )
        await has_rights(guarded, names.BROKER_USER, allowed=[keys.LEADER], forbidden=[])
        known = await users._read()
        assert plan_access(known) == []
        assert set(known.users) == set(USERS)

    await run(tmp_path, scenario)


async def test_requests_under_way_survive_authentication_coming_on(tmp_path: Path) -> None:
    """A broker at work before there are users goes on; what meets a change of users is sent
    again, and takes effect once."""

    async def scenario(guarded: Guarded, store: EtcdStore) -> None:
        broker = guarded.store(names.BROKER_USER)
        done = 0
        over = asyncio.Event()

        async def work() -> None:
            nonlocal done
            while not over.is_set():
                await broker.put(f"{keys.BUNDLES}{done}", b"v")
                done += 1

        tasks = [asyncio.create_task(work())]
        seen = 0

        async def follow() -> None:
            nonlocal seen
            async for batch in broker.watch(keys.BUNDLES, 1):
                seen += len(batch.events)

        following = asyncio.create_task(follow())
        try:
            users = EtcdUsers(store.channels, lead)
            await users.converge()
            for _ in range(20):
                await users._perform(
                    Change("add_user_role", names.JOB_USER, role=names.BROKER_USER)
                )
                await users.converge()
            over.set()
            await asyncio.gather(*tasks)
            while seen < done:
                assert not following.done()
                await asyncio.sleep(0.01)
            assert seen == done > 0
        finally:
            following.cancel()
            await asyncio.wait([following])
            await broker.close()

    await run(tmp_path, scenario)


async def test_renewed_certificates_are_used_by_both_sides_without_a_restart(
    tmp_path: Path,
) -> None:
    """etcd reads its files at each handshake; a store with an expired certificate takes the new
    one when it connects again."""

    async def scenario(guarded: Guarded, store: EtcdStore) -> None:
        await EtcdUsers(store.channels, lead).converge()
        year_ms = 366 * 86_400_000
        expired = issue(guarded.authority, Subject(names.BROKER_USER), CLOCK.wall_ms() - year_ms)
        material = ReplaceableTls(
            TlsBytes(guarded.authority.certificate, expired.certificate, expired.key)
        )
        broker = EtcdStore([guarded.server.endpoint], material, clock=CLOCK, request_timeout_s=3.0)
        try:
            with pytest.raises(StoreUnavailable):
                await broker.get(keys.CLUSTER)
            material.replace(guarded.material(names.BROKER_USER))
            await until_answered(broker)
            renewed = issue(guarded.authority, Subject(MEMBER, HERE), CLOCK.wall_ms())
            guarded.write(renewed)
            assert ssl.PEM_cert_to_DER_cert(
                renewed.certificate.decode()
            ) == await asyncio.to_thread(shown_by, guarded)
            other = guarded.store(names.BROKER_USER)
            await other.get(keys.CLUSTER)
            await other.close()
            await until_answered(broker)
        finally:
            await broker.close()

    await run(tmp_path, scenario)


def shown_by(guarded: Guarded) -> bytes | None:
    """The certificate that etcd shows to new connections."""
    context = ssl.create_default_context(cafile=str(guarded.directory / AUTHORITY_FILE))
    context.load_cert_chain(guarded.directory / CERTIFICATE_FILE, guarded.directory / KEY_FILE)
    with (
        socket.create_connection(guarded.server.address, timeout=60) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        return secured.getpeercert(binary_form=True)


async def until_answered(store: EtcdStore) -> None:
    while True:
        try:
            await store.get(keys.CLUSTER)
        except StoreUnavailable:
            continue
        return


async def test_one_port_serves_plain_and_tls_while_a_cluster_changes_over(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    endpoint = guarded.server.endpoint
    plain = endpoint.replace("https://", "http://")
    guarded.server._extra += (
        "--listen-client-urls",
        f"{endpoint},{plain}",
        "--peer-cert-allowed-cn",
        MEMBER,
    )
    await asyncio.to_thread(guarded.server.start)
    old = EtcdStore([plain], clock=CLOCK, request_timeout_s=60.0)
    new = guarded.store(names.BROKER_USER)
    try:
        await old.put("k", b"old")
        found = await new.get("k")
        assert found is not None
        assert found.value == b"old"
    finally:
        await old.close()
        await new.close()
        guarded.server.kill()
