"""A lease that a busy event loop does not lose, and a stuck one does.

Owns: `ThreadedLeaseKeeper`. Imports: asyncio, concurrent.futures, threading, clock,
metadata.leases, metadata.store. A broker whose loop is busy for a second is alive and must keep its
lease; one whose loop is stuck serves no client and must lose it. So the lease is renewed on a
thread with its own event loop and store connection, but only while the main loop makes progress.
Invariants: as `LeaseKeeper`; `on_lost` runs on the main loop; no renewal is sent once the main loop
has stood still for `stall_max_s`. An embedded store continues one loop: its holders use
`LeaseKeeper`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVarTuple

from magnetar.clock import Clock
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.store import MetadataStore

HEARTBEATS_PER_STALL = 4
Ts = TypeVarTuple("Ts")


class _LeaseLoop(asyncio.SelectorEventLoop):
    """The thread's event loop, which may be reported to after its end.

    gRPC learns of cancelled calls and closed channels in a thread of its own, at any time later,
    and any loop of the process may be the one that passes it on: an error there would be that
    loop's, with a traceback, and whatever else gRPC had to pass on would wait. No task is left that
    waits for such a report.
    """

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            handle = asyncio.Handle(callback, args, self, context)
            handle.cancel()
            return handle


class ThreadedLeaseKeeper:
    """`LeaseKeeper` on a thread of its own; same methods.

    `connect` is called on that thread's event loop and makes the store to use, which is closed at
    the end. `stall_max_s` is the lease's time unless given: a stuck process is then gone after two
    lease times.
    """

    def __init__(
        self,
        connect: Callable[[], MetadataStore],
        clock: Clock,
        ttl_s: float,
        on_lost: Callable[[str], None],
        stall_max_s: float | None = None,
    ) -> None:
        stall_max_s = ttl_s if stall_max_s is None else stall_max_s
        assert stall_max_s > 0, stall_max_s
        self._connect = connect
        self._clock = clock
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._stall_max_s = stall_max_s
        self._keeper: LeaseKeeper | None = None
        self._stopping = False
        # Written by the main loop, read by the thread: single attributes, so each read is whole.
        self._progress_at = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._stopped: concurrent.futures.Future[None] = concurrent.futures.Future()

    @property
    def lease(self) -> int:
        """The lease's id; 0 before `start`."""
        return self._keeper.lease if self._keeper else 0

    def valid(self) -> bool:
        """Whether the store must still hold the lease."""
        return not self._stopping and self._keeper is not None and self._keeper.valid()

    async def start(self) -> int:
        """Grant the lease and begin to renew it; returns its id. Raises what `connect` raises,
        or StoreUnavailable."""
        assert self._thread is None, "a keeper keeps one lease; make another keeper"
        self._main_loop = asyncio.get_running_loop()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()
        try:
            return await asyncio.wrap_future(self._started)
        except BaseException:
            # The thread ends by itself: it has failed, or finds `_stopping` once its lease is
            # granted.
            self._silence()
            self._thread = None
            raise

    async def stop(self, revoke: bool) -> None:
        """Stop renewing, and end the lease in the store at once if `revoke`; returns when the
        thread has ended.

        May be called again, also after a call that was cancelled; the first call's `revoke` counts.
        """
        thread = self._thread
        if thread is None:
            return
        if not self._stopping:
            self._silence()
            self._thread_loop.call_soon_threadsafe(self._stop_requested.set_result, revoke)
        # Shielded: a cancelled caller must not cancel what the thread reports to, and later callers
        # wait for.
        await asyncio.shield(asyncio.wrap_future(self._stopped))
        thread.join()
        self._thread = None

    def _silence(self) -> None:
        self._stopping = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    # --- on the main loop -------------------------------------------------------------------------

    def _beat(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._heartbeat = self._main_loop.call_later(
            self._stall_max_s / HEARTBEATS_PER_STALL, self._beat
        )

    def _deliver(self, reason: str) -> None:
        if not self._stopping:
            self._on_lost(reason)

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_LeaseLoop) as runner:
                runner.run(self._keep())
        except BaseException as error:
            # The caller of `start` or `stop` waits for this thread: it must see what ended it.
            waiting = self._stopped if self._started.done() else self._started
            waiting.set_exception(error)
        else:
            self._stopped.set_result(None)

    async def _keep(self) -> None:
        self._thread_loop = asyncio.get_running_loop()
        self._stop_requested: asyncio.Future[bool] = self._thread_loop.create_future()
        store = self._connect()
        try:
            keeper = LeaseKeeper(store, self._clock, self._ttl_s, self._lost, self._progressing)
            lease = await keeper.start()
            if self._stopping:
                await keeper.stop(revoke=True)
                return
            self._keeper = keeper
            self._started.set_result(lease)
            await keeper.stop(revoke=await self._stop_requested)
        finally:
            await store.close()

    def _progressing(self) -> bool:
        return self._clock.monotonic() - self._progress_at < self._stall_max_s

    def _lost(self, reason: str) -> None:
        if not self._main_loop.is_closed():
            self._main_loop.call_soon_threadsafe(self._deliver, reason)
