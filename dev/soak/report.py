"""What a soak prints.

Owns: the progress line and the summary. Imports: history, nemesis (values only).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dev.soak.history import TopicHistory, Violation
from dev.soak.nemesis import Fault

VIOLATIONS_SHOWN_MAX = 20


def progress_line(
    elapsed_s: float, topics: Sequence[TopicHistory], faults: int, under_way: Counter[str]
) -> str:
    """One line: how far the traffic is, and what is being done to the cluster now."""
    sent = sum(topic.sent.total() for topic in topics)
    acknowledged = sum(len(topic.receipts) for topic in topics)
    delivered = sum(
        len(subscription.delivered) for topic in topics for subscription in topic.subscriptions
    )
    now = ", ".join(sorted(under_way)) or "nothing"
    return (
        f"{elapsed_s:6.0f} s  {sent:8d} sent  {acknowledged:8d} acknowledged  {delivered:8d} "
        f"delivered  {faults:4d} faults; now: {now}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie (nearest rank); 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def fault_table(faults: Sequence[Fault], topics: Sequence[TopicHistory]) -> list[str]:
    """Per kind: how often, how long until health after its end, and the publish gaps of all
    topics around it, by client."""
    groups = {
        client: [topic for topic in topics if topic.client == client]
        for client in dict.fromkeys(topic.client for topic in topics)
    }
    columns = "".join(f"  {f'gap of {client}: p50/p99/max':>27}" for client in groups)
    lines = [f"{'fault':<20} {'count':>5}  {'healthy p50/max':>17}{columns}  outcomes"]
    for kind in sorted({fault.kind for fault in faults}):
        mine = [fault for fault in faults if fault.kind == kind]
        heals = [fault.healed_s for fault in mine]
        line = f"{kind:<20} {len(mine):>5}  {percentile(heals, 0.5):>8.2f} /{max(heals):>5.2f} s"
        for group in groups.values():
            gaps = [
                topic.longest_gap(fault.began, fault.healthy) for fault in mine for topic in group
            ]
            line += (
                f"  {percentile(gaps, 0.5):>10.2f} /{percentile(gaps, 0.99):>5.2f} "
                f"/{max(gaps):>5.2f} s"
            )
        outcomes = Counter(outcome for fault in mine for outcome in fault.outcomes)
        lines.append(
            line
            + "  "
            + ", ".join(f"{count} x {outcome}" for outcome, count in outcomes.most_common())
        )
    return lines


def summary(
    topics: Sequence[TopicHistory], found: Sequence[Violation], problems: Sequence[str]
) -> list[str]:
    """Totals and verdict."""
    stored = sum(len(entries) for topic in topics for entries in topic.stored.values())
    repeated = sum(
        len(entries) - len({message for _, message in entries})
        for topic in topics
        if not topic.deduplicated
        for entries in topic.stored.values()
    )
    subscriptions = [subscription for topic in topics for subscription in topic.subscriptions]
    partitions = sum(len(topic.partitions) for topic in topics)
    kinds = Counter(subscription.kind for subscription in subscriptions)
    lines = [
        f"messages: {sum(t.sent.total() for t in topics)} sent, "
        f"{sum(len(t.receipts) for t in topics)} acknowledged, {stored} stored",
        f"topics: {len(topics)} with {partitions} partitions, half of them deduplicated; stored "
        f"twice without deduplication: {repeated}",
        f"deliveries: {sum(len(s.delivered) for s in subscriptions)} to {len(subscriptions)} "
        "subscriptions"
        f" ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}),"
        f" {sum(len(s.confirmed) for s in subscriptions)} acknowledgements confirmed",
    ]
    lines += [f"PROBLEM  {problem}" for problem in problems]
    lines += [f"VIOLATION  {violation}" for violation in found[:VIOLATIONS_SHOWN_MAX]]
    if len(found) > VIOLATIONS_SHOWN_MAX:
        lines.append(f"... and {len(found) - VIOLATIONS_SHOWN_MAX} more violations")
    return lines
