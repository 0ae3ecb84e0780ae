"""Finding a topic's partitions, bundle and owner, and asking the owner to roll."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from magnetar.clock import SystemClock
from magnetar.errors import (
    InvalidRequest,
    MagnetarError,
    NamespaceNotFound,
    ServiceNotReady,
    StoreError,
    TopicNotFound,
)
from magnetar.hosting.http import HttpListener
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IncarnationRecord,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.names import TopicName, bundle_of, initial_boundaries
from magnetar.storage.volumes.posix import PosixVolume
from magnetar_jobs import cluster
from magnetar_jobs.cluster import bundle_of_topic, owner_of, partitions_of, roll_log

TOPIC = TopicName.parse("persistent://public/default/a b")


async def prepared() -> MemoryStore:
    store = MemoryStore(SystemClock())
    await store.put(
        keys.namespace(TOPIC.namespace_name), NamespaceRecord(initial_boundaries(4), {}).encode()
    )
    return store


async def test_a_partitioned_topic_stands_for_all_its_partitions() -> None:
    store = await prepared()
    await store.put(keys.partitioned_topic(TOPIC), PartitionedTopicRecord(0, {}).encode())
    assert await partitions_of(store, TOPIC) == [TOPIC]
    await store.put(keys.partitioned_topic(TOPIC), PartitionedTopicRecord(3, {}).encode())
    assert await partitions_of(store, TOPIC) == [TOPIC.with_partition(index) for index in range(3)]
    assert await partitions_of(store, TOPIC.with_partition(2)) == [TOPIC.with_partition(2)]


async def test_a_topic_that_does_not_exist_is_named() -> None:
    """Nor does a partition beyond the last one; a namespace that is missing is named as such."""

    store = await prepared()
    with pytest.raises(TopicNotFound, match="persistent://public/default/a b does not exist"):
        await partitions_of(store, TOPIC)
    await store.put(keys.partitioned_topic(TOPIC), PartitionedTopicRecord(3, {}).encode())
    with pytest.raises(TopicNotFound, match="a b-partition-3 does not exist"):
        await partitions_of(store, TOPIC.with_partition(3))
    with pytest.raises(NamespaceNotFound, match="namespace public/default of topic"):
        await partitions_of(MemoryStore(SystemClock()), TOPIC)


async def test_a_topic_that_stores_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not persistent"):
        await partitions_of(await prepared(), TopicName.parse("non-persistent://public/default/x"))


async def test_the_bundle_is_the_one_brokers_use() -> None:
    assert await bundle_of_topic(await prepared(), TOPIC) == bundle_of(
        TOPIC.namespace_name, initial_boundaries(4), TOPIC.hash
    )
    with pytest.raises(NamespaceNotFound, match="check --topic"):
        await bundle_of_topic(MemoryStore(SystemClock()), TOPIC)


async def test_only_a_live_owner_counts() -> None:
    store = await prepared()
    bundle = await bundle_of_topic(store, TOPIC)
    assert await owner_of(store, bundle) is None
    await store.put(
        keys.bundle(bundle), BundleRecord(BundleState.OWNED, 5, incarnation="one").encode()
    )
    assert await owner_of(store, bundle) is None
    record = IncarnationRecord("broker-0", "pulsar://h:6650", "http://h:8080", 1, "0.1.0")
    await store.put(keys.incarnation("one"), record.encode())
    assert await owner_of(store, bundle) == record


@pytest.mark.slow
async def test_roll_names_the_topic_in_the_path_and_returns_the_position() -> None:
    application = FastAPI()
    asked: list[str] = []

    @application.post("/admin/v2/persistent/{tenant}/{namespace}/{topic}/roll")
    async def roll(tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        asked.append(f"{tenant}/{namespace}/{topic}")
        return {"position": {"ledgerId": 7, "entryId": 41}}

    listener = HttpListener(application, "127.0.0.1", 0)
    port = await listener.open()
    try:
        assert await asyncio.to_thread(roll_log, f"http://127.0.0.1:{port}", TOPIC) == (7, 41)
        assert asked == ["public/default/a b"]
    finally:
        await listener.close()
    with pytest.raises(ServiceNotReady, match="--no-roll"):
        await asyncio.to_thread(roll_log, f"http://127.0.0.1:{port}", TOPIC)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, TopicNotFound),
        (401, InvalidRequest),
        (307, ServiceNotReady),
        (429, ServiceNotReady),
        (503, ServiceNotReady),
    ],
)
async def test_a_refusal_that_is_final_is_not_taken_for_one_that_passes(
    status: int, kind: type[MagnetarError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job asks again after the latter; of the former the first one is the answer."""
    monkeypatch.setattr(cluster, "ROLL_RETRY_S", 0.0)

    application = FastAPI()
    asked: list[int] = []

    @application.post("/admin/v2/persistent/{tenant}/{namespace}/{topic}/roll", status_code=status)
    async def roll(tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        asked.append(status)
        return {"reason": f"no {tenant}/{namespace}/{topic} here"}

    listener = HttpListener(application, "127.0.0.1", 0)
    port = await listener.open()
    try:
        store = await prepared()
        bundle = await bundle_of_topic(store, TOPIC)
        await store.put(
            keys.bundle(bundle), BundleRecord(BundleState.OWNED, 5, incarnation="one").encode()
        )
        owner = IncarnationRecord(
            "broker-0", "pulsar://h:6650", f"http://127.0.0.1:{port}", 1, "0.1.0"
        )
        await store.put(keys.incarnation("one"), owner.encode())
        with pytest.raises(kind, match="public/default/a b") as raised:
            await cluster.roll_owner(store, PosixVolume(tmp_path), TOPIC)
        assert type(raised.value) is kind
        assert len(asked) == (cluster.ROLL_ATTEMPTS_MAX if kind is ServiceNotReady else 1)
    finally:
        await listener.close()


async def test_a_roll_carries_the_token_of_a_file(tmp_path: Path) -> None:
    """As it is in the file at that moment; a file that is not there is named."""
    application = FastAPI()
    seen: list[str | None] = []

    @application.post("/admin/v2/persistent/{tenant}/{namespace}/{topic}/roll")
    async def roll(request: Request) -> dict[str, Any]:
        seen.append(request.headers.get("authorization"))
        return {"position": {"ledgerId": 7, "entryId": 9}}

    listener = HttpListener(application, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{await listener.open()}"
    token = tmp_path / "token"
    try:
        token.write_text("one\n")
        assert await asyncio.to_thread(roll_log, url, TOPIC, str(token)) == (7, 9)
        assert await asyncio.to_thread(roll_log, url, TOPIC) == (7, 9)
        with pytest.raises(StoreError, match="absent"):
            await asyncio.to_thread(roll_log, url, TOPIC, str(tmp_path / "absent"))
    finally:
        await listener.close()
    assert seen == ["Bearer one", None]
