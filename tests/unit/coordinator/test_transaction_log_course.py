"""Any course of lives over one log on real storage: kills, planned ends, lives that die before
their word, former ones that go on, checkpoints.

Each course comes from one seed, which a failure names. What was answered is compared with what
every later life knows.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.errors import Fenced
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.storage import names
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.events import (
    Answer,
    Caller,
    EndRequested,
    JoinRequested,
    NewRequested,
    ParticipantEnded,
)
from magnetar.transactions.records import Action, Participant
from tests.support.brokers import CLOCK, volume_in
from tests.support.coordinators import Life, begin_life, held

STEPS = 150
NAMES = tuple(
    Participant(f"persistent://public/default/{'t' * 200}{number}") for number in range(4)
)
STATUSES = {Action.COMMIT: ("COMMITTING", "COMMITTED"), Action.ABORT: ("ABORTING", "ABORTED")}


class Course:
    """`open` and `ended` are what clients know; `former` are incarnations that were taken over and
    do not know it."""

    def __init__(self, seed: int, store: MemoryStore, volume: Volume) -> None:
        self.random, self.store, self.volume = random.Random(seed), store, volume
        self.open: dict[int, set[Participant]] = {}
        self.ended: dict[int, Action] = {}
        self.former: list[Life] = []
        self.made: list[Life] = []
        self.lives = 0
        self.requests = 0

    async def run(self) -> None:
        self.life = await self.next_incarnation()
        steps: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.begin, 30),
            (self.join, 25),
            (self.end, 25),
            (self.carry_out, 20),
            (self.checkpoint, 5),
            (self.kill, 3),
            (self.stop, 2),
            (self.wake_former, 3),
        ]
        actions, weights = zip(*steps, strict=True)
        for action in self.random.choices(actions, weights, k=STEPS):
            await action()
        await self.kill()
        for life in self.made:
            await life.log.close()

    # --- requests ---------------------------------------------------------------------------------

    async def answer(
        self, life: Life, event_of: Callable[[str], NewRequested | JoinRequested | EndRequested]
    ) -> Answer | None:
        """Handle a request, behind its flush; None while nothing was answered."""
        self.requests += 1
        request = f"r{self.requests}"
        life.handle(event_of(request))
        await life.settled()
        return next((found for found in life.answers if found.request == request), None)

    async def begin(self) -> None:
        found = await self.answer(
            self.life, lambda request: NewRequested(request, 600_000, "", CLOCK.wall_ms())
        )
        assert found is not None
        assert found.least > max([*self.open, *self.ended], default=-1), (
            "a sequence was given twice"
        )
        self.open[found.least] = set()

    async def join(self) -> None:
        if not self.open:
            return
        least, name = self.random.choice(list(self.open)), self.random.choice(NAMES)
        found = await self.answer(
            self.life, lambda request: JoinRequested(request, least, (name,), Caller())
        )
        assert found is not None
        assert found.error is None
        self.open[least].add(name)

    async def end(self) -> None:
        if not self.open:
            return
        least, action = self.random.choice(list(self.open)), self.random.choice(list(Action))
        await self.answer(
            self.life,
            lambda request: EndRequested(request, least, action, Caller(), CLOCK.wall_ms()),
        )
        del self.open[least]  # durable: the client learns of it after its patience at the latest
        self.ended[least] = action

    async def carry_out(self) -> None:
        """A participant of something that was decided answers."""
        for least in self.ended:
            found = self.life.core.to_drive(least)
            if found is not None:
                self.life.handle(
                    ParticipantEnded(least, self.random.choice(found[1]), CLOCK.wall_ms())
                )
                return

    # --- lives ------------------------------------------------------------------------------------

    async def next_incarnation(self) -> Life:
        """An incarnation that answers; perhaps after some that died on the way to it."""
        while self.random.random() < 0.2:
            self.lives += 1
            if self.random.random() < 0.5:
                _, lease = await held(self.store, f"x{self.lives}")
            else:
                self.made.append(
                    await begin_life(self.store, self.volume, f"x{self.lives}", settle=False)
                )
                lease = self.made[-1].lease
            await self.store.revoke_lease(lease)
        self.lives += 1
        life = await begin_life(self.store, self.volume, f"n{self.lives}")
        self.made.append(life)
        for least, joined in self.open.items():
            assert life.core.status(least) == "OPEN"
            found = next(live for live in life.core.state().live if live.least == least)
            assert joined == set(found.participants)
        for least, action in self.ended.items():
            assert life.core.status(least) in STATUSES[action]
        return life

    async def checkpoint(self) -> None:
        await self.life.log.checkpoint(self.life.core)
        assert len(await self.volume.list(names.coordinator_checkpoints(0))) == 1

    async def kill(self) -> None:
        """Its lease ends; the process may go on without knowing."""
        await self.store.revoke_lease(self.life.lease)
        self.former.append(self.life)
        self.life = await self.next_incarnation()

    async def stop(self) -> None:
        await self.life.log.close()
        await self.life.claim.release(self.life.core.live)
        await self.store.revoke_lease(self.life.lease)
        self.life = await self.next_incarnation()

    async def wake_former(self) -> None:
        """A former incarnation begins a transaction, or writes a checkpoint: neither has any
        effect."""
        if not self.former:
            return
        life = self.former.pop()
        if self.random.random() < 0.5:
            assert (
                await self.answer(life, lambda request: NewRequested(request, 600_000, "", 0))
                is None
            )
        else:
            with pytest.raises(Fenced):
                await life.log.checkpoint(life.core)


@pytest.mark.parametrize("seed", range(6))
async def test_no_course_of_lives_loses_a_word(tmp_path: Path, seed: int) -> None:
    """Sequences are new, open transactions keep their participants, decisions stay."""

    async with volume_in(tmp_path) as volume:
        await Course(seed, MemoryStore(CLOCK), volume).run()
