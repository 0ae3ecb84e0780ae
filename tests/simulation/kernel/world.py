"""A whole cluster in one process, driven by one seed.

Owns: `World` (loop, network, disk, store and the nodes on them) and `Environment` (what one process
is given). Imports: the kernel.

A scenario builds a world, starts nodes, lets things go wrong, and checks a history. Use it as a
context manager: a failure inside gets the seed, the virtual time and the last events attached as a
note.

    def run(seed: int) -> None:
        history = History()
        with World(seed, Faults.all()) as world:
            for name in ("broker-0", "broker-1"):
                world.node(name, run_broker, restarts=True, tolerated=(Fenced,))     # async def
                run_broker(env: Environment)
            world.node("producer", partial(produce, history), on_volume=False)       # uses
            env.network, env.clock ... Nemesis(world, ["broker-0", "broker-1"]).start(until_s=60.0)
            # random faults, then everything heals world.at(10.0, world.pause, "broker-0")
            # a scripted fault in between world.at(25.0, world.resume, "broker-0") world.run(90.0)
            world.complete(read_everything(world.outsider("reader"), history), within_s=60.0)
        history.check(deduplicated=True)

Invariants: a node runs as long as its main coroutine: when that returns the process is gone, as
after exit; a new incarnation gets a new Environment and keeps nothing but the disk, the store and
its name; a crash runs no `finally` and no `except`; after the world is closed nothing of it runs.
Not modelled: processor time (a step takes none), memory limits, suspended machines.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import structlog

from magnetar.storage.volumes.objects import RetryingObjects
from magnetar.storage.volumes.slots import SlotVolume
from magnetar.storage.volumes.volume import Volume
from tests.simulation.kernel.clock import SimClock
from tests.simulation.kernel.disk import Disk
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.network import Fabric, SimNetwork
from tests.simulation.kernel.node import Node
from tests.simulation.kernel.objects import ObjectServer, SimObjects
from tests.simulation.kernel.store import SimStore, StoreServer
from tests.simulation.kernel.volume import DiskWeather, ReservingSimVolume, SimVolume

T = TypeVar("T")

REPORTED_EVENTS_MAX = 60


@dataclass(frozen=True, slots=True)
class Environment:
    """The ports of one incarnation of a node."""

    name: str
    life: int
    clock: SimClock
    network: SimNetwork
    volume: Volume
    store: SimStore


Main = Callable[[Environment], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Place:
    """What outlives a node's lives: how to start it again."""

    main: Main
    on_volume: bool
    restarts: bool
    tolerated: tuple[type[Exception], ...]
    node: Node
    environment: Environment


