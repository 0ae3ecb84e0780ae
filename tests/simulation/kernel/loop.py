"""An event loop whose time and order come from a seed.

Owns: virtual time, the order of steps, the trace. Imports: asyncio, random (seeded), gc. Every
callback belongs to the node in whose context it was scheduled. Within one node the order is
asyncio's own (first in, first out); which of several nodes with ready callbacks goes next is drawn
from the seed. Time stands still while anything is ready and then jumps to the next timer. There is
no input or output, no thread and no wall clock: what would need one is refused with
`SimulationError`.

Invariants: the same seed and the same code give the same sequence of steps, hence the same
`trace_hash` (code under test must not depend on the iteration order of sets of strings; across
processes, fix PYTHONHASHSEED); nothing of a dead or paused node runs; garbage is collected at fixed
step numbers only, so that finalizers run at reproducible moments.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from tests.simulation.kernel.node import NODE, Node

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 200_000_000
LOOK_EVERY_STEPS = 100_000
"""How often the loop looks whether time passes; between two looks it has to."""
COLLECT_EVERY_STEPS = 500_000
RING_EVENTS_MAX = 400
CANCELLED_TIMERS_SWEPT_FROM = 2_000


class SimulationError(Exception):
    """The simulated code did what the simulation cannot allow, or the run cannot go on."""


class Deadlock(SimulationError):
    """Something is awaited, but nothing is ready and no timer is set."""


class Runaway(SimulationError):
    """Too many steps in all, or at one instant: a loop that never lets time pass."""


class UnhandledError(SimulationError):
    """A callback or task of a live node failed and nobody took the exception."""


class Step(asyncio.TimerHandle):
    """A scheduled callback of one node; None once it was cancelled. Replaces the fields of
    asyncio's handle, of which it keeps only the interface."""

    __slots__ = ("args", "callback", "node", "run_context")

    def __init__(
        self,
        node: Node,
        callback: Callable[..., object] | None,
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self.node = node
        self.callback = callback
        self.args = args
        self.run_context = context

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def __repr__(self) -> str:
        return f"<Step {self.node.name} {getattr(self.callback, '__qualname__', self.callback)!s}>"


class Timer(Step):
    """A step at the virtual time `deadline`."""

    __slots__ = ("deadline", "home")

    def __init__(
        self,
        node: Node,
        callback: Callable[..., object] | None,
        args: tuple[Any, ...],
        context: contextvars.Context,
        deadline: float,
        home: SimLoop,
    ) -> None:
        self.node = node
        self.callback = callback
        self.args = args
        self.run_context = context
        self.deadline = deadline
        self.home = home

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback, self.args = None, ()
            self.home.timer_cancelled(self.deadline)

    def when(self) -> float:
        return self.deadline

    def due(self) -> bool:
        """Whether its time has come, so that it runs now, or as soon as its node does."""
        return self.deadline <= self.home.time()


class Nap:
    """What a task of `node` awaits until the virtual time `when`, once.

    The timer's step is the task's own: there is no future in between, whose completion would be a
    step that only wakes another.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_loop",
        "_node",
        "_timer",
        "_wakeup",
        "_when",
    )

    def __init__(self, loop: SimLoop, node: Node, when: float) -> None:
        self._loop, self._node, self._when = loop, node, when
        self._asyncio_future_blocking = self._cancelled = False

    def __await__(self) -> Generator[Nap, None, None]:
        self._asyncio_future_blocking = True
        yield self

    # What a task asks of that which it awaits.

    def get_loop(self) -> SimLoop:
        return self._loop

    def add_done_callback(
        self, wakeup: Callable[[Nap], object], *, context: contextvars.Context
    ) -> None:
        self._wakeup = wakeup, context
        self._timer = self._loop.timer(self._node, self._when, wakeup, (self,), context)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002
        if self._cancelled or self._timer.due():
            return False
        self._cancelled = True
        self._timer.cancel()
        wakeup, context = self._wakeup
        self._loop.call_soon(wakeup, self, context=context)
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError


class SimLoop(asyncio.AbstractEventLoop):
    """A deterministic loop. `kernel` is the node of everything outside the simulated processes;
    it is never paused nor killed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = 0
        self.trace_hash = 0
        self.ring: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=RING_EVENTS_MAX)
        self.on_step: Callable[[Node], None] | None = None
        self.running: Node | None = None
        self._now = 0.0
        self._random = random.Random(f"{seed}/order")
        self._runnable: list[Node] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_number = 0
        self._timers_cancelled = 0
        self._looked_at = -1.0
        self._nodes = 0
        self._failure: UnhandledError | None = None
        self._closed = False
        self._generators: dict[int, Node] = {}
        self.kernel = self.new_node("kernel")
        self._idle = Step(self.kernel, None, (), self.kernel.context)

    # --- nodes ------------------------------------------------------------------------------------

    def new_node(self, name: str, life: int = 1) -> Node:
        """A new process, running, with nothing to do yet."""
        node = Node(name, self._nodes, life)
        self._nodes += 1
        return node

    def kill(self, node: Node) -> None:
        """No step of `node` runs from now on. If it is running right now, the rest of that step
        runs in a vacuum (inert ports)."""
        assert node is not self.kernel, "the kernel cannot be killed"
        if node in self._runnable:
            self._runnable.remove(node)
        node.alive = False
        node.ready.clear()

    def pause(self, node: Node) -> None:
        """Hold back every step of `node` until `resume`; they queue up."""
        assert node is not self.kernel, "the kernel cannot be paused"
        node.paused = True
        if node in self._runnable:
            self._runnable.remove(node)

    def resume(self, node: Node) -> None:
        """Let `node` run what has queued up."""
        if node.paused and node.alive and node.ready:
            self._runnable.append(node)
        node.paused = False

    # --- scheduling -------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the start of the world."""
        return self._now

    def _enqueue(self, step: Step) -> None:
        node = step.node
        if node.alive and not self._closed:
            if not node.ready and not node.paused:
                self._runnable.append(node)
            node.ready.append(step)

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Step:
        if context is None:
            context = contextvars.copy_context()
        node = context.get(NODE) or self.kernel
        step = Step(node, callback, args, context)
        # As `_enqueue`, which is too often called from here for a call of its own.
        if node.alive and not self._closed:
            ready = node.ready
            if not ready and not node.paused:
                self._runnable.append(node)
            ready.append(step)
        return step

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Step:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Timer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Timer:
        if context is None:
            context = contextvars.copy_context()
        return self.timer(context.get(NODE) or self.kernel, when, callback, args, context)

    def timer(
        self,
        node: Node,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> Timer:
        """Make `callback` a step of `node` in this context, at the virtual time `when`."""
        step = Timer(node, callback, args, context, when, self)
        self._timer_number = number = self._timer_number + 1
        heapq.heappush(self._timers, (when, number, step))
        return step

    def post(self, node: Node, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Make `callback` a step of `node` now: how the kernel hands something to a process."""
        self._enqueue(Step(node, callback, args, node.context))

    def post_at(
        self, node: Node, when: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> Timer:
        """As `post`, at the virtual time `when`."""
        # As `timer`, which is too often called from here for a call of its own.
        step = Timer(node, callback, args, node.context, when, self)
        self._timer_number = number = self._timer_number + 1
        heapq.heappush(self._timers, (when, number, step))
        return step

    def timer_cancelled(self, deadline: float) -> None:
        """Count a cancelled timer and sweep when they are many: timeouts that are never reached
        would pile up for minutes."""
        if deadline <= self._now:
            return
        self._timers_cancelled += 1
        if (
            self._timers_cancelled > CANCELLED_TIMERS_SWEPT_FROM
            and self._timers_cancelled * 2 > len(self._timers)
        ):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    # --- running ----------------------------------------------------------------------------------

    def run_until(self, deadline: float, until: Callable[[], bool] | None = None) -> None:
        """Run to the virtual time `deadline`, or until `until()` holds after a step (checked after
        every step).

        Raises UnhandledError as soon as a live node leaves an exception to the loop, Runaway when
        no time passes. The clock ends at `deadline` unless `until` ended the run.
        """
        assert not self._closed, "the loop is closed"
        assert asyncio.events._get_running_loop() is None, (
            "a simulation cannot run inside another event loop"
        )
        hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        gc.disable()
        asyncio.events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._generator_started, finalizer=self._generator_dropped)
        try:
            if until is None or not until():
                self._run(deadline, until)
        finally:
            self.running = None
            sys.set_asyncgen_hooks(*hooks)
            asyncio.events._set_running_loop(None)
            if collecting:
                gc.enable()

    def _run(self, deadline: float, until: Callable[[], bool] | None) -> None:
        chance = self._random.random
        runnable = self._runnable
        while True:
            if not runnable:
                if (step := self._advance(deadline)) is None:
                    return
                node = step.node
            else:
                index = int(chance() * len(runnable)) if len(runnable) > 1 else 0
                node = runnable[index]
                ready = node.ready
                step = ready.popleft()
                if not ready:
                    runnable[index] = runnable[-1]
                    runnable.pop()
            callback = step.callback
            if callback is None:
                continue
            # The hash of numbers is not salted, so it is the same in every process.
            self.trace_hash = hash((self.trace_hash, node.index, self._now))
            self.steps = steps = self.steps + 1
            self.running = node
            if self.on_step is not None:
                self.on_step(node)
                if not node.alive:
                    continue
            try:
                step.run_context.run(callback, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except (
                BaseException
            ) as error:  # as asyncio's own loop does: reported, and it ends the run below
                self.call_exception_handler(
                    {"message": f"exception in {step!r}", "exception": error}
                )
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if until is not None and until():
                return
            if steps % LOOK_EVERY_STEPS == 0:
                self._look(step)

    def _look(self, step: Step) -> None:
        """Now and then: collect garbage, and see that the run gets somewhere."""
        if self._now == self._looked_at or self.steps >= STEPS_MAX:
            raise Runaway(
                f"no end after {self.steps} steps, at virtual time {self._now:.6f}; last: {step!r}"
            )
        self._looked_at = self._now
        if self.steps % COLLECT_EVERY_STEPS == 0:
            gc.collect()

    def _advance(self, deadline: float) -> Step | None:
        """Jump to the next timer at or before `deadline` and take it; None if there is none.

        If it is not the only one of its instant, all of them are made ready, and what is returned
        does nothing.
        """
        timers, pop = self._timers, heapq.heappop
        while timers and timers[0][0] <= deadline:
            when, _, step = pop(timers)
            node = step.node
            if step.callback is None:
                if self._timers_cancelled:
                    self._timers_cancelled -= 1
            elif node.alive:
                self._now = now = max(when, self._now)
                if not node.paused and not (timers and timers[0][0] <= now):
                    return step
                self._enqueue(step)
                while timers and timers[0][0] <= now:
                    step = pop(timers)[2]
                    if step.callback is not None:
                        self._enqueue(step)
                if self._runnable:
                    return self._idle
        if deadline != float("inf"):
            self._now = max(self._now, deadline)
        return None

    def run_until_complete(  # type: ignore[override]
        self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | asyncio.Future[T]
    ) -> T:
        """Run until `future` is done; a coroutine becomes a task of the kernel. Raises Deadlock
        if nothing can complete it."""
        waited = future if isinstance(future, asyncio.Future) else self.create_task(future)
        self.run_until(float("inf"), waited.done)
        if not waited.done():
            raise Deadlock(
                f"nothing is scheduled at virtual time {self._now:.6f} and {waited!r} is not done"
            )
        return waited.result()

    # --- the trace --------------------------------------------------------------------------------

    def record(self, node: str, kind: str, *details: object) -> None:
        """Add an event to the trace and to the ring that a failure prints. `details` must print
        the same in every run."""
        self.ring.append((self._now, node, kind, details))
        self.trace_hash = hash(
            (self.trace_hash, self._now, zlib.crc32(f"{node} {kind} {details}".encode()))
        )

    # --- tasks, generators, errors ----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        node = (context.get(NODE) if context is not None else NODE.get(None)) or self.kernel
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        node.keep(task)
        return task

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = NODE.get(self.kernel)

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        node = self._generators.pop(id(generator), self.kernel)
        if node.alive and not self._closed:
            self.create_task(generator.aclose(), context=node.context.copy())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        node = self.running or self.kernel
        if self._closed or not node.alive or self._failure is not None:
            return
        error = context.get("exception")
        self._failure = UnhandledError(f"{node.name}: {context.get('message')}: {error!r}")
        self._failure.__cause__ = error

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # False; asked for every future and task, so without a frame of its own
    get_debug = staticmethod(bool)

    def is_running(self) -> bool:
        return asyncio.events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the loop: whatever is scheduled or reported afterwards is ignored."""
        self._closed = True
        self._runnable.clear()
        self._timers.clear()
        self._generators.clear()

    # --- refused ----------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,  # noqa: ARG002
    ) -> NoReturn:
        raise SimulationError(
            f"{func!r} wants a thread, whose timing no seed decides; put a port in between and "
            "simulate that"
        )

    def _refuse_io(self, *args: Any, **options: Any) -> NoReturn:  # noqa: ARG002
        raise SimulationError(
            "real input or output inside the simulation; use the Environment's network, volume and "
            "store"
        )

    # Everything of asyncio's interface that is not offered; assigned one by one, because a type
    # checker wants to see the names.
    create_connection = create_server = create_datagram_endpoint = create_unix_connection = (
        create_unix_server
    ) = _refuse_io
    getaddrinfo = getnameinfo = connect_accepted_socket = start_tls = sendfile = sock_sendfile = (
        _refuse_io
    )
    sock_accept = sock_connect = sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = (
        sock_sendall
    ) = _refuse_io
    sock_sendto = connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = (
        _refuse_io
    )
    add_reader = add_writer = add_signal_handler = _refuse_io  # type: ignore[assignment]
    remove_reader = remove_writer = remove_signal_handler = set_default_executor = _refuse_io
    run_forever = stop = set_debug = set_task_factory = get_task_factory = _refuse_io
    set_exception_handler = get_exception_handler = shutdown_asyncgens = (
        shutdown_default_executor
    ) = _refuse_io
