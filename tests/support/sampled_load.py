"""A load sampler over bundles and a clock that a test plays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.balance.load import LoadReport
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.broker.bundles.balancing.sampling import LoadSampler
from magnetar.broker.bundles.balancing.trend import RecentMoves
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import BrokerMetrics, Traffic
from magnetar.hosting.computing import inline
from magnetar.names import TopicName
from magnetar.topics.topic import Counters

NAME = "public/default/0x00000000_0x80000000"
OTHER = "public/default/0x80000000_0xffffffff"


TOPICS = tuple(f"persistent://public/default/t{at}" for at in range(3))


class Time:
    """A clock that the test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(1000 * self.now)


class View:
    """A view of reports that the test changes."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self._listener: Any = None

    def get(self, name: str) -> Any:
        return self.items.get(name)

    def listen(self, listener: Any) -> None:
        self._listener = listener

    def put(self, name: str, report: LoadReport | None) -> None:
        if report is None:
            del self.items[name]
        else:
            self.items[name] = SimpleNamespace(record=report)
        self._listener([name])


class Machine:
    cores, memory_limit_bytes = 2.0, 1000

    def __init__(self) -> None:
        self.seconds = 0.0

    def cpu_seconds(self) -> float:
        return self.seconds

    def memory_bytes(self) -> int:
        return 250


class Served:
    """A bundle with topics of the test's."""

    def __init__(self, *topics: str) -> None:
        self.traffic = Traffic()
        self.topics = {name: self._topic(name) for name in topics}
        self.unstored: dict[str, Any] = {}

    @staticmethod
    def _topic(name: str) -> Any:
        core = SimpleNamespace(counters=Counters(), producers=[1, 2])
        subscription = SimpleNamespace(core=SimpleNamespace(consumers=[1]))
        return SimpleNamespace(
            name=TopicName.parse(name), core=core, subscriptions={"s": subscription}
        )

    def publish(self, name: str, messages: int) -> None:
        for counters in (self.traffic, self.topics[name].core.counters):
            counters.messages_in += messages
            counters.bytes_in += 100 * messages


class Stage:
    """A sampler of bundles that the test plays."""

    def __init__(self) -> None:
        self.clock, self.view, self.machine = Time(), View(), Machine()
        self.metrics = BrokerMetrics()
        self.served: dict[str, Served] = {}
        context = SimpleNamespace(
            clock=self.clock, metrics=self.metrics, broker="here", compute=inline
        )
        self.reports = Reports(cast(Any, self.clock), cast(Any, SimpleNamespace(load=self.view)))
        self.moves = RecentMoves()
        self.sampler = LoadSampler(
            cast(BrokerContext, context),
            cast(Any, self.served),
            self.reports,
            self.machine,
            self.moves,
        )

    def serve(self, name: str, *topics: str) -> Served:
        found = self.served[name] = Served(*topics)
        self.metrics.begin(found.traffic)
        return found

    def sample(self, seconds: float = 10.0, **settings: Any) -> LoadReport:
        self.clock.now += seconds
        return asyncio.run(self.sampler.sample(replace(Settings(), **settings)))
