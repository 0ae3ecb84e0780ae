"""The stage of scripted trouble.

Owns: `Story`: real brokers in which nothing fails by chance, a client, one topic, and hands to make
one thing go wrong at one moment. Imports: the tracer's cluster and clients. Every story ends in
`Story.ends_well`: service is back, and everything acknowledged is read back in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from magnetar.errors import StoreUnavailable
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.metadata.store import Compare, Delete, Operation, Put, TxnResult
from magnetar.names import BundleName, TopicName
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History, Position
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer import LEASES, SLACK_S, homeless
from tests.simulation.scenarios.tracer_clients import client_of, payload_of, read_topic, until_done
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster

TOPIC = "persistent://public/default/story"
PATIENCE_S = 60.0
BIG_BYTES = 3000
FIRST_BROKERS_S = 5.0


class Story:
    """A cluster in which nothing fails by chance, a client, and one topic that was published to."""

    def __init__(
        self, seed: int, faults: Faults | None = None, settings: BrokerSettings | None = None
    ) -> None:
        self.history = History()
        self.cluster = Cluster(seed, self.history, faults or Faults.none(), settings=settings)
        self.sent = 0

    def __enter__(self) -> Story:
        self.cluster.__enter__()
        self.cluster.topics.append(TOPIC)
        self.cluster.start_brokers()
        self.cluster.run(FIRST_BROKERS_S)
        self.environment: Environment = self.cluster.outsider("client")
        self.client = client_of(self.environment)
        self.publish(3)
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.__exit__(*error)

    # --- the client's part ------------------------------------------------------------------------

    def publish(self, count: int, padding: int = 0) -> None:
        """So many messages, each acknowledged before the next."""
        self.cluster.complete(self._publish(count, padding), PATIENCE_S)

    async def _publish(self, count: int, padding: int) -> None:
        name = f"client-{self.sent}"
        # A client that asks a stopped process gets no answer until its timeout, and then asks
        # another one.
        producer = await until_done(
            self.environment,
            lambda: self.client.create_producer(TOPIC, name=name, send_timeout_s=PATIENCE_S),
        )
        for number in range(count):
            send = self.history.send(TOPIC, name, number, payload_of(name, number, padding))
            position = await producer.send(send.payload)
            send.acknowledged(Position(position.ledger, position.entry, position.batch_index))
            self.sent += 1
        await producer.close()

    # --- looking ----------------------------------------------------------------------------------

    @property
    def bundle(self) -> str:
        """Full name of the topic's bundle."""
        records = self.cluster.bundle_records()
        return next(
            name for name in records if BundleName.parse(name).contains(TopicName.parse(TOPIC))
        )

    @property
    def record(self) -> BundleRecord:
        return self.cluster.bundle_records()[self.bundle]

    @property
    def owner(self) -> str:
        """Name of the broker in the bundle's record."""
        return self.record.incarnation.rpartition(".")[0]

    def others(self, *but: str) -> list[str]:
        """Brokers other than these."""
        return [name for name in BROKERS if name not in but]

    def incarnation(self, broker: str) -> str:
        return self.cluster.brokers[broker].incarnation

    def counted(self, event: str) -> int:
        return self.cluster.evidence.counts[event]

    # --- acting -----------------------------------------------------------------------------------

    def write(self, record: BundleRecord) -> None:
        """Put the bundle's record straight into the store."""
        change = Put(keys.bundle(BundleName.parse(self.bundle)), record.encode())
        self.cluster.store.execute(lambda core, _now: core.transact((), (change,)))

    def forget_registration(self, broker: str) -> None:
        """Remove the key of a broker's incarnation as if its lease had ended, though it lives."""
        key = keys.incarnation(self.incarnation(broker))
        self.cluster.store.execute(lambda core, _now: core.transact((), (Delete(key),)))

    def within(self, broker: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something as part of a broker's process."""
        return self.cluster.loop.create_task(
            work, context=self.cluster.current(broker).context.copy()
        )

    def move(self, destination: str) -> asyncio.Task[None]:
        """Begin a planned move of the topic's bundle."""
        ownership = self.cluster.brokers[self.owner].ownership
        return self.within(
            self.owner, ownership.move(self.bundle, self.incarnation(destination), "story")
        )

    def lose_answer(
        self, broker: str, state: BundleState, then: Callable[[], None] | None = None
    ) -> None:
        """The next change of our bundle to `state` by this broker is made, but the answer is
        lost, and `then` happens first."""
        store, bundle = self.cluster.environment(broker).store, self.bundle
        transact, pending = store.transact, [state]

        async def forgetful(
            compares: Sequence[Compare], operations: Sequence[Operation]
        ) -> TxnResult:
            result = await transact(compares, operations)
            for operation in operations:
                ours = isinstance(operation, Put) and operation.key == keys.bundle(
                    BundleName.parse(bundle)
                )
                if ours and result.succeeded and pending and self.record.state is pending[0]:
                    pending.clear()
                    if then is not None:
                        then()
                    raise StoreUnavailable("the answer was lost")
            return result

        store.transact = forgetful  # type: ignore[method-assign]

    def until(self, condition: Callable[[], bool]) -> None:
        self.cluster.run_until(condition, PATIENCE_S)

    def ends_well(self, *, deduplicated: bool = True) -> dict[str, int]:
        """Within two leases everything is at home; the topic takes a message; everything
        acknowledged is there, in order."""
        deadline = self.cluster.now + LEASES * self.cluster.settings.lease_ttl_s + SLACK_S
        self.publish(1)
        while found := homeless(self.cluster):
            assert self.cluster.now < deadline, found
            self.cluster.run(0.25)
        self.history.final_log(
            TOPIC, self.cluster.complete(read_topic(self.client, TOPIC), PATIENCE_S)
        )
        assert not self.cluster.evidence.unexplained(), self.cluster.evidence.unexplained()
        self.history.check(deduplicated=deduplicated)
        return dict(self.cluster.evidence.counts)
