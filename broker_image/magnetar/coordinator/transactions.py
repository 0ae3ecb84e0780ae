"""Transactions of one coordinator: what its core decides, done.

Owns: `Transactions`: requests in, records written, participants driven until they have answered,
time. Imports: the core, the log, participants. Invariants: nothing is answered or driven but behind
the records that it depends on; a decision is carried to every participant, again and again with a
back-off, also after a restart, and however many are to be notified, only so many in one turn of the
loop; after the log has failed nothing leaves any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import structlog

from magnetar.clock import Clock, back_off_s
from magnetar.coordinator.attempts import Attempts, Order
from magnetar.coordinator.metrics import ABORTED, COMMITTED, TIMED_OUT, CoordinatorMetrics
from magnetar.coordinator.participants import Participants
from magnetar.coordinator.transaction_log import TransactionLog
from magnetar.errors import (
    Fenced,
    StorageError,
    StoreError,
    TransactionCoordinatorNotFound,
)
from magnetar.hosting.settings import BrokerSettings
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import (
    Answer,
    Await,
    Caller,
    Drive,
    Effect,
    EndRequested,
    JoinRequested,
    NewRequested,
    ParticipantEnded,
    PatienceOver,
    Then,
    Ticked,
    Write,
)
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Change, Decided, Ended, Opened, Participant

log = structlog.get_logger(__name__)

DRIVEN_AT_ONCE_MAX, DRIVEN_PER_TURN_MAX = 1000, 8
"""Participants that are being notified, and those of which that begins in one turn of the loop: in
a standalone server each is work of this loop."""
RETRY_BASE_S, RETRY_LAST_S = 0.1, 5.0
TICK_LEAST_S = 0.05
"""What becomes due within it is done together."""
CHECKPOINT_RETRY_S = 1.0
OLD_S = 600.0
PARTICIPANTS_LOGGED = 5


def limits_of(settings: BrokerSettings) -> Limits:
    """The core's limits."""
    return Limits(
        open_max=settings.transactions_open_max,
        open_per_owner_max=settings.transactions_open_per_role_max,
        open_per_origin_max=settings.transactions_open_per_address_max,
        participants_max=settings.transaction_participants_max,
        timeout_max_ms=int(settings.transaction_timeout_max_s * 1000),
        outcome_kept_ms=int(settings.transaction_outcome_kept_s * 1000),
    )


