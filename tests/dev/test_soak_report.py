"""The soak's summary shows what happened, by kind of fault and by client."""

from __future__ import annotations

from collections import Counter

from dev.soak.history import SubscriptionHistory, TopicHistory, Violation
from dev.soak.nemesis import Fault
from dev.soak.report import VIOLATIONS_SHOWN_MAX, fault_table, percentile, progress_line, summary


def topics() -> list[TopicHistory]:
    """One topic with a gap of 4 s from 10 to 14, and one of another client without."""
    made = []
    for client, times in (
        ("official", [9.0, 10.0, 14.0, 15.0]),
        ("own", [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]),
    ):
        topic = TopicHistory(f"t-{client}", client == "own", client=client)
        for number, at in enumerate(times):
            topic.sent["p"] += 1
            topic.receipt(("p", number), (-1, (1, number, -1)), at)
        topic.stored[-1] = [((1, number, -1), ("p", number)) for number in range(len(times))]
        topic.stored[-1].append(((2, 0, -1), ("p", len(times) - 1)))
        topic.subscriptions.append(SubscriptionHistory("s", "Shared", ordered=False))
        made.append(topic)
    return made


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.5) == 0.0
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [
        1.0,
        2.0,
        3.0,
        3.0,
    ]


def test_faults_are_reported_by_kind_with_the_gaps_of_each_client() -> None:
    faults = [
        Fault("kill -9", "broker-0", 10.5, 13.5, 0.25),
        Fault("unload", "broker-1", 14.1, 14.9, 0.0, ("204", "204", "skipped")),
    ]
    header, kill, unload = fault_table(faults, topics())
    assert "gap of official" in header
    assert "gap of own" in header
    assert kill.split()[:2] == ["kill", "-9"]
    assert "4.00" in kill
    assert "1.00" in kill
    assert "0.25" in kill
    assert "4.00" not in unload
    assert unload.endswith("2 x 204, 1 x skipped")


def test_the_summary_counts_and_shows_violations_up_to_a_limit() -> None:
    found = [Violation("lost", "t", str(number)) for number in range(VIOLATIONS_SHOWN_MAX + 2)]
    lines = summary(topics(), found, ["broker-0 did not stop"])
    assert "11 sent, 11 acknowledged, 13 stored" in lines[0]
    assert "stored twice without deduplication: 1" in lines[1]
    assert "PROBLEM  broker-0 did not stop" in lines
    assert sum(line.startswith("VIOLATION") for line in lines) == VIOLATIONS_SHOWN_MAX
    assert lines[-1] == "... and 2 more violations"


def test_progress_names_what_is_being_done() -> None:
    assert "11 sent" in progress_line(10.0, topics(), 3, Counter({"unload": 1}))
    assert progress_line(10.0, topics(), 3, Counter({"unload": 1, "kill -9": 1})).endswith(
        "3 faults; now: kill -9, unload"
    )
    assert progress_line(10.0, topics(), 3, Counter()).endswith("now: nothing")
