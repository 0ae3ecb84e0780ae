"""Scripted trouble as producers and subscriptions see it.

Owns: these stories. Imports: the stories' stage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any

from magnetar.client import Client, MessageId
from magnetar.errors import MagnetarError
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState, NamespaceRecord
from magnetar.metadata.store import Put
from magnetar.names import NamespaceName
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import Position, Send
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.story import BIG_BYTES, PATIENCE_S, TOPIC, Story
from tests.simulation.scenarios.tracer_clients import client_of, payload_of, until_done
from tests.simulation.scenarios.tracer_cluster import BROKERS

NAMESPACE = keys.namespace(NamespaceName("public", "default"))
SENDS_AT_ONCE = 5


# --- deduplication --------------------------------------------------------------------------------


def once_each_through_crash_move_takeover_and_power_loss(seed: int) -> dict[str, int]:
    """A producer repeats what has no receipt to owner after owner, and only what they remember
    keeps it from being there twice."""
    return _through_trouble(seed, {"deduplicationEnabled": True})


def duplicates_without_deduplication(seed: int) -> dict[str, int]:
    """The control: the same trouble without the policy."""
    return _through_trouble(seed, {})


def _through_trouble(seed: int, policies: dict[str, Any]) -> dict[str, int]:
    # Long steps of the disk: a broker that crashes has probably written something that no
    # client knows.
    faults = Faults.none().but(disk_step_s=(0.005, 0.03), latency_s=(0.001, 0.02))
    with Story(seed, faults) as story:
        cluster = story.cluster
        record = NamespaceRecord.decode(cluster.store.core.range(NAMESPACE, 0).items[0].value)
        change = Put(NAMESPACE, replace(record, policies={**record.policies, **policies}).encode())
        cluster.store.execute(lambda core, _now: core.transact((), (change,)))
        cluster.run(1.0)
        ended: list[bool] = []
        sending = cluster.script(_send_on(story, "steady", ended))
        for trouble in (cluster.crash, story.move, cluster.pause, story.move, cluster.crash):
            cluster.run(1.5)
            former = story.record.incarnation
            trouble(story.others(story.owner)[0] if trouble == story.move else story.owner)
            story.until(
                lambda gone=former: (
                    story.record.incarnation != gone and story.record.state is BundleState.OWNED
                )
            )  # type: ignore[misc]
            for paused in BROKERS:
                cluster.resume(paused)
        cluster.run(1.5)
        cluster.power_loss()
        story.until(lambda: story.record.state is BundleState.OWNED)
        cluster.run(1.5)
        ended.append(True)
        story.until(sending.done)
        return story.ends_well()


async def _send_on(story: Story, name: str, ended: list[bool]) -> None:
    """Numbered messages, some at a time, now and then big ones, until `ended`; every one of them
    gets its receipt in the end."""
    producer = await until_done(
        story.environment,
        lambda: story.client.create_producer(TOPIC, name=name, send_timeout_s=None, batching=None),
    )
    pending: deque[tuple[Send, asyncio.Future[MessageId]]] = deque()
    number = 0
    while pending or not ended:
        while len(pending) < SENDS_AT_ONCE and not ended:
            payload = payload_of(name, number, BIG_BYTES if number % 10 == 0 else 0)
            pending.append(
                (story.history.send(TOPIC, name, number, payload), producer.send_nowait(payload))
            )
            number += 1
        send, receipt = pending.popleft()
        position = await receipt
        known = position.entry < 0  # a duplicate's receipt names no position
        send.acknowledged(
            None if known else Position(position.ledger, position.entry, position.batch_index)
        )


# --- subscriptions --------------------------------------------------------------------------------


def seek_while_the_disk_is_slow(seed: int) -> dict[str, int]:
    """The consumer is back before the reset is durable: it must not get messages before it gets
    the answer, or it throws them away."""
    with Story(seed) as story:
        story.publish(10)

        async def seek_and_look() -> None:
            consumer = await story.client.subscribe(TOPIC, "seeking", initial_position="Earliest")
            seen = [await consumer.receive(timeout_s=5) for _ in range(10)]
            story.cluster.set_faults(Faults.none().but(flush_s=(1.0, 1.0)))
            await consumer.seek(seen[2].id)
            first = await consumer.receive(timeout_s=5)
            assert first.id == seen[2].id, f"after a seek to {seen[2].id} came {first.id}"
            story.cluster.set_faults(Faults.none())
            await consumer.close()

        story.cluster.complete(seek_and_look(), PATIENCE_S)
        return story.ends_well()


def created_for_one_and_lost_for_the_other(seed: int) -> dict[str, int]:
    """Two consumers create a subscription at once, and the power fails: what either of them got
    confirmed must still be there."""
    with Story(seed) as story:
        cluster = story.cluster
        confirmed: list[str] = []

        async def subscribe(environment: Environment) -> None:
            await client_of(environment).subscribe(
                TOPIC, "shared", type="Shared", initial_position="Latest"
            )
            confirmed.append(environment.name)
            await asyncio.Event().wait()

        cluster.set_faults(Faults.none().but(flush_s=(0.5, 0.5)))
        for name in ("first", "second"):
            cluster.node(name, subscribe, on_volume=False)
            cluster.run(0.1)
        story.until(lambda: bool(confirmed))
        cluster.power_loss()
        for name in ("first", "second"):
            cluster.crash(name)
        cluster.set_faults(Faults.none())
        story.publish(1)
        cluster.complete(
            _receive_one(client_of(cluster.outsider("third")), "shared", "Latest"), PATIENCE_S
        )
        return story.ends_well()


async def _receive_one(client: Client, subscription: str, initial_position: str) -> None:
    consumer = await client.subscribe(
        TOPIC, subscription, type="Shared", initial_position=initial_position
    )
    try:
        await consumer.receive(timeout_s=5)
    except TimeoutError:
        raise AssertionError(
            f"subscription {subscription!r} is not what was confirmed to its clients"
        ) from None
    await consumer.close()


def unsubscribed_while_the_bundle_leaves(seed: int) -> dict[str, int]:
    """RELEASE is on its way to the disk: what is written behind it is void, so no client may
    get a confirmation."""
    with Story(seed) as story:
        cluster = story.cluster

        async def unsubscribe() -> None:
            consumer = await story.client.subscribe(TOPIC, "gone", initial_position="Earliest")
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(timeout_s=5))
            cluster.set_faults(Faults.none().but(flush_s=(0.5, 0.5)))
            story.move(story.others(story.owner)[0])
            await asyncio.sleep(0.1)
            try:
                await consumer.unsubscribe()
            except MagnetarError:
                return
            await _receive_one(story.client, "gone", "Earliest")

        cluster.complete(unsubscribe(), PATIENCE_S)
        cluster.set_faults(Faults.none())
        return story.ends_well()
