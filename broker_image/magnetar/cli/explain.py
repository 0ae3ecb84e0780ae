"""`magnetar explain`.

Owns: how an explanation is laid out for people. Imports: rest, screen.
Invariant: every sentence is the server's own; the tables show facts of the same answer.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.amounts import size_text
from magnetar.cli.failures import WrongUsage
from magnetar.cli.names import target_of
from magnetar.cli.screen import Screen, broker_of
from magnetar.cli.session import Session
from magnetar.names import NamespaceName, TopicName

WIDTH = 110
FILES_SHOWN_MAX = 12


def run_explain(session: Session, target: str) -> None:
    """Explain a topic or a bundle."""
    name = target_of(target)
    if isinstance(name, NamespaceName):
        raise WrongUsage(
            f"{target} is a namespace",
            f"name a topic, or one of the bundles that `magnetar bundles list {target}` shows",
        )
    kind = "topic" if isinstance(name, TopicName) else "bundle"
    found = session.rest.get("/magnetar/v1/explain", {kind: str(name)})
    session.screen.show(found, lambda: render(session.screen, found))


def render(screen: Screen, facts: Mapping[str, Any]) -> None:
    """Sentences with small tables between them."""
    _sentences(screen, "", facts["summary"])
    holder = broker_of(facts["record"]["incarnation"]) if facts["record"] is not None else ""
    _sentences(screen, f"Why {holder or 'no broker'} has it", facts["why"])
    if facts.get("by_load"):
        _sentences(screen, "What load does to it", facts["by_load"])
    _chain(screen, facts)
    topic = facts["owned"]["topic"] if facts["owned"] is not None else None
    if topic is not None and topic["stored"]:
        _topic(screen, topic)
    if facts["partitions"]:
        screen.line("\nPartitions")
        screen.table(
            ("partition", "bundle", "owner"),
            [
                (row["topic"].rpartition("-")[2], row["bundle"], broker_of(row["owner"]) or "-")
                for row in facts["partitions"]
            ],
        )
    _sentences(screen, "What keeps its log files", facts["kept"])
    _files(screen, facts["log_files"]["files"])
    _sentences(screen, "If its owner died now", facts["if_owner_died"])


def _sentences(screen: Screen, title: str, sentences: Sequence[str]) -> None:
    if title:
        screen.line(f"\n{title}")
    for sentence in sentences:
        screen.line(textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False))


def _chain(screen: Screen, facts: Mapping[str, Any]) -> None:
    """The recovery chain, oldest term first."""
    recovery, manifest = facts["recovery"], facts["manifest"]
    if not recovery["chain"]:
        return
    screen.line("\nLog chain (what a new owner reads)")
    if recovery["checkpoint"] is not None:
        screen.line(f"checkpoint {recovery['checkpoint']}, then")
    rows = []
    for span in recovery["chain"]:
        size = size_text(span["bytes"]) if span["exact"] else f"<= {size_text(span['bytes'])}"
        rows.append(
            (span["incarnation"], span["epoch"], _place(span["from"]), _place(span["to"]), size)
        )
    screen.table(("log of", "epoch", "from", "to", "size"), rows)
    if manifest["error"] or not manifest["generation"]:
        return
    screen.line(
        f"manifest generation {manifest['generation']}: {manifest['files']} log files "
        f"({size_text(manifest['file_bytes'])}), "
        f"{manifest['segments']} segments ({size_text(manifest['segment_bytes'])})"
    )


def _place(position: Mapping[str, int] | None) -> str:
    return "now" if position is None else f"{position['file']}:{position['offset']}"


def _topic(screen: Screen, topic: Mapping[str, Any]) -> None:
    """Ledgers and cursors; a ledger id is made of the epoch of the term that wrote it, and a
    number."""
    if topic["ledgers"]:
        screen.line("\nLedgers (one per term in which something was published)")
        screen.table(
            ("ledger", "epoch", "entries"),
            [(row["ledger"], row["epoch"], row["entries"]) for row in topic["ledgers"]],
        )
    if topic["subscriptions"]:
        screen.line(f"\nCursors (the last entry is {topic['last_confirmed']})")
        screen.table(
            ("subscription", "acknowledged to", "backlog", "behind", "consumers"),
            [
                (
                    row["name"],
                    row["mark_delete"],
                    row["backlog"],
                    size_text(row["behind_bytes"]),
                    row["consumers"],
                )
                for row in topic["subscriptions"]
            ],
        )


def _files(screen: Screen, files: Sequence[Mapping[str, Any]]) -> None:
    if not files:
        return
    shown = files[:FILES_SHOWN_MAX]
    screen.table(
        ("log of", "file", "size", "kept for"),
        [
            (
                row["incarnation"],
                row["file"],
                size_text(row["bytes"]),
                ", ".join(_keepers(row["kept_by"])) or "nothing: it goes soon",
            )
            for row in shown
        ],
    )
    if len(files) > len(shown):
        screen.line(f"... and {len(files) - len(shown)} more; --output json has them")


def _keepers(kept_by: Sequence[Mapping[str, str]]) -> list[str]:
    reasons = ("recovery", "messages")
    counts = {why: sum(1 for keeper in kept_by if keeper["why"] == why) for why in reasons}
    return [
        f"{why} of {count} bundle{'s' if count > 1 else ''}"
        for why, count in counts.items()
        if count
    ]
