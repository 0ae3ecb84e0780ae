"""`magnetar top`: where the load is.

Owns: gathering rates from every broker, their order and their layout. Imports: rest, screen.
Invariants: a topic's figures come from the broker that serves it; a broker that does not answer
from here is named, and the others are shown; one look asks each broker once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from magnetar.amounts import size_text
from magnetar.cli.rest import Rest
from magnetar.cli.screen import Screen, broker_of
from magnetar.cli.session import Session
from magnetar.errors import MagnetarError

ASKED_PARALLEL_MAX = 8
TIMEOUT_S = 10.0
CLEAR = "\x1b[H\x1b[2J"
ORDERS = {
    "rate": lambda row: row["in"] + row["out"],
    "throughput": lambda row: row["bytes_in"] + row["bytes_out"],
    "backlog": lambda row: row["backlog"],
}
"""What topics and bundles are ordered by: messages/s, bytes/s, messages that wait."""


def run_top(session: Session, order: str, count: int, watch_s: float) -> None:
    """Show the load once, or every `watch_s` seconds until interrupted."""
    while True:
        value = look(session.rest, order, count)
        if watch_s and session.screen.terminal:
            session.screen.line(CLEAR)
        session.screen.show(value, lambda shown=value: _render(session.screen, shown, order))  # type: ignore[misc]
        if not watch_s:
            return
        threading.Event().wait(watch_s)


def look(rest: Rest, order: str, count: int) -> dict[str, Any]:
    """Brokers, and the `count` (0 = all) bundles and topics with most of `order`."""
    status = rest.get("/magnetar/v1/status")
    live = [row for row in status["brokers"] if row["http_url"]]
    silent: list[str] = []
    topics: list[dict[str, Any]] = []
    with ThreadPoolExecutor(ASKED_PARALLEL_MAX) as pool:
        for row, found in zip(live, pool.map(lambda row: _topics_of(rest, row), live), strict=True):
            if found is None:
                silent.append(f"{row['broker']} ({row['http_url']}) does not answer from here")
            else:
                topics += _rows(row["broker"], found)
    bundles = _bundles(topics, status["bundles"])
    balance, why = _balance(rest)
    if why:
        silent.append(why)
    shares = balance["brokers"] if balance is not None else {}
    return {
        "brokers": [
            {
                **row,
                "backlog": sum(
                    topic["backlog"] for topic in topics if topic["broker"] == row["broker"]
                ),
                "load": shares.get(row["broker"], {}).get("share"),
                "load_before": shares.get(row["broker"], {}).get("share_before"),
            }
            for row in status["brokers"]
        ],
        "bundles": _first(bundles, order, count),
        "topics": _first(topics, order, count),
        "silent": silent,
        "balance": balance
        and {name: balance[name] for name in ("strategy", "imbalance", "trend", "moves")},
    }


def _balance(rest: Rest) -> tuple[dict[str, Any] | None, str]:
    """Load balancing as the leader sees it, or why it is not known."""
    try:
        asked = rest.at(",".join(rest.urls), TIMEOUT_S)
        found: dict[str, Any] = asked.get("/magnetar/v1/balance")
    except MagnetarError as error:
        return None, f"load against the mean is not known: {error}"
    return found, ""


def _address(rest: Rest, broker: Mapping[str, Any]) -> str:
    """A broker's REST, by TLS if we came by it and it has that."""
    secure = broker.get("http_url_tls") if rest.urls[0].startswith("https:") else ""
    return str(secure or broker["http_url"])


def _topics_of(rest: Rest, broker: Mapping[str, Any]) -> dict[str, Any] | None:
    """Statistics of all topics that a broker serves, None if it does not answer."""
    try:
        found: dict[str, Any] = rest.at(_address(rest, broker), TIMEOUT_S).get(
            "/admin/v2/broker-stats/topics"
        )
    except MagnetarError:
        return None
    return found


