"""A metadata store that is lost, and the command that makes it again.

Owns: `metadata`, `copied`, `empty_etcd`, `destroy_etcd`. Imports: dev.testbed.cluster, metadata. Invariant: a command that
fails shows what it printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from dev.testbed.cluster import Cluster
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.records import BackupReportRecord

EXIT_S = 240


def metadata(*arguments: str, succeeds: bool = True) -> str:
    """Run `magnetar metadata ...`; what it printed."""
    command = [sys.executable, "-m", "magnetar", "metadata", *arguments]
    environment = {**os.environ, "NO_COLOR": "1"}
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=EXIT_S, env=environment
    )
    assert (found.returncode == 0) is succeeds, (
        arguments,
        found.returncode,
        found.stdout,
        found.stderr,
    )
    return found.stdout + found.stderr


def copied(cluster: Cluster, since_ms: int) -> bool:
    """Whether the copy that brokers made last was made or found current since then."""
    found: list[bool] = []

    async def look(store: EtcdStore) -> None:
        report = await store.get(keys.BACKUP_REPORT)
        current_ms = BackupReportRecord.decode(report.value).current_ms if report is not None else 0
        found.append(current_ms >= since_ms)

    cluster._with_store(look)
    return found[-1]


def destroy_etcd(cluster: Cluster) -> None:
    """Everything is killed, and etcd's data is gone."""
    for broker in cluster.brokers.values():
        broker.kill()
    empty_etcd(cluster)


def empty_etcd(cluster: Cluster) -> None:
    """Etcd is killed, its data is gone, and an empty one answers instead."""
    [etcd] = cluster.members
    etcd.kill()
    shutil.rmtree(cluster.directory / "etcd-0" / "data")
    etcd.start()


def places_of(cluster: Cluster) -> tuple[str, ...]:
    """Where the store and the messages of a cluster are, as options of `metadata`."""
    store = cluster.members[0].endpoint.replace("http://", "etcd://")
    return "--store", store, "--volume", str(cluster.directory / "volume")
