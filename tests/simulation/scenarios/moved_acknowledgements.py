"""Acknowledgements on their way while their bundle moves: a story, and brokers with planted bugs
that it must notice.

Owns: `run(bug, seed)`: a client of ours consumes, and acknowledges without confirmation, while the
bundle moves again and again and nothing fails (`none`: the broker as it is); `run_grouped`: one
that groups acknowledgements. Imports: the stories'
stage, the judge of passed commands, the patched parts of the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from magnetar.broker.bundles import bundle
from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.commands.sessions import ConsumerSession
from magnetar.client.connection import Connection
from magnetar.client.messages import Message
from magnetar.metadata.records import BundleState
from tests.simulation.kernel.acknowledged import Passed, Subscribed
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import Position
from tests.simulation.scenarios.story import PATIENCE_S, TOPIC, Story
from tests.simulation.scenarios.tracer_clients import payload_of

Patch = pytest.MonkeyPatch
MOVES, BURST_MESSAGES = 8, 16
HANDLED_S = 0.02
"""Slower than messages come: a move does not wait until everything is acknowledged."""
GROUPED_S = 0.1
FLUSH_S = (0.02, 0.1)
"""What lies between freeze and transfer takes some time."""


def run(bug: str, seed: int) -> dict[str, int]:
    """The story under one seed, on a broker with this bug. Raises AssertionError."""
    with pytest.MonkeyPatch.context() as patch:
        BUGS[bug](patch)
        return acknowledged_while_the_bundle_moves(seed)


def run_grouped(wait_s: float | str, seed: int) -> dict[str, int]:
    """A client that keeps up, and groups its acknowledgements as Pulsar's do, gets nothing twice:
    a transfer waits `wait_s` for them. Raises AssertionError."""
    received: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch, Story(seed) as story:
        patch.setattr(bundle, "GROUPED_ACKNOWLEDGEMENTS_S", float(wait_s))
        cluster, stopping = story.cluster, asyncio.Event()
        consuming = cluster.script(_consume_in_groups(story, received))
        producing = cluster.script(_produce(story, stopping))
        cluster.set_faults(Faults.none().but(flush_s=FLUSH_S))
        story.until(lambda: len(received) > 0)
        _move_again_and_again(story, seed)
        stopping.set()
        cluster.set_faults(Faults.none())
        story.until(producing.done)
        cluster.run(1.0)
        consuming.cancel()
        cluster.run(0.1)
        twice = len(received) - len(set(received))
        assert not twice, f"{twice} of {len(received)} messages were delivered twice"
        return story.ends_well()


def _move_again_and_again(story: Story, seed: int) -> None:
    for _ in range(MOVES):
        epoch = story.record.epoch
        story.move(story.others(story.owner)[seed % 2])
        story.until(
            lambda: story.record.epoch > epoch and story.record.state is BundleState.OWNED  # noqa: B023
        )
        story.cluster.run(0.2 + story.environment.clock.uniform(0.0, 0.3))


def acknowledged_while_the_bundle_moves(seed: int) -> dict[str, int]:
    """What the client had acknowledged before it got CLOSE_CONSUMER does not come again;
    everything comes once at least."""
    with Story(seed) as story, watched() as passed:
        cluster, stopping = story.cluster, asyncio.Event()
        consuming, producing = (
            cluster.script(_consume(story)),
            cluster.script(_produce(story, stopping)),
        )
        cluster.set_faults(Faults.none().but(flush_s=FLUSH_S))
        story.until(lambda: passed.acknowledged() > 0)
        _move_again_and_again(story, seed)
        stopping.set()
        cluster.set_faults(Faults.none())
        story.until(producing.done)
        cluster.run(1.0)
        consuming.cancel()
        cluster.run(0.1)
        found = passed.repeated.get(Subscribed(TOPIC, "moved"), set())
        assert not found, (
            f"{len(found)} messages acknowledged before the move were delivered again: "
            f"{sorted(found)[:5]}"
        )
        assert passed.moves[Subscribed(TOPIC, "moved")] >= MOVES
        assert passed.acknowledged() > MOVES
        return story.ends_well()


@contextmanager
def watched() -> Iterator[Passed]:
    """All that clients of ours write and read."""
    passed, write, receive = Passed(), Connection.write, vars(Connection)["_receive"]

    def written(connection: Connection, frame: Any) -> None:
        passed.tap(connection, True, bytes(frame))
        write(connection, frame)

    def received(connection: Connection, start: int, body: int, end: int) -> None:
        buffer = vars(connection)["_buffer"]
        passed.tap(connection, False, bytes(buffer.view[start - 8 : end]))
        receive(connection, start, body, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "write", written)
        patch.setattr(Connection, "_receive", received)
        yield passed


async def _consume(story: Story) -> None:
    consumer = await story.client.subscribe(TOPIC, "moved", initial_position="Earliest")
    while True:
        message = await consumer.receive()
        await asyncio.sleep(HANDLED_S)
        consumer.acknowledge_nowait(message)


async def _consume_in_groups(story: Story, received: list[bytes]) -> None:
    consumer = await story.client.subscribe(TOPIC, "moved", initial_position="Earliest")
    group: list[Message[bytes]] = []

    async def acknowledge() -> None:
        while True:
            await asyncio.sleep(GROUPED_S)
            for message in group:
                consumer.acknowledge_nowait(message)
            group.clear()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(acknowledge())
        while True:
            message = await consumer.receive()
            received.append(bytes(message.data))
            group.append(message)


async def _produce(story: Story, stopping: asyncio.Event) -> None:
    producer = await story.client.create_producer(TOPIC, name="mover", send_timeout_s=PATIENCE_S)
    number = 0
    while not stopping.is_set():
        sends = []
        for _ in range(BURST_MESSAGES):
            send = story.history.send(TOPIC, "mover", number, payload_of("mover", number, 0))
            number += 1
            sends.append((send, producer.send_nowait(send.payload)))
        for send, future in sends:
            position = await future
            send.acknowledged(Position(position.ledger, position.entry, position.batch_index))


# --- planted bugs ---------------------------------------------------------------------------------


def consumers_leave_behind_release(patch: Patch) -> None:
    """Consumers are notified when the bundle has been transferred; what they acknowledge between
    the freeze and that is dropped."""

    async def nothing(_bundle: OwnedBundle, _successor: Any) -> None:
        return

    patch.setattr(OwnedBundle, "disconnect_consumers", nothing)


def late_acknowledgements_are_not_waited_for(patch: Patch) -> None:
    """The bundle is frozen as soon as CLOSE_CONSUMER is written, whatever is on its way."""
    patch.setattr(bundle, "LATE_ACKNOWLEDGEMENTS_S", 0.0)


def parted_consumers_are_ignored(patch: Patch) -> None:
    """A consumer that got CLOSE_CONSUMER is forgotten at once."""
    part = ConsumerSession.part

    def forget(session: ConsumerSession, successor: Any) -> None:
        part(session, successor)
        session.connection.sessions.forget_consumer(session)

    patch.setattr(ConsumerSession, "part", forget)


def cursors_are_not_written_at_the_freeze(patch: Patch) -> None:
    """What was acknowledged since the last write of a cursor stays in the memory of the former
    owner."""
    freeze = OwnedBundle.freeze

    def forgetful(owned: OwnedBundle, **how: Any) -> None:
        vars(owned.cursors)["_dirty"].clear()
        freeze(owned, **how)

    patch.setattr(OwnedBundle, "freeze", forgetful)


BUGS: dict[str, Callable[[Patch], None]] = {
    "none": lambda _patch: None,
    "consumers_leave_behind_release": consumers_leave_behind_release,
    "late_acknowledgements_are_not_waited_for": late_acknowledgements_are_not_waited_for,
    "parted_consumers_are_ignored": parted_consumers_are_ignored,
    "cursors_are_not_written_at_the_freeze": cursors_are_not_written_at_the_freeze,
}