class World:
    """See the module's text. Times are virtual seconds."""

    def __init__(self, seed: int, faults: Faults | None = None, *, slots: bool = False) -> None:
        """`slots`: the nodes' volumes are made of objects instead of files."""
        self.seed, self.faults = seed, faults or Faults.none()
        self.loop = SimLoop(seed)
        self.fabric = Fabric(self.loop, self.faults)
        self.disk = Disk(seed)
        self.disk.reserve = self.disk.reserve_size = self.faults.reserve_bytes
        self.weather = DiskWeather(self.faults)
        self.objects = ObjectServer(self.loop, self.weather)
        self.store = StoreServer(self.loop, self.fabric)
        self._slots = slots
        self._places: dict[str, _Place] = {}
        self._lives: list[Node] = [self.loop.kernel]
        self._reported: BaseException | None = None
        self._settled = self._collecting = False

    # --- nodes ------------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        main: Main,
        *,
        on_volume: bool = True,
        restarts: bool = False,
        tolerated: tuple[type[Exception], ...] = (),
    ) -> Node:
        """Start a process. `on_volume`: it dies with the volume's machine in a power loss.
        `restarts`: it comes back by itself, a while (`Faults.down_s`) after a crash, an exit or an
        error in `tolerated`; any other error ends the run.
        """
        assert name not in self._places, f"node {name} exists; use restart"
        node, environment = self._new_life(name, 1)
        self._places[name] = _Place(main, on_volume, restarts, tolerated, node, environment)
        self._start(name)
        return node

    def outsider(self, name: str) -> Environment:
        """The ports of a process without a main: for clients that a check drives through
        `complete`."""
        return self._new_life(name, 1)[1]

    def _new_life(self, name: str, life: int) -> tuple[Node, Environment]:
        node = self.loop.new_node(name, life)
        self._lives.append(node)
        clock = SimClock(self.loop, node, self.faults.wall_skew_max_s, self.faults.drift_max)
        kind = ReservingSimVolume if self.disk.reserve_size else SimVolume
        volume: Volume = kind(
            self.loop, node, self.disk, self.weather, partial(self._crash_life, node)
        )
        if self._slots:
            volume = SlotVolume(RetryingObjects(SimObjects(self.objects, node), clock), clock)
        return node, Environment(
            name, life, clock, SimNetwork(self.fabric, node), volume, SimStore(self.store, node)
        )

    def _start(self, name: str) -> None:
        place = self._places[name]
        self.loop.record(name, "start", place.node.life)
        task = self.loop.create_task(
            place.main(place.environment), name=f"main of {name}", context=place.node.context.copy()
        )
        task.add_done_callback(lambda done: self._main_ended(name, place.node, done))

    def _main_ended(self, name: str, node: Node, task: asyncio.Task[None]) -> None:
        if not node.alive:
            return
        place = self._places[name]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, place.tolerated):
            self.loop.call_exception_handler(
                {"message": f"main of {name} failed", "exception": error}
            )
            return
        self.loop.record(name, "exit", type(error).__name__)
        self._die(place, machine=False)

    def _die(self, place: _Place, *, machine: bool) -> None:
        node = place.node
        self.loop.kill(node)
        self.fabric.crashed(node, machine=machine)
        if place.restarts:
            delay = self.fabric.chance.uniform(*self.faults.down_s)
            self.loop.post_at(
                self.loop.kernel, self.loop.time() + delay, self._restart_if_dead, node.name, node
            )

    def _restart_if_dead(self, name: str, node: Node) -> None:
        place = self._places[name]
        if place.node is node and place.restarts:
            self.restart(name)

    @property
    def on_slots(self) -> bool:
        """Whether the volume is one of objects, where a log is no file but many slots."""
        return self._slots

    def stored(self, name: str) -> bool:
        """Whether a file of this name is on the volume now."""
        return name in (self.objects.objects if self._slots else self.disk.names)

    def names(self) -> list[str]:
        """All nodes ever started, oldest first."""
        return list(self._places)

    def alive(self, name: str) -> bool:
        return self._places[name].node.alive

    def current(self, name: str) -> Node:
        """The current (or last) life of a node."""
        return self._places[name].node

    def environment(self, name: str) -> Environment:
        """The ports of the current (or last) life of a node."""
        return self._places[name].environment

    # --- faults -----------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """SIGKILL. What it wrote stays in the page cache; its connections end at the peers a
        little later."""
        if self.alive(name):
            self.loop.record(name, "crash")
            self._die(self._places[name], machine=False)

    def _crash_life(self, node: Node) -> None:
        """As `crash`, of that incarnation; outsiders are nobody's to end."""
        place = self._places.get(node.name)
        if place is not None and place.node is node:
            self.crash(node.name)

    def restart(self, name: str) -> None:
        """Start a new incarnation of a node (killing the current one if there is one)."""
        self.crash(name)
        place = self._places[name]
        place.node, place.environment = self._new_life(name, place.node.life + 1)
        self._start(name)

    def keep_down(self, names: Iterable[str]) -> None:
        """Stop nodes that restart by themselves, until `let_restart`."""
        for name in names:
            self._places[name].restarts = False
            self.crash(name)

    def let_restart(self, names: Iterable[str]) -> None:
        """Nodes restart by themselves, from now on; those that were kept down do at once."""
        for name in names:
            place = self._places[name]
            if not place.restarts:
                place.restarts = True
                self.restart(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: nothing of it runs; timers, deliveries and completions queue up; its kernel
        goes on accepting and buffering."""
        self.loop.record(name, "pause")
        self.loop.pause(self.current(name))

    def resume(self, name: str) -> None:
        """SIGCONT: it runs what has queued up and finds its clocks moved on."""
        self.loop.record(name, "resume")
        self.loop.resume(self.current(name))

    def power_loss(self) -> None:
        """The volume's machine stops: its nodes die without a farewell; chance settles unsynced
        writes and names."""
        self.loop.record("disk", "power loss")
        for place in self._places.values():
            if place.on_volume and place.node.alive:
                self._die(place, machine=True)
        self.disk.lose_power()

    def fill_disk(self, slack: int) -> None:
        """Other users of the volume take all of it but `slack` bytes, and keep that until
        `free_disk`."""
        self.loop.record("disk", "full", slack)
        self.disk.fill(slack)

    def free_disk(self) -> None:
        """There is space again."""
        self.loop.record("disk", "has space")
        self.disk.limit = None

    def hang_disk(self, seconds: float) -> None:
        """No flush ends for so long."""
        self.loop.record("disk", "hangs", seconds)
        self.disk.hung_until = self.now + seconds

    def set_faults(self, faults: Faults) -> None:
        """Change the weather from now on; nodes started earlier keep their clocks."""
        self.faults = self.fabric.faults = self.weather.faults = faults

    def calm(self) -> None:
        """End all faults: heal, resume, restart whatever restarts by itself, and let nothing
        fail any more."""
        self.set_faults(self.faults.calm())
        self.fabric.heal()
        self.disk.limit, self.disk.hung_until = None, 0.0
        self.store.set_available(True)
        for name, place in self._places.items():
            if place.node.paused:
                self.resume(name)
            if place.restarts and not place.node.alive:
                self.restart(name)

    # --- running ----------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.loop.time()

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action(*args)` at the virtual time `when`, outside every node: a scripted fault."""
        self.loop.post_at(self.loop.kernel, when, action, *args)

    def script(self, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine outside every node; it may await time and call the faults. Its errors
        end the run."""
        task = self.loop.create_task(story, context=self.loop.kernel.context.copy())
        task.add_done_callback(self._script_ended)
        return task

    def _script_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "script failed", "exception": error})

    def run(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self._guarded(self.now + seconds, None)

    def run_until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Run until `condition()` holds. Raises TimeoutError when it does not within `within_s`."""
        self._guarded(self.now + within_s, condition)
        if not condition():
            raise self._reporting(
                TimeoutError(f"the condition did not hold within {within_s} virtual seconds")
            )

    def complete(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """Run a coroutine outside the cluster to its end and return its result. Raises
        TimeoutError, or what it raises."""
        task = self.loop.create_task(work, context=self.loop.kernel.context.copy())
        self._guarded(self.now + within_s, task.done)
        if not task.done():
            raise self._reporting(
                TimeoutError(f"{work!r} did not end within {within_s} virtual seconds")
            )
        error = task.exception()
        if error is not None:
            raise self._reporting(error)
        return task.result()

    def _guarded(self, deadline: float, until: Callable[[], bool] | None) -> None:
        try:
            self.loop.run_until(deadline, until)
        except BaseException as error:
            raise self._reporting(error) from error.__cause__

    # --- failing and ending -----------------------------------------------------------------------

    def report(self) -> str:
        """Seed, time and the last events."""
        events = list(self.loop.ring)[-REPORTED_EVENTS_MAX:]
        lines = [
            f"{when:12.6f} {node:<14} {kind} {' '.join(map(str, details))}"
            for when, node, kind, details in events
        ]
        trace = self.loop.trace_hash & ((1 << 64) - 1)
        head = (
            f"seed {self.seed}, virtual time {self.now:.6f} s, step {self.loop.steps}, trace "
            f"{trace:016x}"
        )
        return "\n".join([head, f"last {len(lines)} events:", *lines])

    def _reporting(self, error: BaseException) -> BaseException:
        if self._reported is not error:
            self._reported = error
            error.add_note(self.report())
        return error

    def __enter__(self) -> World:
        # Between two runs, too, nothing may be collected (and finalized) at a moment that no seed
        # decides.
        self._collecting = gc.isenabled()
        gc.disable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._reporting(error)
        self.close()
        if self._collecting:
            gc.enable()

    def close(self) -> None:
        """End the world. Suspended coroutines are closed now, when every port is inert, instead
        of at some later collection."""
        if self._settled:
            return
        self._settled = True
        self.loop.close()
        for node in self._lives:
            node.alive = False
        # What a dying coroutine logs was never said; printed with the world's variables it would
        # take longer than the run.
        before = structlog.get_config()
        structlog.configure(processors=[_unsaid])
        # What a dying coroutine starts in its `finally` belongs to this dead loop; without a loop
        # asyncio would make a real one and keep it there.
        asyncio.events._set_running_loop(self.loop)
        try:
            while any(node.tasks for node in self._lives):
                for node in self._lives:
                    while node.tasks:
                        _discard(node.tasks.pop())
        finally:
            asyncio.events._set_running_loop(None)
            structlog.configure(**before)


def _unsaid(
    _logger: object, _method: str, _event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    raise structlog.DropEvent


def _discard(task: asyncio.Task[Any]) -> None:
    if task.done():
        return
    # Private, but the one way to tell asyncio that a pending task is meant to go (gather does the
    # same to its children).
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    try:
        if isinstance(coroutine, Coroutine):
            coroutine.close()
    except BaseException:
        # The `finally` blocks of dead processes may do anything, such as awaiting; their world is
        # over and nobody listens.
        return
