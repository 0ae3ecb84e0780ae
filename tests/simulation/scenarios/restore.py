"""The metadata store is lost in the middle of everything, and brought back.

Owns: the scenario `run(seed)`: the tracer's brokers and clients on a bad day; at some moment the
store is copied, at a later one it is destroyed while brokers crash, go on under their claims, or
stand still; after a while of serving over an empty store it is restored from the copy, from the
brokers' own copies in storage, from storage alone, or put back as an old snapshot and brought in
line; or it is not lost at all, and replaced by force under brokers that are registered in it. No
broker is stopped for a restore. With some seeds it is lost once more. The bad day goes on, heals,
and everything is read back: invariants 1 to 4 and 9. Imports: the kernel, the tracer's cluster and
clients, storage.restore.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.metadata.backends.core import StoreCore
from magnetar.metadata.backup import Backup, decode_backup, encode_backup, read_backup
from magnetar.storage.restore.restoring import newest_backup, restore_store
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer import (
    FAULTS,
    TOPICS,
    finish,
    judge,
    probe,
    read_back,
    start_clients,
)
from tests.simulation.scenarios.tracer_clients import Reading, Seeker
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster, Evidence, small

COPIED_S = (2.0, 8.0)
LOST_AFTER_S = (0.5, 8.0)
EMPTY_S = (0.0, 6.0)
AGAIN_S = 4.0
TROUBLE_S = 18.0
RESTORE_TRIES_MAX = 40
RESTORE_TIMEOUT_S = 15.0
WAYS = ("copy", "kept copy", "storage alone", "in place", "by force")


def run(seed: int) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed)[0]


def run_counted(seed: int) -> tuple[History, Evidence]:
    """As `run`, with what the run went through."""
    history, reading, seeker = History(), Reading(), Seeker(TOPICS[2])
    chance = random.Random(f"{seed}/restore")
    losses = [WAYS[(seed + number) % len(WAYS)] for number in range(2 if seed % 3 == 0 else 1)]
    served_on = 0
    settings = small(metadata_backup_interval_s=2.0)
    with Cluster(seed, history, FAULTS, settings=settings, exercise=True) as cluster:
        cluster.evidence.expected += ("the metadata store was replaced",)
        cluster.topics += TOPICS
        cluster.start_brokers()
        start_clients(cluster, reading, seeker)
        Nemesis(cluster, BROKERS).start(until_s=TROUBLE_S)
        for way in losses:
            cluster.run(chance.uniform(*COPIED_S))
            # without a message in storage, nothing there knows the namespace
            while not history.acknowledged:
                cluster.run(AGAIN_S)
            copy = cluster.complete(_copy(cluster), within_s=30.0)
            snapshot = cluster.store.core.snapshot()
            cluster.run(chance.uniform(*LOST_AFTER_S))
            if way != "by force":
                _lose_store(cluster, chance, snapshot if way == "in place" else None)
            if way not in ("in place", "by force"):
                before = history.acknowledged
                cluster.run(chance.uniform(*EMPTY_S))
                served_on += history.acknowledged - before
            cluster.complete(_bring_back(cluster, way, copy), within_s=60.0)
            cluster.let_restart(BROKERS)
            cluster.evidence.counts[f"restored from {way}"] += 1
        cluster.run(max(AGAIN_S, TROUBLE_S - cluster.now))
        cluster.calm()
        cluster.settle()
        finish(cluster, probe, read_back, partial(judge, history, reading))
        evidence = cluster.evidence
    evidence.counts["message"] = history.acknowledged
    evidence.counts["message over an empty store"] = served_on
    return history, evidence


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


async def _copy(cluster: Cluster) -> bytes:
    """What `magnetar metadata backup` writes."""
    environment = cluster.outsider("copier")
    while True:
        try:
            return encode_backup(await read_backup(environment.store, environment.clock.wall_ms()))
        except Exception as error:  # the store may be unavailable
            cluster.loop.record("copier", "again", type(error).__name__)
            await asyncio.sleep(0.2)


def _lose_store(cluster: Cluster, chance: random.Random, snapshot: Any) -> None:
    """The store's disks are gone: an empty one (or one made of an older snapshot) answers at its
    address, at another revision."""
    if snapshot is not None:
        # Nothing may run between: a store that is merely older looks like an intact one.
        cluster.keep_down(BROKERS)
    for name in BROKERS:
        fate = chance.random()
        if fate < 0.4:
            cluster.crash(name)
        elif fate < 0.6:
            cluster.pause(name)  # until it all is over: a zombie of the store that was
    core = StoreCore()
    if snapshot is not None:
        core.restore(snapshot)
        for lease in core.orphaned_leases():
            core.revoke(lease)
    cluster.store.replace(core)


async def _bring_back(cluster: Cluster, way: str, copy: bytes) -> None:
    """The administrator's part; brokers come and go concurrently, and are refused or ended."""
    for number in range(RESTORE_TRIES_MAX):
        try:
            # A power loss may take the machine that the command runs on: then nothing is learned of
            # it any more.
            async with asyncio.timeout(RESTORE_TIMEOUT_S):
                await _restore(cluster.outsider(f"administrator-{number}"), way, copy)
            return
        except InvalidRequest:
            raise
        except Exception as error:  # store or disk in trouble: run it again
            cluster.loop.record("administrator", "again", repr(error))
            await asyncio.sleep(0.5)
    raise AssertionError(f"the store could not be restored in {RESTORE_TRIES_MAX} tries")


async def _restore(environment: Environment, way: str, copy: bytes) -> None:
    backup: Backup | None = None
    if way == "copy":
        backup = decode_backup(copy, "copy")
    elif way == "kept copy":
        found = await newest_backup(environment.volume)
        backup = found[0] if found is not None else None
    # Forced: some brokers continue, registered or not.
    await restore_store(
        environment.store,
        environment.volume,
        environment.clock,
        backup=backup,
        source=way,
        in_place=way == "in place",
        force=True,
    )
