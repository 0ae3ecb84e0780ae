"""What the pods of a job say."""

from __future__ import annotations

from typing import Any

from magnetar_operator import names
from magnetar_operator.conditions import Reason
from magnetar_operator.job_pods import any_runs, attempt_of, not_started, owned_by

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient cpu"}


def pod(name: str = "prices-0a-1", phase: str = "Pending", owner: str = "u", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {names.ATTEMPT: "1"}, "ownerReferences": [{"uid": owner}]}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def ended(**how: Any) -> dict[str, Any]:
    return pod(phase="Failed", containerStatuses=[{"name": "driver", "ready": False, "state": {"terminated": how}}])


def test_a_driver_that_ended_is_told_by_its_code_and_its_last_words() -> None:
    log = "INFO begins\n" + 500 * "." + "\nTopicNotFound: topic x does not exist\n"
    found = attempt_of(ended(exitCode=2, reason="Error", finishedAt="1970-01-01T00:00:01Z", message=log))
    assert (found.number, found.exit_code, found.finished_ms, found.is_over) == (1, 2, 1000, True)
    assert found.message == "it ended with exit code 2 (Error), saying: TopicNotFound: topic x does not exist"
    assert len(attempt_of(ended(exitCode=1, message=5000 * "x")).message) < 400


def test_one_without_words_is_told_with_where_its_log_is() -> None:
    assert attempt_of(ended(exitCode=137, reason="OOMKilled")).message == (
        "it ended with exit code 137 (OOMKilled); kubectl logs prices-0a-1"
    )
    assert attempt_of(pod(phase="Failed", message="The node was low on resource: memory.")).message.startswith("The node was low")
    assert attempt_of(ended(exitCode=0, reason="Completed")).message == ""


def test_the_first_pod_that_does_not_start_is_named_in_the_schedulers_words() -> None:
    waiting = pod("prices-0a-1-exec-2", conditions=[UNSCHEDULABLE])
    problem = not_started([pod(phase="Running"), pod("prices-0a-1-exec-1"), waiting])
    assert problem is not None
    assert problem.reason is Reason.POD_UNSCHEDULABLE
    expected = "prices-0a-1-exec-2: not scheduled: Unschedulable: 0/1 nodes: Insufficient cpu. "
    assert problem.message.startswith(expected)


def test_what_runs_ends_or_is_about_to_start_waits_for_nothing() -> None:
    crashed = ended(exitCode=1)  # Spark makes another executor
    assert not_started([pod(), pod(phase="Running"), crashed]) is None
    assert any_runs([pod(), pod(phase="Running")])
    assert not any_runs([pod(), crashed])


def test_only_what_spark_made_for_this_driver_counts() -> None:
    own, other = pod(owner="driver"), pod(owner="of another job")
    assert owned_by([own, other], ["driver"]) == [own]
