"""An unforeseen error of one topic, bundle, connection or peer, in any background work, costs only
that one, and only a round.

The first test lists everything that runs in the background of a server: what is added must be
placed there, and what is contained is tried below (the room for frames: in `test_receive_room`).
"""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import magnetar
from magnetar.broker.bundles.load import LoadReporter
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.deletion_marks import DeletionMarks
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.expiry import TopicExpiry
from magnetar.broker.upkeep.maintenance import Maintenance
from magnetar.hosting import background
from magnetar.names import NamespaceName, TopicName
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, command_frame, connected_peer, open_peer
from tests.support.deliveries import received
from tests.support.polling import until

OTHER = "persistent://public/default/other"
STARTERS = {"create_task", "ensure_future", "call_later", "call_at"}
ITEM = "contained: one topic, bundle, namespace, file or participant loses a round"
ASKED = "its error is the answer to the caller"
CONNECTION = "ends or delays one connection"
CARRIED = "runs what is contained by its name below, or again and again"
LIFE = (
    "its failure means that the claim, the log or the lease is lost, or that memory and log "
    "disagree"
)
STARTED = {
    "broker/administration/brokers.py:Brokers.check_health": ASKED,
    "broker/incarnation.py:Broker._spawn": CARRIED,
    "broker/draining.py:Draining.drain": ASKED,
    "broker/bundles/cursor_writing.py:CursorWriter._write_in": ITEM,
    "broker/bundles/leader.py:Leader._lead": CARRIED,
    "broker/bundles/leader.py:Leader.start": CARRIED,
    "broker/bundles/liveness.py:Liveness.may_be_named": ASKED,
    "broker/bundles/preloading.py:_Preload.__init__": ITEM,
    "broker/bundles/work.py:BundleWork.begin": LIFE,
    "broker/commands/topic_watchers.py:TopicWatchers._changed": CONNECTION,
    "broker/connections/connection.py:Connection._handle_frames": CONNECTION,
    "broker/connections/connection.py:Connection.spawn": CONNECTION,
    "broker/connections/heartbeat.py:Heartbeat._wait": CONNECTION,
    "broker/connections/receive_room.py:Rooms._count": ITEM,
    "broker/connections/receive_room.py:Rooms._look": ITEM,
    "broker/connections/slow_peer.py:SlowPeer._arm": CONNECTION,
    "coordinator/incarnation.py:Coordinator._spawn": LIFE,
    "coordinator/incarnation.py:Coordinator.unless_ended": ASKED,
    "coordinator/process.py:CoordinatorProcess._unless_stopping": ASKED,
    "broker/bundles/renewals.py:Renewals.ask": ITEM,
    "broker/standalone_coordinator.py:StandaloneCoordinator._awake": ASKED,
    "broker/standalone_coordinator.py:StandaloneCoordinator._wake": LIFE,
    "coordinator/transactions.py:Transactions._carry_out": ITEM,
    "coordinator/transactions.py:Transactions._happen": ITEM,
    "coordinator/transactions.py:Transactions._set_timer": ITEM,
    "coordinator/transactions.py:Transactions._spawn": CARRIED,
    "hosting/lease_thread.py:ThreadedLeaseKeeper._beat": LIFE,
    "hosting/http.py:HttpListener.open": CARRIED,
    "hosting/http.py:_Protocol._within": CONNECTION,
    "hosting/http.py:_Protocol.pause_writing": CONNECTION,
    "hosting/tls.py:TlsPort._accept": CONNECTION,
    "hosting/tls.py:TlsPort.listen": CARRIED,
    "broker/upkeep/inquiring.py:_Round.ask": ITEM,
    "broker/process.py:BrokerProcess._open_security": CARRIED,
    "broker/process.py:BrokerProcess._open_tls": CARRIED,
    "broker/process.py:BrokerProcess._collect_garbage": CARRIED,
    "broker/process.py:BrokerProcess._until_over": ASKED,
    "hosting/security/guard.py:Guard._read_again": ASKED,
    "hosting/security/handshakes.py:Handshakes._arm": CONNECTION,
    "hosting/security/handshakes.py:Handshakes._ask": CONNECTION,
    "broker/reading/log_keys.py:LogKeys.publish": ITEM,
    "broker/bundles/recovery/log_scans.py:LogScans._join": ASKED,
    "broker/bundles/log_rolling.py:LogRoller._roll_after_release": ASKED,
    "broker/bundles/log_rolling.py:LogRoller.roll": ASKED,
    "broker/bundles/log_rolling.py:LogRoller.roll_soon": ASKED,
    "broker/bundles/checkpointer.py:Checkpointer.ask": ITEM,
    "broker/topics/non_persistent.py:NonPersistentTopic._watch": ITEM,
    "broker/topics/subscription_host.py:SubscriptionHost._arm_timer": ITEM,
    "broker/topics/subscription_host.py:SubscriptionHost._begin_reading": ITEM,
    "broker/topics/awaited_return.py:AwaitedReturn.expect": ITEM,
    "broker/topics/throttles.py:TopicThrottles._wake": ITEM,
    "broker/topics/topic_host.py:TopicHost.terminate": ASKED,
    "broker/watermarks/topic_watermarks.py:ServedWatermarks._arm": ITEM,
    "broker/topics/topic_registry.py:TopicRegistry._start": ITEM,
    "hosting/shared_task.py:SharedTasks.join": ASKED,
    "hosting/views.py:StoreView.start": ITEM,
}
"""Where a server starts something that runs by itself -> what an unforeseen error of it costs."""