class Transactions:
    """Runs from `begin`, which follows the log's recovery and the claim's word, to `stop`.
    `fail` ends this incarnation."""

    def __init__(
        self,
        core: CoordinatorCore,
        transaction_log: TransactionLog,
        participants: Participants,
        clock: Clock,
        settings: BrokerSettings,
        metrics: CoordinatorMetrics,
        fail: Callable[[str], None],
    ) -> None:
        self._core, self._log, self._clock = core, transaction_log, clock
        self._attempts = Attempts(core, participants, metrics)
        self._settings, self._metrics, self._fail = settings, metrics, fail
        self._first_ms, self._began = core.seen_ms or clock.wall_ms(), clock.monotonic()
        self._to_notify: deque[Iterator[Order]] = deque()
        self._being_notified = 0
        self._going_on = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._unanswered: set[asyncio.Future[int]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._checkpointing = self._stopped = False
        self._begun: dict[int, float] = {}
        self._decided: dict[int, tuple[str, float]] = {}
        self._reported_old = -1

    # --- life -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Carry on with what the incarnations before have decided; follow time and the claim."""
        self._perform(self._core.recovered(self.now_ms()))
        self._spawn(self._watch_claim(), "claim")
        self._spawn(self._tidy(), "tidy")

    async def stop(self) -> None:
        """Drive nothing more; callers that wait for an answer are referred to the next incarnation,
        which knows what was decided."""
        self._stopped = True
        for request in list(self._unanswered):
            if not request.done():
                request.set_exception(self._over())
                request.exception()  # the caller may have left
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def core(self) -> CoordinatorCore:
        """What is known; only to be looked at."""
        return self._core

    @property
    def live(self) -> int:
        """Transactions that have not ended everywhere."""
        return self._core.live

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for a flush."""
        return self._log.pending_bytes

    def when_at_most(self, pending_bytes: int, go_on: Callable[[], object]) -> None:
        """Call `go_on` once no more than so many bytes wait for a flush, or will ever be
        flushed."""
        self._log.when_at_most(pending_bytes, go_on)

    # --- requests ---------------------------------------------------------------------------------

    async def new(self, timeout_ms: int, principal: str, origin: str = "") -> TxnId:
        """A new transaction, durable. Raises LimitExceeded, InvalidRequest."""
        request = self._request()
        self._perform(
            self._core.handle(NewRequested(request, timeout_ms, principal, self.now_ms(), origin))
        )
        return TxnId(self._core.tcid, await request)

    async def join(self, least: int, participants: tuple[Participant, ...], caller: Caller) -> None:
        """Add participants, durably. Raises TransactionNotFound, InvalidTxnStatus,
        LimitExceeded, NotAllowed."""
        request = self._request()
        self._perform(self._core.handle(JoinRequested(request, least, participants, caller)))
        await request

    async def end(self, least: int, action: Action, caller: Caller) -> None:
        """Decide, durably, and wait a little for the participants. Raises TransactionNotFound,
        InvalidTxnStatus, NotAllowed."""
        request = self._request()
        self._perform(
            self._core.handle(EndRequested(request, least, action, caller, self.now_ms()))
        )
        await request

    def _request(self) -> asyncio.Future[int]:
        """Something to answer. Raises TransactionCoordinatorNotFound once this incarnation has ended:
        nothing is written any more."""
        if self._stopped:
            raise self._over()
        request: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unanswered.add(request)
        request.add_done_callback(self._unanswered.discard)
        return request

    def _over(self) -> TransactionCoordinatorNotFound:
        return TransactionCoordinatorNotFound(
            f"transaction coordinator {self._core.tcid} ends here; look it up again"
        )

    # --- effects ----------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect | Drive], *, overdue: bool = False) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._count(effect.changes, overdue)
            if not isinstance(effect, Write):
                self._happen(effect)
            elif effect.lazy:
                self._log.defer(effect.changes)
            else:
                self._log.append(effect.changes, _after(self._durable, effect.then))
        self._metrics.open_transactions.set(self._core.live)
        self._set_timer()
        if self._log.checkpoint_due and not self._checkpointing:
            self._checkpointing = True
            self._spawn(self._checkpoint(), "checkpoint")

    def _count(self, changes: tuple[Change, ...], overdue: bool) -> None:
        """Metrics of what is about to be written."""
        for change in changes:
            if isinstance(change, Opened):
                self._metrics.begun.inc()
                self._begun[change.least] = self._clock.monotonic()
            elif isinstance(change, Decided):
                commit = change.action is Action.COMMIT
                outcome = COMMITTED if commit else TIMED_OUT if overdue else ABORTED
                self._metrics.decided.labels(outcome).inc()
                self._decided[change.least] = outcome, self._clock.monotonic()
            elif isinstance(change, Ended):
                now = self._clock.monotonic()
                if (decided := self._decided.pop(change.least, None)) is not None:
                    self._metrics.settle_s.labels(decided[0]).observe(now - decided[1])
                if (begun := self._begun.pop(change.least, None)) is not None:
                    self._metrics.executed(now - begun)

    def _durable(self, then: tuple[Then, ...]) -> None:
        for effect in then:
            self._happen(effect)

    def _happen(self, effect: Then) -> None:
        if self._stopped:
            return
        if isinstance(effect, Answer):
            request = effect.request
            assert isinstance(request, asyncio.Future), "requests are made here"
            if request.done():
                return  # the caller has left
            if effect.error is not None:
                request.set_exception(effect.error)
            else:
                request.set_result(effect.least)
        elif isinstance(effect, Drive):
            self._drive(effect.least)
        else:
            patience_s = self._settings.transaction_end_patience_s
            asyncio.get_running_loop().call_later(patience_s, self._patience_over, effect)

    def _patience_over(self, waits: Await) -> None:
        if not self._stopped:
            self._perform(self._core.handle(PatienceOver(waits.request, waits.least)))

    # --- participants -----------------------------------------------------------------------------

    def _drive(self, least: int) -> None:
        """Have every participant carry the decision out, in turn with those of other
        transactions."""
        self._to_notify.append(self._orders(least))
        self._go_on()

    def _orders(self, least: int) -> Iterator[Order]:
        if (found := self._core.to_drive(least)) is not None:
            txn, (action, names) = TxnId(self._core.tcid, least), found
            for name in names:
                yield Order(txn, action, name)

    def _go_on(self) -> None:
        """Notify more participants in the next turn of the loop, if any are left and not too many
        are being notified."""
        if self._to_notify and not self._going_on and self._being_notified < DRIVEN_AT_ONCE_MAX:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._notify_more)

    def _notify_more(self) -> None:
        self._going_on = False
        if self._stopped:
            return
        begun = 0
        while self._to_notify and begun < min(
            DRIVEN_PER_TURN_MAX, DRIVEN_AT_ONCE_MAX - self._being_notified
        ):
            orders = self._to_notify.popleft()
            if (order := next(orders, None)) is not None:
                self._to_notify.append(orders)  # one of many participants delays no other
                self._spawn(self._carry_out(order), f"end of {order.txn}")
                begun += 1
        self._being_notified += begun
        self._go_on()

    async def _carry_out(self, order: Order) -> None:
        """One attempt, and another one after a while if it fails."""
        done = False
        try:
            with self._metrics.surprises.contained(
                "ends of transactions", txn=str(order.txn), topic=order.name.topic
            ):
                done = await self._attempts.make(order)
        finally:
            self._being_notified -= 1
        if done:
            self._perform(
                self._core.handle(ParticipantEnded(order.txn.least, order.name, self.now_ms()))
            )
        else:
            delay_s = back_off_s(self._clock, order.failures, RETRY_BASE_S, RETRY_LAST_S)
            asyncio.get_running_loop().call_later(delay_s, self._notify_again, order)
        self._go_on()

    def _notify_again(self, order: Order) -> None:
        self._to_notify.append(iter((order,)))
        self._go_on()

    # --- time -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The time that the core goes by: where the records of the incarnations before end, and what
        has passed since this one began."""
        return self._first_ms + int((self._clock.monotonic() - self._began) * 1000)

    def wall_ms(self) -> int:
        """The wall's time, for people: nothing is decided by it."""
        return self._clock.wall_ms()

    def _set_timer(self) -> None:
        due_ms = self._core.due_ms
        if (
            due_ms is None
            or self._stopped
            or (self._timer is not None and self._timer_due_ms <= due_ms)
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_s = max(TICK_LEAST_S, (due_ms - self.now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._stopped:
            with self._metrics.surprises.contained("coordinator timer"):
                self._perform(self._core.handle(Ticked(self.now_ms())), overdue=True)
            self._set_timer()

    # --- the log ----------------------------------------------------------------------------------

    async def _watch_claim(self) -> None:
        """An incarnation that has nothing to write learns that it was fenced."""
        while True:
            with self._metrics.surprises.contained("coordinator claim"):
                self._look_at_oldest()
            await asyncio.sleep(self._settings.claim_check_s)
            await self._log.check_claim()

    def _look_at_oldest(self) -> None:
        """Tell its age, and once, in the log, whose it is when it is old: names are no labels of
        metrics."""
        oldest = next(self._core.living(), None)
        age_s = max(0, self.now_ms() - oldest.opened_ms) / 1000 if oldest is not None else 0.0
        self._metrics.oldest_transaction_s.set(age_s)
        if oldest is not None and age_s >= OLD_S and oldest.least > self._reported_old:
            self._reported_old = oldest.least
            log.warning(
                "transaction.old",
                txn=str(TxnId(self._core.tcid, oldest.least)),
                status=self._core.status(oldest.least),
                owner=oldest.owner,
                age_s=int(age_s),
                participants=[name.topic for name in oldest.participants[:PARTICIPANTS_LOGGED]],
            )

    async def _tidy(self) -> None:
        """What the incarnations before have left is not needed any more."""
        with self._metrics.surprises.contained("coordinator files", StorageError):
            await self._log.tidy()

    async def _checkpoint(self) -> None:
        while True:
            try:
                await self._log.checkpoint(self._core)
                break
            except Fenced:
                raise
            except (
                StorageError,
                StoreError,
            ) as error:  # the log has everything: only a recovery would take longer
                log.warning(
                    "coordinator.checkpoint_delayed", tcid=self._core.tcid, error=str(error)
                )
                await asyncio.sleep(CHECKPOINT_RETRY_S)
            except Exception as error:
                self._metrics.surprises.note("coordinator checkpoint", error)
                await asyncio.sleep(CHECKPOINT_RETRY_S)
        self._checkpointing = False

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None and not self._stopped:
            self._fail(f"{task.get_name()}: {task.exception()!r}")


def _after(
    call: Callable[[tuple[Then, ...]], None], then: tuple[Then, ...]
) -> Callable[[], None] | None:
    return (lambda: call(then)) if then else None
