"""A random course of acknowledgements in transactions on a real log: whenever the broker dies,
its successor knows what it knew."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.commands.seeking import reset
from magnetar.broker.incarnation import Broker
from magnetar.broker.transactions.subscription_transactions import SubscriptionTransactions
from magnetar.broker.upkeep.expiry import skip
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import EndAcks, PendingAck, PendingChange
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.frames import encode_command
from tests.support.acknowledging import Lives, host_of, play_lives
from tests.support.brokers import Peer, Type, open_peer
from tests.support.deliveries import SHARED, publish

STEPS = 70
COORDINATORS = 2
BATCH = 3


class Course:
    """One broker after the other, one consumer, a few transactions of two coordinators; every
    step is confirmed before the next."""

    def __init__(self, lives: Lives, seed: int) -> None:
        self.random, self.lives = random.Random(seed), lives
        self.cumulative = bool(seed % 2)
        self.broker: Broker
        self.peer: Peer
        self.coordinator: Peer
        self.stack = AsyncExitStack()
        self.next = [0] * COORDINATORS
        self.open: set[TxnId] = set()
        self.consumer = self.restarts = self.confirmed = self.refused = self.ended = 0
        self.steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (10, self.publish),
            (25, self.acknowledge_in_transaction),
            (10, self.acknowledge),
            (14, self.end),
            (3, self.seek),
            (2, self.trim),
            (2, self.skip),
            (1, self.unsubscribe),
            (5, self.checkpoint),
            (4, self.restart),
        ]

    async def run(self) -> None:
        await self.begin_life()
        try:
            weights = [weight for weight, _ in self.steps]
            for _ in range(STEPS):
                await self.random.choices(self.steps, weights)[0][1]()
            await self.restart()
        finally:
            await self.stack.aclose()

    # --- lives ------------------------------------------------------------------------------------

    async def begin_life(self) -> None:
        self.broker, self.peer = await self.stack.enter_async_context(self.lives.life())
        self.coordinator = await self.stack.enter_async_context(open_peer(self.broker))
        await self.peer.produce()
        await self.attach()

    async def attach(self) -> None:
        """Another consumer, if a seek has sent ours away, or a broker's end."""
        self.consumer += 1
        kind = api.CommandSubscribe.Exclusive if self.cumulative else SHARED
        body = api.CommandSubscribe(
            topic=(await self.name()),
            subscription="s",
            subType=kind,
            consumer_id=self.consumer,
            request_id=self.peer.next_request(),
        )
        body.initialPosition = api.CommandSubscribe.Earliest
        self.peer.write(encode_command(api.BaseCommand(type=Type.SUBSCRIBE, subscribe=body)))
        await self.next_of(self.peer, Type.SUCCESS)

    async def name(self) -> str:
        return str((await host_of(self.broker)).name)

    @staticmethod
    async def next_of(peer: Peer, kind: int) -> api.BaseCommand:
        """The next command of this type; what a broker sends unasked is passed over."""
        while (command := await peer.answer()).type != kind:
            assert command.type in (Type.CLOSE_CONSUMER, Type.PING), command
        return command

    async def known(self) -> dict[str, Any]:
        """What must not change with a restart."""
        host = await host_of(self.broker)
        state, ledgers = host.to_state(), host.core.ledgers
        entries = [ledgers.position(ordinal) for ordinal in range(ledgers.first, ledgers.end)]
        return {"entries": entries, "cursors": state.cursors, "transactions": state.transactions}

    async def restart(self) -> None:
        before = await self.known()
        await self.stack.aclose()
        self.restarts += 1
        self.stack = AsyncExitStack()
        self.broker, self.peer = await self.stack.enter_async_context(self.lives.life())
        self.coordinator = await self.stack.enter_async_context(open_peer(self.broker))
        assert await self.known() == before
        await self.peer.produce()
        await self.attach()

    async def checkpoint(self) -> None:
        await self.broker.ownership.checkpointer.checkpoint(
            str((await host_of(self.broker)).bundle.name)
        )

    # --- what clients do --------------------------------------------------------------------------

    async def publish(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            await publish(
                self.peer,
                **({"num_messages_in_batch": BATCH} if self.random.random() < 0.4 else {}),
            )

    async def some_id(self, *, partly: bool = True) -> api.MessageIdData | None:
        """An entry near those that are not acknowledged, or some messages of it."""
        host = await host_of(self.broker)
        ledgers, cursor = host.core.ledgers, host.subscriptions["s"].core.cursor
        low, high = (
            max(ledgers.first, cursor.mark_delete - 1),
            min(ledgers.end, cursor.mark_delete + 12),
        )
        if low >= high:
            return None
        found = ledgers.position(self.random.randrange(low, high))
        identifier = api.MessageIdData(ledgerId=found.ledger, entryId=found.entry)
        if partly and self.random.random() < 0.4:
            identifier.ack_set.append(self.random.randint(1, (1 << BATCH) - 2))
            identifier.batch_size = BATCH
        return identifier

    async def acknowledge_in_transaction(self) -> None:
        open_ones = sorted(self.open)
        if open_ones and self.random.random() < 0.6:
            txn = self.random.choice(open_ones)
        else:
            most = self.random.randrange(COORDINATORS)
            txn = TxnId(most, self.next[most])
            self.next[most] += 1
            self.open.add(txn)
        cumulative = self.cumulative and self.random.random() < 0.3
        named = [
            await self.some_id() for _ in range(1 if cumulative else self.random.randint(1, 3))
        ]
        identifiers = [found for found in named if found is not None]
        if identifiers:
            await self.ask_ack(identifiers, cumulative=cumulative, txn=txn)

    async def acknowledge(self) -> None:
        found = await self.some_id()
        if found is not None:
            await self.ask_ack(
                [found], cumulative=self.cumulative and self.random.random() < 0.2, txn=None
            )

    async def ask_ack(
        self, identifiers: list[api.MessageIdData], *, cumulative: bool, txn: TxnId | None
    ) -> None:
        self.peer.write(
            requests.ack(self.consumer, identifiers, cumulative=cumulative, request_id=9, txn=txn)
        )
        answer = (await self.next_of(self.peer, Type.ACK_RESPONSE)).ack_response
        assert int(answer.error) in (0, 23), answer
        self.refused += answer.HasField("error")
        self.confirmed += txn is not None and not answer.HasField("error")

    async def end(self) -> None:
        if not self.open:
            return
        txn = self.random.choice(sorted(self.open))
        self.open.discard(txn)
        lost = {
            other for other in self.open if other.most == txn.most and self.random.random() < 0.2
        }
        lowest = min(
            (other.least for other in {txn, *self.open} - lost if other.most == txn.most), default=0
        )
        self.open -= {other for other in lost if other.least < lowest}
        named = requests.end_txn_on_subscription(
            5,
            txn,
            await self.name(),
            "s",
            commit=self.random.random() < 0.6,
            low_watermark=lowest - 1,
        )
        self.coordinator.write(named)
        answer = (
            await self.next_of(self.coordinator, Type.END_TXN_ON_SUBSCRIPTION_RESPONSE)
        ).end_txn_on_subscription_response
        assert not answer.HasField("error"), answer
        self.ended += 1

    async def seek(self) -> None:
        found = await self.some_id(partly=False)
        host = (await host_of(self.broker)).subscriptions["s"]
        if found is not None:
            mask = self.random.choice([None, 0b101])
            await reset(
                host, max(0, host.core.cursor.mark_delete - self.random.randint(-3, 6)), mask
            )
            await self.attach()

    async def trim(self) -> None:
        host = await host_of(self.broker)
        await host.trim(
            min(host.core.ledgers.end, host.core.ledgers.first + self.random.randint(0, 4))
        )

    async def skip(self) -> None:
        await skip((await host_of(self.broker)).subscriptions["s"], self.random.randint(1, 3))

    async def unsubscribe(self) -> None:
        body = api.CommandUnsubscribe(
            consumer_id=self.consumer, request_id=self.peer.next_request()
        )
        self.peer.write(encode_command(api.BaseCommand(type=Type.UNSUBSCRIBE, unsubscribe=body)))
        await self.next_of(self.peer, Type.SUCCESS)
        self.open.clear()
        await self.attach()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_life_knows_what_the_one_before_knew(tmp_path: Path, seed: int) -> None:
    """Cursors, what is held and by whom, who has ended: with checkpoints anywhere, seeks,
    trimming and removals in between."""

    async def script(lives: Lives) -> None:
        course = Course(lives, seed)
        await course.run()
        assert course.restarts
        assert course.confirmed > 3, "the course must hold something, or it proves nothing"
        assert course.ended > 1

    play_lives(tmp_path, script)


def _unwritten_acks(change: PendingChange) -> PendingChange | None:
    return None if isinstance(change, PendingAck) else change


def _unwritten_ends(change: PendingChange) -> PendingChange | None:
    return None if isinstance(change, EndAcks) else change


def _commits_that_name_nothing(change: PendingChange) -> PendingChange | None:
    return replace(change, ranges=(), partial=()) if isinstance(change, EndAcks) else change


@pytest.mark.slow
@pytest.mark.parametrize("broken", [_unwritten_acks, _unwritten_ends, _commits_that_name_nothing])
def test_the_course_finds_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[PendingChange], PendingChange | None],
) -> None:
    """The control: with a broken record a later life differs from the one before, within a few
    seeds."""
    write = SubscriptionTransactions._write

    def write_wrongly(
        host: SubscriptionTransactions,
        change: PendingChange | None,
        confirmed: Callable[[], None] | None,
    ) -> None:
        write(host, None if change is None else broken(change), confirmed)

    monkeypatch.setattr(SubscriptionTransactions, "_write", write_wrongly)

    def courses() -> None:
        for seed in range(12):
            play_lives(tmp_path / str(seed), lambda lives, seed=seed: Course(lives, seed).run())  # type: ignore[misc]

    with pytest.raises(AssertionError):
        courses()
