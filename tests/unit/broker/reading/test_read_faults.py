"""Reads that fail for a while, on a real broker: an I/O error, or a file that is missing until
it is brought back.

What needs the file is reported as damage and tried again, everything else is served, and nothing is
lost, skipped or given up concurrently.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.broker.bundles.recovery import bundle_recovery as recovery
from magnetar.broker.bundles.recovery import retries as recovery_retries
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import delivery_failures
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep import manifest_compaction as tidying
from magnetar.errors import CorruptData
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import LogPosition, LogRange
from magnetar.names import TopicName
from magnetar.storage.log.fencing import SealedFile
from magnetar.storage.manifest import Manifest, load_manifest
from magnetar.storage.names import claim, index, logs_of, sealed
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    SETTINGS,
    TOPIC,
    Node,
    Peer,
    Type,
    command_frame,
    open_peer,
    volume_in,
)
from tests.support.faulty_volume import FaultyVolume, VolumeFaults

COUNT = 30
QUICK: dict[str, Any] = {
    "checkpoint_age_s": 0.05,
    "rewrite_age_s": 0.0,
    "replaced_kept_s": 0.0,
    "maintenance_s": 3600.0,
    "read_batch_entries_max": 7,
    "park_timeout_s": 1.0,
    "recovery_retry_max_s": 0.1,
}
KINDS = ("error", "missing", "three reads")
LASTING = KINDS[:2]
PLACES = ("open file", "sealed file", "segment")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(delivery_failures, "READ_RETRY_S", 0.01)
    monkeypatch.setattr(delivery_failures, "READ_RETRY_MAX_S", 0.05)
    monkeypatch.setattr(recovery_retries, "RETRY_S", 0.01)


def is_data(name: str) -> bool:
    """Log files and segments, what entries are read from."""
    return name.endswith(".log") or name.startswith("segments/")


def strike(volume: FaultyVolume, kind: str, names: Callable[[str], bool] = is_data) -> None:
    """Reads of these files fail from the next one on; or the files are missing."""
    if kind == "missing":
        volume.missing = names
        return
    turn = itertools.chain([True] * 3, itertools.repeat(kind == "error"))
    volume.faults, volume.worn = (
        VolumeFaults(read_error=1.0),
        lambda name: names(name) and next(turn),
    )


def heal(volume: FaultyVolume) -> None:
    volume.faults, volume.missing = VolumeFaults(), lambda _name: False


@asynccontextmanager
async def bad_disk(directory: Path) -> AsyncIterator[FaultyVolume]:
    async with volume_in(directory) as inner:
        yield FaultyVolume(inner, CLOCK)


@asynccontextmanager
async def broker_on(
    volume: FaultyVolume, store: MemoryStore, name: str = "broker-0"
) -> AsyncIterator[Broker]:
    broker = await Node(store, volume, name, replace(SETTINGS, **QUICK)).start()
    try:
        yield broker
    finally:
        await broker.close()


async def until(what: str, reached: Callable[[], bool]) -> None:
    """Poll what has no event."""
    try:
        async with asyncio.timeout(120):
            while not reached():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what}: not within 120 s") from None


def host_of(broker: Broker) -> TopicHost:
    return next(
        owned.topics[TOPIC] for owned in broker.ownership.owned.values() if TOPIC in owned.topics
    )


def forget(host: TopicHost) -> None:
    """Nothing of the topic is in memory any more."""
    for run in host.index.runs:
        if run.payload is not None:
            host.bundle.tail_cache.release(run)


async def manifest_of(broker: Broker) -> Manifest:
    bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
    return (await load_manifest(broker.context.store, broker.context.volume, bundle))[0]


async def publish(peer: Peer, first: int, count: int) -> list[tuple[int, int]]:
    """Messages with their numbers; the ids they were given."""
    return [await peer.send(b"%d" % number, number) for number in range(first, first + count)]


async def receive(peer: Peer, count: int) -> list[tuple[int, int]]:
    """The ids of the next messages, in the order in which they came."""
    found = [(await peer.message())[0].message_id for _ in range(count)]
    return [(one.ledgerId, one.entryId) for one in found]


async def stored(host: TopicHost) -> list[bytes]:
    """The payload of every entry that the topic has."""
    found: list[bytes] = []
    while len(found) < host.core.ledgers.end:
        entries, _ = await host.reader.read(ReadRequest(len(found), 7))
        found += [
            bytes(entry)[-len(b"%d" % (len(found) + number)) :]
            for number, entry in enumerate(entries)
        ]
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- delivery -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_deliveries_wait_for_the_file(tmp_path: Path, place: str, kind: str) -> None:
    """A reader gets every entry once and in order, however often reads fail. Producers are
    served concurrently."""

    store = MemoryStore(CLOCK)
    async with (
        bad_disk(tmp_path) as volume,
        broker_on(volume, store) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        sent = await publish(peer, 0, COUNT)
        if place != "open file":
            await broker.service.roll(TopicName.parse(TOPIC))
        if place == "segment":
            await broker.maintenance.round()
            await broker.maintenance.round()
            assert (await manifest_of(broker)).level0 == ()
        host, damage = host_of(broker), broker.context.damage
        forget(host)
        strike(volume, kind)
        await peer.subscribe()
        peer.write(requests.flow(1, 1000))
        if kind in LASTING:
            await until("two reads have failed", lambda: damage.met >= 2)
            [found] = damage.listed()
            assert (found["what"], found["topic"], found["bundle"]) == (
                "read",
                TOPIC,
                str(host.bundle.name),
            )
            assert ("missing" if kind == "missing" else "Input/output error") in found["error"], (
                found
            )
            assert b"\nmagnetar_storage_damage 1.0\n" in broker.metrics.exposition()
            sent += await publish(peer, COUNT, 1)  # nothing has come before its receipt
            heal(volume)
        assert await receive(peer, len(sent)) == sent
        await until("the damage is over", lambda: not damage.listed())
        assert damage.met > 0
        assert b"\nmagnetar_storage_damage 0.0\n" in broker.metrics.exposition()
        assert await peer.is_quiet()
    await store.close()


# --- rewriting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_rewriting_waits_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A round that cannot read commits nothing and leaves nothing behind; that is reported, and a
    later one rewrites everything.

    A read that failed may do better in the next round. A file that is missing is damage, and left
    alone for a while.
    """
    monkeypatch.setattr(tidying, "DAMAGED_RETRY_S", 0.0)

    store = MemoryStore(CLOCK)
    async with (
        bad_disk(tmp_path) as volume,
        broker_on(volume, store) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        await publish(peer, 0, COUNT)
        await broker.service.roll(TopicName.parse(TOPIC))
        before, host = await manifest_of(broker), host_of(broker)
        assert len(before.level0) == 1
        strike(volume, kind)
        with capture_logs() as logged:
            await broker.maintenance.round()
        said = [found for found in logged if found.get("about") == (str(host.bundle.name),)]
        if kind == "missing":
            [found] = broker.context.damage.listed()
            assert (said, found["what"], found["bundle"]) == (
                [],
                "rewriting",
                str(host.bundle.name),
            )
            assert ".log is missing" in found["error"]
        else:
            assert [(found["event"], found["what"]) for found in said] == [
                ("maintenance.delayed", "tidying")
            ]
            assert "Input/output error" in said[0]["error"], said
        assert await manifest_of(broker) == before
        assert (await store.range(keys.INTENTS)).items == ()
        assert await volume.inner.list("segments") == []
        heal(volume)
        await broker.maintenance.round()
        manifest = await manifest_of(broker)
        assert manifest.level0 == ()
        assert sum(segment.entries for segment in manifest.topic(TOPIC).level1) == COUNT
        forget(host)
        host.index.drop_before(host.core.ledgers.end)
        assert await stored(host) == numbers(COUNT)
        assert broker.context.damage.listed() == []
    await store.close()


# --- recovery -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "kind"),
    [("first", "missing"), *itertools.product(("first", "last", "all"), ("error", "three reads"))],
)
async def test_recovery_waits_for_the_file(tmp_path: Path, which: str, kind: str) -> None:
    """A new owner that cannot read what a dead broker left serves nothing of the bundle, says why,
    tries again, and then has every entry.

    A last file of a log that is gone altogether goes unnoticed if its owner had not noted it:
    nothing else shows how far a log reaches.
    """

    store = MemoryStore(CLOCK)
    async with bad_disk(tmp_path) as volume:
        async with broker_on(volume, store) as dead, open_peer(dead) as peer:
            await peer.lookup()
            await peer.produce()
            sent = await publish(peer, 0, COUNT)
            await dead.context.log.roll("test")
            sent += await publish(peer, COUNT, COUNT)
            # it dies without handing anything over
            await volume.remove(claim(dead.incarnation))
        files = sorted(
            name for name in await volume.list(logs_of(dead.incarnation)) if name.endswith(".log")
        )
        assert len(files) == 2
        for made in (sealed(dead.incarnation, 1), index(dead.incarnation, 1)):
            # that came of closing it; who is killed leaves none
            assert await volume.remove(made)
        hurt = {"first": files[:1], "last": files[1:], "all": files}[which]
        strike(volume, kind, lambda name: name in hurt)
        async with broker_on(volume, store, "broker-1") as new_owner, open_peer(new_owner) as peer:
            damage = new_owner.context.damage
            if kind in LASTING:
                peer.write(command_frame("lookup", request_id=1, topic=TOPIC))
                await until("two attempts have failed", lambda: damage.met >= 2)
                [found] = damage.listed()
                bundle = await new_owner.ownership.bundle_of(TopicName.parse(TOPIC))
                assert (found["what"], found["bundle"]) == ("recovery", str(bundle))
                assert "missing" in found["error"] or "Input/output error" in found["error"], found
                assert b"\nmagnetar_storage_damage 1.0\n" in new_owner.metrics.exposition()
                assert str(bundle) not in new_owner.ownership.owned
                heal(volume)
                await peer.answer(Type.LOOKUP_RESPONSE)
            await until(
                "the bundle is served",
                lambda: any(TOPIC in owned.topics for owned in new_owner.ownership.owned.values()),
            )
            heal(volume)
            assert damage.listed() == []
            host = host_of(new_owner)
            assert await stored(host) == numbers(2 * COUNT)
            assert [
                tuple(host.core.ledgers.position(ordinal)) for ordinal in range(2 * COUNT)
            ] == sent
    await store.close()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_end_of_a_log_is_noticed(tmp_path: Path, lost: int) -> None:
    """Its owner has noted a file, and died; that one and what was begun behind it are missing,
    or the latter alone: too short a log is not whole."""

    store = MemoryStore(CLOCK)
    async with bad_disk(tmp_path) as volume:
        async with broker_on(volume, store) as dead, open_peer(dead) as peer:
            await peer.lookup()
            await peer.produce()
            await publish(peer, 0, COUNT)
            await dead.service.roll(TopicName.parse(TOPIC))
            await publish(peer, COUNT, COUNT)
            await dead.service.roll(TopicName.parse(TOPIC))
            noted = [item.key for item in (await store.range(keys.logs_of(dead.incarnation))).items]
            assert len(noted) == 2
            await publish(peer, 2 * COUNT, 1)
            await volume.remove(claim(dead.incarnation))
        # which a broker that dies does not write any more
        await store.delete(keys.log_file(dead.incarnation, 2))
        files = sorted(
            name for name in await volume.list(logs_of(dead.incarnation)) if name.endswith(".log")
        )
        assert len(files) == 3
        strike(volume, "missing", lambda name: name in files[lost:])
        async with broker_on(volume, store, "broker-1") as new_owner, open_peer(new_owner) as peer:
            peer.write(command_frame("lookup", request_id=1, topic=TOPIC))
            await until("an attempt has failed", lambda: new_owner.context.damage.met >= 1)
            [found] = new_owner.context.damage.listed()
            assert f"{files[lost]} is missing" in found["error"]
            heal(volume)
            await peer.answer(Type.LOOKUP_RESPONSE)
            await until(
                "the bundle is served",
                lambda: any(TOPIC in owned.topics for owned in new_owner.ownership.owned.values()),
            )
            assert await stored(host_of(new_owner)) == numbers(2 * COUNT + 1)
    await store.close()


@pytest.mark.parametrize(
    ("start", "noted", "said"),
    [
        (LogPosition(1, 4096), {0: 9_000, 1: 8_000}, None),
        (LogPosition(1, 4096), {0: 9_000, 1: 8_001}, "00000001.log has 8000 bytes of 8001"),
        (LogPosition(1, 4096), {3: 5_000}, "00000003.log is missing"),
        (LogPosition(1, 8_000), {}, None),
        (LogPosition(1, 8_001), {}, "00000001.log has 8000 bytes of 8001"),
        (LogPosition(3, 4097), {}, "00000003.log is missing"),
        (LogPosition(3, 4096), {0: 9_999, 1: 9_999}, None),
    ],
)
def test_what_is_known_of_a_log_is_looked_for(
    start: LogPosition, noted: dict[int, int], said: str | None
) -> None:
    """Files noted as sealed and what was durable when the term began, whole; not what lies
    before the term, nor a file that was only begun."""
    span, found = LogRange("b.1", start, None), [SealedFile(1, 8_000), SealedFile(2, 4_096)]
    if said is None:
        recovery._check_whole(span, found, noted)
        return
    with pytest.raises(CorruptData, match=said):
        recovery._check_whole(span, found, noted)