class _Starts(ast.NodeVisitor):
    """Functions of a module in which tasks and timers are started."""

    def __init__(self, module: str) -> None:
        self._module, self._inside = module, list[str]()
        self.found: set[str] = set()

    def _enter(self, node: Any) -> None:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _enter

    def visit_Call(self, node: ast.Call) -> None:
        called = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if called in STARTERS:
            self.found.add(f"{self._module}:{'.'.join(self._inside)}")
        self.generic_visit(node)


def test_everything_that_runs_by_itself_is_known() -> None:
    """A new task or timer needs a line in STARTED, and if it works on items, a case."""
    root = Path(magnetar.__path__[0])
    found: set[str] = set()
    for path in (
        path
        for room in ("broker", "coordinator", "hosting")
        for path in (root / room).rglob("*.py")
    ):
        starts = _Starts(path.relative_to(root).as_posix())
        starts.visit(ast.parse(path.read_text()))
        found |= starts.found
    assert found == STARTED.keys()


# --- tasks that go on for as long as a broker lives -----------------------------------------------


@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        ("life of topics", TopicExpiry, "look"),
        ("maintenance", Maintenance, "round"),
        ("marks of deletions", DeletionMarks, "look"),
        ("load report", LoadReporter, "_publish"),
    ],
)
async def test_a_task_of_a_broker_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: type, method: str
) -> None:
    """It fails as a whole, twice: it is counted, and the third round takes place in the same
    incarnation."""
    monkeypatch.setattr(background, "AGAIN_S", 0.001)
    monkeypatch.setattr("magnetar.broker.topics.deletion_marks.LOOK_S", 0.001)
    calls: list[int] = []
    work = getattr(owner, method)

    async def surprising(self: object, *arguments: object) -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise RuntimeError("unforeseen")
        await work(self, *arguments)

    monkeypatch.setattr(owner, method, surprising)

    async def script(broker: Broker, peer: Peer) -> None:
        await until(lambda: len(calls) > 3)
        assert broker.metrics.surprises.counts[name] == 2
        await serves(broker, peer)

    await play(tmp_path, script, topic_check_s=0.02, maintenance_s=0.05, load_report_s=0.1)


# --- work on items --------------------------------------------------------------------------------


