"""A cluster with transaction coordinators whose processes are killed one after another.

Owns: `KilledCluster`. Imports: the cluster of the tests, coordinators. Used by
examples/exactly_once.py and the tests of exactly-once histories. Invariants: brokers and
coordinators take turns; what was killed serves again before the next ones die; everything started
is stopped.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.server_process import ServerProcess
from dev.soak.coordinators import Coordinators
from dev.soak.namespaces import create_namespace
from dev.testbed.cluster import Cluster

COORDINATORS = 2


class KilledCluster:
    """Brokers, coordinators and etcd for as long as the `with` block lasts, with a namespace for
    the work."""

    def __init__(self, directory: Path, namespace: str, brokers: int = 3) -> None:
        self.namespace = namespace
        self.cluster = Cluster(directory, brokers, gated=True, fronted=True)
        self.coordinators = Coordinators(self.cluster, COORDINATORS)
        self.kills = 0
        self._victims = self._turns()

    @property
    def service_url(self) -> str:
        """All brokers: any of them may be dead."""
        return "pulsar://" + ",".join(
            broker.service_url.removeprefix("pulsar://") for broker in self.cluster.brokers.values()
        )

    @property
    def http_url(self) -> str:
        return self.cluster.brokers[self.cluster.entry].http_url

    def __enter__(self) -> Self:
        try:
            self.cluster.start()
            self.coordinators.start()
            create_namespace(self, self.namespace, deduplicated=True)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        try:
            self.coordinators.stop()
        finally:
            self.cluster.stop()

    def _turns(self) -> Iterator[ServerProcess]:
        brokers = itertools.cycle(self.cluster.brokers.values())
        for coordinator in itertools.cycle(self.coordinators.processes.values()):
            yield next(brokers)
            yield coordinator

    def kill(self, count: int = 1) -> str:
        """kill -9 of the next processes at once, start them again, wait until the cluster is
        healthy; their names."""
        victims = list(itertools.islice(self._victims, count))
        for victim in victims:
            victim.kill()
            self.kills += 1
        for victim in victims:
            victim.start(wait=False)
        for victim in victims:
            victim.wait_ready()
        self.cluster.wait_healthy()
        return ", ".join(victim.name for victim in victims)

    def log_dump(self) -> str:
        """The end of every process's log."""
        return self.cluster.log_dump() + "\n" + self.coordinators.log_dump()


def temporary_cluster(namespace: str) -> tuple[tempfile.TemporaryDirectory[str], KilledCluster]:
    """One in a directory of its own, which the caller cleans up."""
    directory = tempfile.TemporaryDirectory(prefix="magnetar-killed-")
    return directory, KilledCluster(Path(directory.name), namespace)
