"""Schedules of DataJobs against a real API server and a real etcd: the operator's clock can be
set; drivers are played by hand."""

from __future__ import annotations

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from tests.apiserver.job_stage import HOUR_MS, TOPIC, Jobs, SetClock
from tests.apiserver.stage import (
    Brokers,
    Scene,
    brokers_of,
    external,
    look_at_all,
    quiet,
    running_operator,
    until,
)

pytestmark = pytest.mark.slow


async def succeed(brokers: Brokers, scene: Scene, run: str) -> None:
    record = JobRunRecord("compaction", "succeeded", 1000, 2000, {})
    await brokers.store.put(keys.job_run(f"{scene.namespace}/prices", run), record.encode())


async def test_a_schedule_makes_one_run_a_time_and_forgets_old_ones(
    scene: Scene, cluster_etcd: EtcdProcess, clock: SetClock
) -> None:
    """Nothing runs before its time; each time is run once, whatever the operator looks at; a
    clock that is set back repeats nothing; a run that is forgotten leaves neither pod nor
    record."""
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await brokers.enter(TOPIC)
        uid = jobs.create(schedule=clock.schedule, successfulRunsHistoryLimit=1)
        await until("the next time", lambda: jobs.status().get("nextScheduleTime"))
        assert (jobs.status()["state"], jobs.history()) == ("Scheduled", [])

        runs = []
        for number in range(3):
            token = clock.to_next_time()
            runs.append(token)
            await look_at_all(operator)
            driver = await until(f"run {number}", lambda token=token: jobs.driver(1, token))
            assert jobs.history()[0][0] == token
            await succeed(brokers, scene, f"{token}-{uid[:8]}")
            jobs.report(driver["metadata"]["name"], "Succeeded")
            await until("its end", lambda token=token: (token, "Succeeded") in jobs.history())
            await look_at_all(operator)
            await quiet(operator)
        assert [token for token, _ in jobs.history()] == [runs[2]]
        assert jobs.driver(1, runs[0]) is None
        job = f"{scene.namespace}/prices"
        assert await brokers.store.get(keys.job_run(job, f"{runs[0]}-{uid[:8]}")) is None
        assert await brokers.store.get(keys.job_run(job, f"{runs[2]}-{uid[:8]}")) is not None

        clock.ahead_ms -= 24 * HOUR_MS
        await look_at_all(operator)
        await quiet(operator)
        assert [token for token, _ in jobs.history()] == [runs[2]]
        again = clock.to_next_time()
        await look_at_all(operator)
        await until("the schedule goes on", lambda: jobs.driver(1, again))


async def test_a_request_and_a_replacement_beside_a_schedule(
    scene: Scene, cluster_etcd: EtcdProcess, clock: SetClock
) -> None:
    """A request runs now; with Replace the next time of the schedule stops its driver, and
    begins when that has gone."""
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        await brokers.enter(TOPIC)
        jobs.create(schedule=clock.schedule, concurrencyPolicy="Replace")
        await until("the next time", lambda: jobs.status().get("nextScheduleTime"))
        scene.merge(jobs.path, {"spec": {"runRequest": "by-hand"}})
        driver = await until("the requested run", lambda: jobs.driver(1, "by-hand"))
        jobs.report(driver["metadata"]["name"], "Running", podIP="10.1.2.3")
        await until("it is at work", lambda: jobs.history() == [("by-hand", "Running")])

        token = clock.to_next_time()
        await look_at_all(operator)
        await until("the scheduled run", lambda: jobs.driver(1, token))
        assert jobs.driver(1, "by-hand") is None
        states = await until(
            "its end", lambda: dict(found := jobs.history()).get("by-hand") == "Replaced" and found
        )
        assert [name for name, _ in states] == [token, "by-hand"]


async def test_a_driver_that_waits_for_nothing_does_not_hold_the_next_run_up(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Its run has succeeded in between, by an attempt that was thought to have failed."""
    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        uid = await jobs.make()
        first = await until("the first driver", jobs.driver)
        jobs.report(first["metadata"]["name"], "Failed", reason="NodeLost")
        await until("the second driver", lambda: jobs.driver(2))
        await succeed(brokers, scene, f"once-{uid[:8]}")
        await until("its end", lambda: jobs.history() == [("once", "Succeeded")])
        await until("none waits", lambda: jobs.driver(2) is None)
        scene.merge(jobs.path, {"spec": {"runRequest": "again"}})
        await until("the next run", lambda: jobs.driver(1, "again"))


async def test_a_schedule_that_cannot_be_is_refused_in_words(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """By the API server where it is no schedule at all; by a condition that names the field
    otherwise."""
    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        jobs = Jobs(scene, brokers)
        with pytest.raises(AssertionError, match=r"spec\.schedule"):
            jobs.create(schedule="every night")
        jobs.create(schedule="0 0 31 2 *")
        assert "spec.schedule: '0 0 31 2 *' is never due" in await jobs.says("InvalidSpec")
        scene.merge(jobs.path, {"spec": {"schedule": "0 0 * * *", "timeZone": "Mars/Base"}})
        await until(
            "the zone is named",
            lambda: "'Mars/Base' is not a known time zone" in str(jobs.status()["conditions"]),
        )