async def play(
    directory: Path, script: Callable[[Broker, Peer], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async with connected_peer(directory, **settings) as (broker, peer):
        await peer.lookup(OTHER)
        await script(broker, peer)


async def serves(broker: Broker, peer: Peer) -> None:
    """The broker lives, and both topics can be written."""
    assert broker.ready
    for producer_id, topic in ((71, TOPIC), (72, OTHER)):
        await peer.produce(producer_id, topic)
        await peer.send(b"x", 0, producer_id)


async def host_of(broker: Broker, topic: str) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(topic), create=True)


class Unforeseen:
    """Raises whatever is asked of it, but for `left`, which it hands on."""

    def __init__(self, real: object, *left: str) -> None:
        self._real, self._left = real, left

    def __getattr__(self, name: str) -> Any:
        if name in self._left:
            return getattr(self._real, name)
        raise RuntimeError(f"unforeseen: {name}")


@contextmanager
def broken(host: object, name: str, *left: str) -> Iterator[None]:
    """Within it the core behind `host.name` raises whatever is asked of it."""
    real = getattr(host, name)
    setattr(host, name, Unforeseen(real, *left))
    try:
        yield
    finally:
        setattr(host, name, real)


async def test_what_is_due_for_one_topic_waits_for_no_other(tmp_path: Path) -> None:
    """Age, time to live, quotas, retention, unused topics and subscriptions: of the broken topic
    none, of the other all of it."""

    async def script(broker: Broker, peer: Peer) -> None:
        first, second = await host_of(broker, TOPIC), await host_of(broker, OTHER)
        for producer_id, topic in ((1, TOPIC), (2, OTHER)):
            await peer.produce(producer_id, topic)
            await peer.subscribe(producer_id, topic)
            await peer.send(b"x", 0, producer_id)
        await second.update_properties({"policies": '{"message_ttl_in_seconds": 1}'})
        life = TopicExpiry(broker.context, broker.ownership)
        for broken_one, whole in ((first, second), (second, first)):
            with broken(broken_one, "core", "frozen"):
                life._done = [-1e9] * len(life._done)
                assert whole.core.has_grown
                await life.look()
                assert not whole.core.has_grown
            for producer_id in (1, 2):
                await peer.send(b"x", 1, producer_id)
        assert broker.metrics.surprises.counts["life of topics"] >= len(life._work)
        await serves(broker, peer)

    await play(tmp_path, script, topic_check_s=1000.0)


async def test_a_cursor_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number, name in ((1, "a"), (2, "b")):
            await peer.subscribe(number, subscription=name)
        await peer.send(b"x", 0)
        topic = await host_of(broker, TOPIC)
        confirmed: list[str] = []
        for name in ("a", "b"):
            topic.subscriptions[name].core.acknowledge(None, ((0, 1),))
            topic.bundle.cursors._dirty[topic.subscriptions[name]] = [
                partial(confirmed.append, name)
            ]
        with broken(topic.subscriptions["a"], "core", "name"):
            topic.bundle.cursors.write_all()
        await broker.context.log.barrier()
        assert confirmed == ["b"]
        assert broker.metrics.surprises.counts["cursors"] == 1
        await serves(broker, peer)

    await play(tmp_path, script)


async def test_deliveries_of_one_subscription_stop_no_other(tmp_path: Path) -> None:
    """The broken one is tried again, and goes on once it is mended."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number, name in ((1, "a"), (2, "b")):
            await peer.subscribe(number, subscription=name)
        host = (await host_of(broker, TOPIC)).subscriptions["a"]
        peer.write(requests.flow(1, 10))
        await peer.is_quiet()
        with broken(host, "core", "connected", "name", "consumers"):
            await peer.send(b"x", 0)
            assert await received(peer, 1, 2) == [0]
            await until(lambda: broker.metrics.surprises.counts["deliveries"] > 0)
        host.schedule()
        assert (await peer.message())[0].consumer_id == 1
        assert broker.ready

    await play(tmp_path, script)


async def test_one_bundle_that_cannot_be_maintained_leaves_the_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints and tidying go on; a checkpoint that was asked for and fails ends nothing
    either."""

    async def script(broker: Broker, peer: Peer) -> None:
        await serves(broker, peer)
        first, *others = sorted(broker.ownership.owned)
        assert others
        seen: list[str] = []

        async def tidy(owned: Any) -> None:
            seen.append(str(owned.name))
            if str(owned.name) == first:
                raise RuntimeError("unforeseen")

        monkeypatch.setattr(broker.maintenance.manifest_compactor, "tidy", tidy)
        await broker.maintenance.round()
        assert seen == [first, *others]

        async def write(_position: object) -> Any:
            raise RuntimeError("unforeseen")

        monkeypatch.setattr(broker.ownership.owned[first], "write_checkpoint", write)
        for name in (first, *others):
            broker.ownership.checkpointer.ask(name)
        await until(lambda: not broker.ownership.checkpointer.busy)
        counts = broker.metrics.surprises.counts
        assert (counts["maintenance"], counts["checkpoint"]) == (1, 1)
        assert {name.split("/")[3] for name in await broker.context.volume.list("checkpoints")} >= {
            others[0].rpartition("/")[2]
        }
        await serves(broker, peer)

    await play(tmp_path, script, maintenance_s=1000.0)


async def test_the_leader_passes_over_what_it_cannot_deal_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of a patrol takes place, whatever happens to the one before; of several orphans
    the others are assigned."""

    async def script(broker: Broker, peer: Peer) -> None:
        leader, parts = broker.leader, list[str]()
        await until(lambda: leader.leading)

        def surprising(name: str) -> Callable[..., Awaitable[Any]]:
            async def part(*_arguments: object) -> Any:
                parts.append(name)
                raise RuntimeError("unforeseen")

            return part

        names = ["_retire", "_unstick", "_adopt_orphans", "cycle"]
        with monkeypatch.context() as patched:
            for name in names:
                owner = leader._balancer if name == "cycle" else leader
                patched.setattr(owner, name, surprising(name))
            await leader.patrol(leader._election.guard())
        assert parts == names
        assigned: list[str] = []

        async def assign(name: str, *_guard: object) -> None:
            assigned.append(name)
            if len(assigned) == 1:
                raise RuntimeError("unforeseen")

        monkeypatch.setattr(broker.ownership.assigner, "assign", assign)
        monkeypatch.setattr(leader._views.incarnations, "get", lambda _name: None)
        await leader._adopt_orphans(leader._election.guard(), ())
        assert len(assigned) >= 2
        assert broker.metrics.surprises.counts["leader"] == len(names) + 1
        monkeypatch.undo()
        await serves(broker, peer)

    await play(tmp_path, script)


async def test_an_entry_of_one_topic_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again until it is made."""

    async def script(broker: Broker, peer: Peer) -> None:
        registry, failures = broker.ownership.registry, [1, 1]
        attempt = registry._attempt

        async def surprising(owned: Any, name: TopicName, wish: Any) -> bool:
            if str(name) == TOPIC and failures:
                failures.pop()
                raise RuntimeError("unforeseen")
            return await attempt(owned, name, wish)

        monkeypatch.setattr(registry, "_attempt", surprising)
        monkeypatch.setattr("magnetar.broker.topics.topic_registry.RETRY_S", 0.01)
        await host_of(broker, TOPIC)
        await host_of(broker, OTHER)
        await until(
            lambda: {TOPIC, OTHER} <= set(registry.names(NamespaceName("public", "default")))
        )
        assert broker.metrics.surprises.counts["topic entries"] == 2
        await serves(broker, peer)

    await play(tmp_path, script)


async def test_a_command_that_surprises_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and in a request that waits."""

    async def script(broker: Broker, peer: Peer) -> None:
        def surprising(*_arguments: object) -> Any:
            raise RuntimeError("unforeseen")

        with monkeypatch.context() as patched:
            patched.setattr(broker.service, "handle", surprising)
            async with open_peer(broker) as other:
                other.write(command_frame("lookup", topic=TOPIC, request_id=1))
                assert await other.closed_by_broker()
        with monkeypatch.context() as patched:
            patched.setattr(broker.ownership, "resolve", surprising)
            async with open_peer(broker) as other:
                other.write(
                    command_frame(
                        "lookup", topic="persistent://public/default/elsewhere", request_id=1
                    )
                )
                await until(lambda: broker.metrics.surprises.counts["connections"] >= 1)
        await serves(broker, peer)

    await play(tmp_path, script)


async def test_marks_of_other_namespaces_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        taken: list[str] = []

        async def take_back(name: NamespaceName) -> None:
            taken.append(str(name))
            if str(name) == "a/a":
                raise RuntimeError("unforeseen")

        class Marked:
            deleting = broker.context.incarnation

        class Viewed:
            record = Marked

        views = SimpleNamespace(namespaces=SimpleNamespace(items={"a/a": Viewed, "b/b": Viewed}))
        marks = DeletionMarks(broker.context, views)  # type: ignore[arg-type]
        monkeypatch.setattr(marks, "take_back", take_back)
        await marks.look()
        assert taken == ["a/a", "b/b"]
        assert broker.metrics.surprises.counts["marks of deletions"] == 1
        await serves(broker, peer)

    await play(tmp_path, script)


async def test_the_log_of_one_dead_broker_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        garbage_collector, seen = broker.maintenance.garbage_collector, list[str]()

        async def complete(incarnation: str) -> None:
            seen.append(incarnation)
            raise RuntimeError("unforeseen")

        listed = broker.context.volume.list

        async def dead(prefix: str) -> list[str]:
            return (
                ["logs/x/00000001.log", "logs/y/00000001.log"]
                if prefix.startswith("logs")
                else await listed(prefix)
            )

        monkeypatch.setattr(garbage_collector, "_complete_keys", complete)
        monkeypatch.setattr(type(broker.context.volume), "list", lambda _self, prefix: dead(prefix))
        await garbage_collector.collect_dead()
        assert seen == ["x", "y"]
        assert broker.metrics.surprises.counts["collector"] == 2
        monkeypatch.undo()
        await serves(broker, peer)

    await play(tmp_path, script)
