"""What the pods of a job say."""

from __future__ import annotations

from typing import Any

from magnetar_operator import names
from magnetar_operator.conditions import Reason
from magnetar_operator.jobs.pods import (
    any_runs,
    attempt_of,
    drivers_at_work,
    left_over,
    missing_executors,
    not_started,
    owned_by,
)

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes: Insufficient cpu",
}


def pod(
    name: str = "prices-0a-1", phase: str = "Pending", owner: str = "u", **status: Any
) -> dict[str, Any]:
    metadata = {"name": name, "labels": {names.ATTEMPT: "1"}, "ownerReferences": [{"uid": owner}]}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def ended(**how: Any) -> dict[str, Any]:
    return pod(
        phase="Failed",
        containerStatuses=[{"name": "driver", "ready": False, "state": {"terminated": how}}],
    )


def test_a_driver_that_ended_is_reported_with_its_code_and_its_last_words() -> None:
    log = "INFO begins\n" + 500 * "." + "\nTopicNotFound: topic x does not exist\n"
    found = attempt_of(
        ended(exitCode=2, reason="Error", finishedAt="1970-01-01T00:00:01Z", message=log)
    )
    assert (found.number, found.exit_code, found.finished_ms, found.is_over) == (1, 2, 1000, True)
    assert (
        found.message
        == "it ended with exit code 2 (Error), saying: TopicNotFound: topic x does not exist"
    )
    assert len(attempt_of(ended(exitCode=1, message=5000 * "x")).message) < 400


def test_one_without_words_is_reported_with_where_its_log_is() -> None:
    assert attempt_of(ended(exitCode=137, reason="OOMKilled")).message == (
        "it ended with exit code 137 (OOMKilled); kubectl logs prices-0a-1"
    )
    assert attempt_of(
        pod(phase="Failed", message="The node was low on resource: memory.")
    ).message.startswith("The node was low")
    assert attempt_of(ended(exitCode=0, reason="Completed")).message == ""


def test_the_first_pod_that_does_not_start_is_named_in_the_schedulers_words() -> None:
    waiting = pod("prices-0a-1-exec-2", conditions=[UNSCHEDULABLE])
    problem = not_started([pod(phase="Running"), pod("prices-0a-1-exec-1"), waiting])
    assert problem is not None
    assert problem.reason is Reason.POD_UNSCHEDULABLE
    expected = "prices-0a-1-exec-2: not scheduled: Unschedulable: 0/1 nodes: Insufficient cpu. "
    assert problem.message.startswith(expected)


def test_what_runs_ends_or_is_about_to_start_waits_for_nothing() -> None:
    crashed = ended(exitCode=1)  # a driver's: the next attempt follows
    assert not_started([pod(), pod(phase="Running"), crashed]) is None
    assert any_runs([pod(), pod(phase="Running")])
    assert not any_runs([pod(), crashed])


def test_an_executor_that_ends_again_and_again_is_named_and_does_not_count() -> None:
    """Its pod is Running all the while."""
    status = {
        "name": "executor",
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    crashing = pod(
        "prices-0a-1-exec-1",
        "Running",
        containerStatuses=[{**status, "lastState": {"terminated": {"exitCode": 2}}}],
    )
    problem = not_started([crashing])
    assert problem is not None
    assert problem.reason is Reason.POD_CRASHING
    assert not any_runs([crashing])


def test_only_what_belongs_to_this_driver_counts() -> None:
    own, other = pod(owner="driver"), pod(owner="of another job")
    assert owned_by([own, other], ["driver"]) == [own]


def driver(phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    found = pod(phase=phase, podIP="10.1.2.3")
    found["metadata"] |= {"uid": "driver", **metadata}
    return found


def executor(number: int, phase: str = "Running", owner: str = "driver") -> dict[str, Any]:
    return pod(f"prices-0a-1-exec-{number}", phase, owner)


def test_executors_are_made_for_a_driver_that_runs() -> None:
    """Not before it has an address, and not while it goes."""
    assert (
        drivers_at_work(
            [
                driver("Pending"),
                driver("Failed"),
                driver(deletionTimestamp="2026-01-01T00:00:00Z"),
                pod(phase="Running"),
            ]
        )
        == []
    )
    assert drivers_at_work([driver()]) == [driver()]
    assert missing_executors(driver(), [], 2) == [1, 2]
    assert missing_executors(driver(), [executor(1)], 2) == [2]
    assert missing_executors(driver(), [executor(1), executor(2)], 2) == []


def test_executors_go_with_their_driver_or_when_they_were_evicted() -> None:
    """One that has ended by itself stays: its driver ends, too."""
    all_kinds = [
        executor(1),
        executor(2, "Failed"),
        executor(3, "Succeeded"),
        executor(4, owner="another"),
    ]
    assert left_over(all_kinds, [driver()]) == [executor(2, "Failed"), executor(4, owner="another")]
    assert left_over([executor(1)], []) == [executor(1)]
