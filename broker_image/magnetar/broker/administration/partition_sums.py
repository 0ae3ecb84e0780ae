"""The statistics of several partitions as those of one topic.

Owns: `sum_stats`. Imports: nothing. Pure. Source: Pulsar's TopicStatsImpl.add and those of what is
below it: counters are added up, times are the latest (that of creation the earliest), the n-th
publisher or consumer of each partition counts as one. Invariant: the sum of one partition has its
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

EARLIEST, LATEST = ("topicCreationTimeStamp",), ("lastPublishTimeStamp",)
GREATEST = (
    "oldestBacklogMessageAgeSeconds",
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "lastCompactionDurationTimeInMills",
)
OWN = ("address", "connectedSince", "clientVersion", "metadata", "producerId", "epoch")
"""Of a client: what differs from partition to partition."""
PLACES = ("ownerBroker", "topicEpoch", "deduplicationStatus")


def sum_stats(stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Never empty: without partitions in use everything is 0."""
    total: dict[str, Any] = {
        **dict.fromkeys(
            ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize"), 0
        ),
        "backlogSize": 0,
        "publishers": [],
        "subscriptions": {},
        "replication": {},
        "compaction": {},
    }
    count = 0
    for one in stats:
        if "msgRateIn" not in one:
            continue  # a partition that was never used
        count += 1
        _add(total, one, {"averageMsgSize", *PLACES})
        size = one["averageMsgSize"] - total.get("averageMsgSize", 0.0)
        total["averageMsgSize"] = total.get("averageMsgSize", 0.0) + size / count
        _add(total["compaction"], one["compaction"], ())
        _add_clients(total["publishers"], one["publishers"])
        for name, found in one["subscriptions"].items():
            known = total["subscriptions"].setdefault(
                name,
                {
                    "consumers": [],
                    "consumersAfterMarkDeletePosition": {},
                    "subscriptionProperties": found["subscriptionProperties"],
                },
            )
            _add(known, found, {"activeConsumerName"})
            _add_clients(known["consumers"], found["consumers"])
    return total


def _add_clients(total: list[dict[str, Any]], clients: Iterable[Mapping[str, Any]]) -> None:
    for index, one in enumerate(clients):
        if index == len(total):
            total.append({})
        _add(total[index], one, OWN)


def _add(total: dict[str, Any], one: Mapping[str, Any], without: Iterable[str]) -> None:
    """Add what can be added; of words the last one counts, of switches whether any is on."""
    for name, value in one.items():
        if name in without or isinstance(value, list | dict):
            continue
        known = total.get(name)
        if known is None or isinstance(value, str):
            total[name] = value
        elif isinstance(value, bool):
            total[name] = known or value
        elif name in EARLIEST:
            total[name] = min(known, value) if known and value else max(known, value)
        elif name in GREATEST or name.endswith(("Timestamp", "TimeStamp")):
            total[name] = max(known, value)
        else:
            total[name] = known + value
