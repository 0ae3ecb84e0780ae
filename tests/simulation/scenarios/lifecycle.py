"""The incarnation of messages and topics on a bad day.

Owns: the scenario `run(seed)`. The faults, moves and stops of the tracer over what the durable
scenario leaves out: messages in chunks (whole, at the consumer of their last part), a time to live
(nothing younger is expired, and what is older does not stay), a quota at which producers are held
(and let go), topics that are terminated under their producers (not one message behind the end that
was reported), topics without storage, a topic that is deleted while nobody uses it. Wall clocks are
days apart, and those of brokers jump by up to a year and back. Imports: the kernel, the tracer's
cluster and clients, the clients of this scenario. Invariants: as the durable scenario's; by virtual
time, nothing is expired or deleted early, whatever wall clocks say, and all of it in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import partial

from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from tests.simulation.kernel.checks import HistoryViolated, Violation
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History, Outcome, Position
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, Main
from tests.simulation.scenarios.durable_clients import Sharing
from tests.simulation.scenarios.lifecycle_clients import (
    HELD_BYTES,
    Endings,
    Loose,
    acknowledge_all,
    check_ended,
    check_let_go,
    chunked_size,
    produce,
    share_chunks,
)
from tests.simulation.scenarios.lifecycle_clocks import (
    DAY_S,
    UNUSED,
    UNUSED_POLICIES,
    Witness,
    jump_all,
    jump_now_and_then,
    left,
    use_now_and_then,
)
from tests.simulation.scenarios.tracer import FAULTS as TRACER_FAULTS
from tests.simulation.scenarios.tracer import TROUBLE_S, finish
from tests.simulation.scenarios.tracer_clients import (
    client_of,
    drain_subscription,
    position_of,
    publish_one,
    read_whole,
    until_done,
)
from tests.simulation.scenarios.tracer_cluster import (
    BROKERS,
    WITHOUT_LIMIT,
    Cluster,
    Evidence,
    small,
)

CHUNKED = "persistent://public/kept/chunked"
SHARED = "persistent://public/kept/shared-chunks"
EXPIRING = "persistent://public/expiring/topic"
HELD = "persistent://public/held/topic"
LOOSE = "non-persistent://public/kept/loose"
TTL_S = 6
YOUNG_S = 3.0
"""An age at which nothing may have expired, with as much again for its way to a consumer."""
YOUNG = 3
QUOTA_BYTES = 9_000
QUOTA = {"destination_storage": {"limitSize": QUOTA_BYTES, "policy": "producer_request_hold"}}
NAMESPACES = {
    "kept": {"retention_policies": WITHOUT_LIMIT},
    "expiring": {"retention_policies": WITHOUT_LIMIT, "message_ttl_in_seconds": TTL_S},
    "held": {"retention_policies": WITHOUT_LIMIT, "backlog_quota_map": QUOTA},
    "unused": UNUSED_POLICIES,
}
BUNDLES = 2
IN_FLIGHT_S = 3.0
QUIET_S = 3.0
"""Nothing for so long: a subscription has nothing left to deliver."""
LOOKS_S = 2.0
"""What is due to expire is found within so much."""
FAULTS = TRACER_FAULTS.but(wall_jump_every_s=None, wall_skew_max_s=DAY_S)


def run(seed: int, faults: Faults | None = None) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed, faults)[0]


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def run_counted(seed: int, faults: Faults | None = None) -> tuple[History, Evidence]:
    """As `run`, with what the run went through."""
    history = History()
    day = _Day(history)
    settings = small(expiry_check_s=0.5, backlog_quota_check_s=0.3, inactive_check_s=0.3)
    with Cluster(seed, history, faults or FAULTS, settings=settings, exercise=True) as cluster:
        cluster.make_namespaces(NAMESPACES, BUNDLES)
        cluster.topics += (CHUNKED, EXPIRING, HELD)
        cluster.start_brokers()
        day.witness.observe(cluster)
        for name, main in day.clients().items():
            cluster.node(name, main, on_volume=False)
        Nemesis(cluster, BROKERS).start(until_s=TROUBLE_S)
        cluster.script(cluster.cordon_now_and_then(TROUBLE_S - 1.0))
        cluster.script(jump_now_and_then(cluster, TROUBLE_S - 1.0))
        cluster.script(_terminate_now_and_then(cluster, day.endings, TROUBLE_S - 1.0))
        cluster.run(TROUBLE_S)
        cluster.settle()
        finish(cluster, day.probe, day.read_back, day.judge, in_flight_s=IN_FLIGHT_S)
        evidence = cluster.evidence
    day.count(evidence)
    return history, evidence


async def _terminate_now_and_then(cluster: Cluster, endings: Endings, until_s: float) -> None:
    """As an administrator does at whichever broker serves the topic; the broker may die over it."""
    chance = random.Random(f"{cluster.seed}/terminations")
    while cluster.now < until_s:
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        topic = endings.topics[-1] if endings.topics else ""
        owner = cluster.owner_of(topic) if topic else ""
        if owner and cluster.alive(owner) and cluster.brokers[owner].ready:
            context = cluster.current(owner).context.copy()
            work = cluster.loop.create_task(
                _terminate(cluster, owner, topic, endings), context=context
            )
            await asyncio.wait([work], timeout=5)  # a task of a dead process never ends


def _now_s() -> float:
    """Virtual time, which is the same everywhere."""
    return asyncio.get_running_loop().time()


async def _terminate(cluster: Cluster, owner: str, topic: str, endings: Endings) -> None:
    cluster.evidence.counts["termination asked for"] += 1
    try:
        host = await cluster.brokers[owner].service.open_topic(TopicName.parse(topic), create=False)
        endings.confirmed(topic, Position(*await host.terminate()))
    except MagnetarError:
        return
    cluster.evidence.counts["terminated"] += 1


class _Day:
    """What the clients of one run do and find."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.chunks = Sharing(history, CHUNKED, "Shared", None)
        self.mortals = Sharing(history, EXPIRING, "Shared", None)
        self.endings = Endings(history, "persistent://public/kept")
        self.loose = Loose(LOOSE)
        self.witness = Witness(EXPIRING)
        self.sent_s: dict[tuple[str, int], float] = {}
        self.expired = 0

    def clients(self) -> dict[str, Main]:
        """By name."""
        history, held = self.history, partial(acknowledge_all, self.history, HELD, pause_s=3.0)
        return {
            "chunks": partial(produce, history, CHUNKED, size=chunked_size, chunking=True),
            "chunks-0": self.chunks.consume,
            "chunks-1": self.chunks.consume,
            "mortal": self._produce_mortals,
            "mortal-0": self.mortals.consume,
            "held": partial(produce, history, HELD, size=lambda _number: HELD_BYTES),
            "held-0": held,
            "ending": self.endings.produce,
            "loose": self.loose.produce,
            "loose-0": self.loose.consume,
            "now-and-then": use_now_and_then,
        }

    async def _produce_mortals(self, environment: Environment) -> None:
        def note_moment(name: str, number: int) -> None:
            self.sent_s[name, number] = _now_s()

        await produce(self.history, EXPIRING, environment, before_send=note_moment)

    # --- when all is well again -------------------------------------------------------------------

    async def probe(self, _cluster: Cluster, environment: Environment) -> None:
        """One message to every topic; where producers are held, messages are consumed first."""
        client, history = client_of(environment), self.history
        self.sent_s["prober", 0] = _now_s()
        consuming = asyncio.ensure_future(acknowledge_all(history, HELD, environment, pause_s=0.0))
        await asyncio.gather(
            *(
                publish_one(history, client, topic, "prober", environment)
                for topic in (CHUNKED, EXPIRING, HELD)
            ),
            until_done(environment, partial(self.loose.check, client)),
        )
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)

    async def read_back(self, cluster: Cluster, environment: Environment) -> None:
        """Everything that a reader finds into the history; what the subscriptions still owe; how
        topics ended."""
        client, history = client_of(environment), self.history
        await check_let_go(history, client, HELD, environment)
        for topic in (CHUNKED, HELD, *self.endings.topics):
            history.final_log(topic, await read_whole(environment, client, topic))
        await drain_subscription(history, client, CHUNKED, "Shared", environment)
        await drain_subscription(history, client, HELD, "Shared", environment)
        await share_chunks(client, SHARED, environment)
        await self._drain_mortals(cluster, environment)
        for topic in self.endings.ended:
            await check_ended(history, client, topic, environment)

    async def _drain_mortals(self, cluster: Cluster, environment: Environment) -> None:
        """What is not too old is delivered, and what was not acknowledged is not delivered any
        more once it is."""
        client = client_of(environment)
        for number in range(YOUNG):
            self.sent_s[f"young-{number}", 0] = _now_s()
            await publish_one(self.history, client, EXPIRING, f"young-{number}", environment)
        self.history.final_log(EXPIRING, await read_whole(environment, client, EXPIRING))
        jump_all(cluster)
        await asyncio.sleep(YOUNG_S)
        delivered = {
            received.position
            for received in self.history.received
            if received.session.topic == EXPIRING
        }
        delivered |= await self._until_quiet(environment)
        now_s = _now_s()
        for entry in self.history.logs[EXPIRING]:
            if entry.position not in delivered:
                young = now_s - self.sent_s[
                    entry.producer, entry.sequence
                ] < TTL_S or entry.producer.startswith("young")
                assert not young, (
                    f"{EXPIRING}: {entry.producer} #{entry.sequence} is gone, though it has not "
                    "expired"
                )
                self.expired += 1
        await asyncio.sleep(TTL_S + LOOKS_S)
        assert not await self._until_quiet(environment), (
            f"{EXPIRING}: what is older than {TTL_S} s is still delivered"
        )
        assert not left(cluster, UNUSED), f"{UNUSED} has not been used for long, and is still there"
        await client.close()

    async def _until_quiet(self, environment: Environment) -> set[Position]:
        """Positions that the subscription delivers until it has no more; nothing is
        acknowledged."""
        client, found = client_of(environment), set[Position]()
        consumer = await until_done(
            environment,
            lambda: client.subscribe(
                EXPIRING, "subscription", type="Shared", initial_position="Earliest"
            ),
        )
        session = self.history.session("drain", "subscription", EXPIRING)
        try:
            while True:
                message = await consumer.receive(timeout_s=QUIET_S)
                session.received(position_of(message), message.value)
                found.add(position_of(message))
        except TimeoutError:
            await consumer.close()
            return found

    # --- judging ----------------------------------------------------------------------------------

    def judge(self) -> None:
        """Invariants 1 to 4, and what these topics promise beyond them. Raises HistoryViolated."""
        self.history.check(deduplicated=False)
        found = [*self._beyond_their_end(), *self._mixed_up(), *self._hasty()]
        if found:
            raise HistoryViolated(found)

    def _beyond_their_end(self) -> Iterator[Violation]:
        """1, 2: the last message of a topic that has ended is the one that was reported, and
        nothing sent later was taken."""
        for topic, (last, order) in self.endings.ended.items():
            entries = self.history.logs[topic]
            reached = entries[-1].position if entries else Position(-1, -1)
            if (entries and reached != last) or (not entries and last.entry >= 0):
                yield Violation(
                    1, topic, f"it was terminated at {tuple(last)}, and ends at {tuple(reached)}"
                )
            for send in self.history.sends:
                if (
                    send.topic == topic
                    and send.invoked > order
                    and send.outcome is Outcome.CONFIRMED
                ):
                    yield Violation(
                        2,
                        topic,
                        f"{send.producer} #{send.sequence} was sent and acknowledged after its end",
                    )

    def _mixed_up(self) -> Iterator[Violation]:
        """1: a consumer that gets a message in chunks gets it whole."""
        payloads = {entry.position: entry.payload for entry in self.history.logs[CHUNKED]}
        sent = {
            (send.producer, send.sequence): send.payload
            for send in self.history.sends
            if send.topic == CHUNKED
        }
        for entry in self.history.logs[CHUNKED]:
            if entry.payload != sent[entry.producer, entry.sequence]:
                yield Violation(
                    1,
                    CHUNKED,
                    f"{entry.producer} #{entry.sequence} has {len(entry.payload)} bytes of others "
                    "in it",
                )
        for received in self.history.received:
            if received.session.topic == CHUNKED and received.payload != payloads.get(
                received.position
            ):
                shown = received.payload[:30]
                yield Violation(
                    1,
                    CHUNKED,
                    f"{shown!r} of {len(received.payload)} bytes was delivered at "
                    f"{tuple(received.position)}",
                )

    def _hasty(self) -> Iterator[Violation]:
        """1: what a message's age or a topic's users decide is decided by time that has passed."""
        sent_s = {
            entry.position: self.sent_s[entry.producer, entry.sequence]
            for entry in self.history.logs[EXPIRING]
            if (entry.producer, entry.sequence) in self.sent_s
        }
        for what in self.witness.expired_early(sent_s, TTL_S):
            yield Violation(1, EXPIRING, what)
        for what in self.witness.hasty:
            yield Violation(1, UNUSED, what)

    def count(self, evidence: Evidence) -> None:
        """What a run must have met to prove anything."""
        counts, logs = evidence.counts, self.history.logs
        counts["message"] = self.history.acknowledged
        counts["message in chunks"] = sum(len(entry.payload) > 8_192 for entry in logs[CHUNKED])
        counts["delivered in chunks"] = self.chunks.deliveries
        counts["delivered mortals"] = self.mortals.deliveries
        counts["expired"] = self.expired
        counts["unused topic deleted"] = self.witness.deleted
        counts["held"] = len(logs[HELD])
        counts["topic ended"] = len(self.endings.ended)
        counts["refused at its end"] = self.endings.refused
        counts["arrived without storage"] = self.loose.arrived