def _rows(broker: str, found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for namespace, bundles in found.items():
        for span, kinds in bundles.items():
            for topics in kinds.values():
                for name, stats in topics.items():
                    backlogs = [
                        int(row.get("msgBacklog", 0))
                        for row in stats.get("subscriptions", {}).values()
                    ]
                    yield {
                        "topic": name,
                        "bundle": f"{namespace}/{span}",
                        "broker": broker,
                        "in": stats["msgRateIn"],
                        "out": stats["msgRateOut"],
                        "bytes_in": stats["msgThroughputIn"],
                        "bytes_out": stats["msgThroughputOut"],
                        "backlog": sum(backlogs),
                        "producers": len(stats.get("publishers", ())),
                        "subscriptions": len(backlogs),
                    }


def _bundles(
    topics: Iterable[Mapping[str, Any]], known: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Sums of their topics; a bundle without any counts 0."""
    sums = {
        row["bundle"]: {
            "bundle": row["bundle"], "broker": broker_of(row["owner"]), "topics": 0,
            "in": 0.0, "out": 0.0, "bytes_in": 0.0, "bytes_out": 0.0, "backlog": 0,
        }
        for row in known
    }  # fmt: skip
    for topic in topics:
        row = sums.get(topic["bundle"])
        if row is not None:
            row["topics"] += 1
            for name in ("in", "out", "bytes_in", "bytes_out", "backlog"):
                row[name] += topic[name]
    return list(sums.values())


def _first(rows: list[dict[str, Any]], order: str, count: int) -> list[dict[str, Any]]:
    name = "topic" if rows and "topic" in rows[0] else "bundle"
    ordered = sorted(rows, key=lambda row: (-ORDERS[order](row), row[name]))
    return ordered[:count] if count else ordered


def _render(screen: Screen, value: Mapping[str, Any], order: str) -> None:
    screen.table(
        (
            "broker",
            "state",
            "bundles",
            "topics",
            "in msg/s",
            "out msg/s",
            "backlog",
            "cpu",
            "memory",
            "load",
            "trend",
        ),
        [
            (
                row["broker"],
                row["state"],
                row["bundles"],
                row["topics"],
                row["in"],
                row["out"],
                row["backlog"],
                _percent(row["cpu"]),
                _percent(row["memory"]),
                _percent(row["load"]),
                _trend(row["load"], row["load_before"]),
            )
            for row in value["brokers"]
        ],
    )
    if value["balance"] is not None:
        screen.line(_imbalance(value["balance"]))
    for what in ("bundle", "topic"):
        rows = value[f"{what}s"]
        if not rows:
            continue
        screen.line(f"\n{what.capitalize()}s by {order}")
        screen.table(
            (what, "broker", "in msg/s", "out msg/s", "in B/s", "out B/s", "backlog"),
            [
                (
                    row[what],
                    row["broker"] or "-",
                    row["in"],
                    row["out"],
                    size_text(row["bytes_in"]),
                    size_text(row["bytes_out"]),
                    row["backlog"],
                )
                for row in rows
            ],
        )
    for sentence in value["silent"]:
        screen.line(f"note: {sentence}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}%"


def _trend(now: float | None, before: float | None) -> str:
    """What a broker's share has changed by within the last ten minutes."""
    return "-" if now is None or before is None else f"{(now - before) * 100:+.1f}"


def _imbalance(balance: Mapping[str, Any]) -> str:
    """The fullest broker against the mean, now and within the last hour."""
    found = [sample["imbalance"] for sample in balance["trend"]]
    hour = f", {min(found):.2f} to {max(found):.2f} within the hour" if found else ""
    moves = balance["moves"]
    left = moves["under_way_total"] + moves["waiting"]
    return (
        f"\nimbalance (max/mean) {balance['imbalance']:.2f}{hour}; {balance['strategy']}, "
        f"{left or 'no'} move{'' if left == 1 else 's'} under way"
    )
