"""Drivers of jobs, for those who start them: the operator and the command line.

Owns: the module of each type of job, and the options that say what it does. Imports: nothing. Pure.
Invariant: what is asked for is the same driver with the same options, whether a pod runs it or this
machine; where its storage and its store are is for the starter to say.
"""

from __future__ import annotations

COMPACTION, LOG_COMPACTION, LOAD_ANALYTICS, SCRIPT = (
    "Compaction",
    "TransactionLogCompaction",
    "LoadAnalytics",
    "PySpark",
)
DRIVERS = {
    COMPACTION: "magnetar_jobs.compact",
    LOG_COMPACTION: "magnetar_jobs.transaction_log",
    LOAD_ANALYTICS: "magnetar_jobs.load_analytics",
    SCRIPT: "magnetar_jobs.script",
}
"""Modules by type of job."""


RETAIN_KEYLESS = "--retain-keyless"
"""Of topic compaction."""


def topic_options(topic: str, namespace: str) -> list[str]:
    """Of a topic, or without one of a namespace."""
    return ["--topic", topic] if topic else ["--namespace", namespace]


def load_analytics_options(
    days: int, window_seconds: int, valid_hours: int, sample_topics: int
) -> list[str]:
    return [
        "--days", str(days),
        "--window-seconds", str(window_seconds),
        "--valid-hours", str(valid_hours),
        "--sample-topics", str(sample_topics),
    ]  # fmt: skip
