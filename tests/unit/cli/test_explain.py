"""Explanations: the words made of facts, and how they are laid out; golden, at a fixed width,
without a terminal."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

from magnetar.broker.administration.explanation import explain_in_words, reason_in_words
from magnetar.cli.explain import render
from magnetar.cli.screen import Screen

BUNDLE = "public/default/0x80000000_0xc0000000"
TOPIC = "persistent://public/default/t"
OWNER, FORMER = "broker-1.00000000000000b1", "broker-0.00000000000000a0"
FACTS: dict[str, Any] = {
    "topic": TOPIC,
    "hash": "0x823cd929",
    "namespace": "public/default",
    "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
    "bundle": BUNDLE,
    "number": 3,
    "bundles": 4,
    "record": {
        "state": "Owned",
        "epoch": 42,
        "restore": 0,
        "epoch_revision": 42,
        "incarnation": OWNER,
        "source": FORMER,
        "destination": "",
        "reason": f"{FORMER} is gone",
        "revision": 43,
        "terms": [9, 42],
        "pinned_until_ms": 0,
    },
    "owner": {
        "incarnation": OWNER,
        "broker": "broker-1",
        "alive": True,
        "service_url": "pulsar://b1:6650",
        "http_url": "http://b1:8080",
        "draining": False,
        "cordon": None,
    },
    "leader": {"incarnation": "broker-2.c2", "broker": "broker-2", "term": 17},
    "owned": {
        "broker": "broker-1",
        "incarnation": OWNER,
        "serving": True,
        "log_position": {"file": 3, "offset": 8192},
        "damage": [],
        "since_ms": 1_000_000,
        "topics": 2,
        "topic": {
            "stored": True,
            "created_ms": 1,
            "entries": 5,
            "bytes": 4096,
            "last_confirmed": "85:1",
            "next": "85:2",
            "terminated": False,
            "ledgers": [
                {"ledger": 19, "epoch": 9, "entries": 3},
                {"ledger": 85, "epoch": 42, "entries": 2},
            ],
            "ledgers_before": 0,
            "producers": 1,
            "subscriptions": [
                {
                    "name": "slow",
                    "durable": True,
                    "mark_delete": "19:0",
                    "backlog": 4,
                    "behind_bytes": 3072,
                    "ranges": 1,
                    "consumers": 0,
                }
            ],
            "subscriptions_total": 1,
            "pin": None,
        },
        "pins": [
            {
                "topic": TOPIC,
                "bytes": 4096,
                "entries": 5,
                "oldest": "19:0",
                "subscription": "slow",
                "waiting_entries": 4,
                "retained_entries": 1,
            }
        ],
    },
    "owner_silent": "",
    "exists": True,
    "partitions": [],
    "manifest": {
        "error": "",
        "object": "manifests/x",
        "generation": 2,
        "revision": 40,
        "covered": [9, 1],
        "files": 1,
        "file_bytes": 1 << 20,
        "segments": 0,
        "segment_bytes": 0,
        "topic_segments": 0,
        "topic_segment_bytes": 0,
        "compaction": 0,
        "compacted_to": "",
        "complete_to": "",
    },
    "recovery": {
        "checkpoint": "checkpoints/c",
        "chain": [
            {
                "incarnation": FORMER,
                "epoch": 9,
                "from": {"file": 1, "offset": 4096},
                "to": {"file": 1, "offset": 9000},
                "files": 1,
                "bytes": 4904,
                "exact": True,
            },
            {
                "incarnation": OWNER,
                "epoch": 42,
                "from": {"file": 3, "offset": 4096},
                "to": None,
                "files": 1,
                "bytes": 4096,
                "exact": True,
            },
        ],
        "files": 2,
        "bytes": 9000,
        "exact": True,
        "estimated_ms": 20,
    },
    "log_files": {
        "count": 1,
        "bytes": 1 << 20,
        "unread_manifests": 0,
        "files": [
            {
                "incarnation": FORMER,
                "file": 0,
                "bytes": 1 << 20,
                "kept_by": [
                    {"bundle": BUNDLE, "why": "messages"},
                    {"bundle": "public/default/0x00000000_0x40000000", "why": "messages"},
                ],
            }
        ],
    },
    "jobs": [],
    "new owners": {"first": "broker-2", "all": ["broker-2", "broker-3"]},
    "lease_s": 4.0,
    "now_ms": 1_300_000,
}

GOLDEN = f"""\
{TOPIC} hashes to 0x823cd929, which lies in bundle {BUNDLE},
number 3 of 4 of namespace public/default.
It holds 5 entries (4.0 KiB) in 2 ledgers, and has 1 producer and 1 subscription.
broker-1 (pulsar://b1:6650) has served it for 5 min, in epoch 42.
broker-2 leads the cluster, in term 17.

Why broker-1 has it
broker-0 had it and died: its lease ended, and broker-1 was the least loaded of those left.
It has changed hands once since its last checkpoint.

Log chain (what a new owner reads)
checkpoint checkpoints/c, then
LOG OF                     EPOCH  FROM    TO         SIZE
broker-0.00000000000000a0      9  1:4096  1:9000  4.8 KiB
broker-1.00000000000000b1     42  3:4096  now     4.0 KiB
manifest generation 2: 1 log files (1.0 MiB), 0 segments (0 B)

Ledgers (one per term in which something was published)
LEDGER  EPOCH  ENTRIES
    19      9        3
    85     42        2

Cursors (the last entry is 85:1)
SUBSCRIPTION  ACKNOWLEDGED TO  BACKLOG   BEHIND  CONSUMERS
slow          19:0                   4  3.0 KiB          0

What keeps its log files
1 sealed log file (1.0 MiB) is kept: 0 for its recovery, 1 for its messages.
Other bundles need some of them too: public/default/0x00000000_0x40000000.
{TOPIC} keeps 4.0 KiB from 19:0 on: subscription slow has not acknowledged 4 entries;
retention, or trimming that is yet to come, holds 1 entry.
LOG OF                     FILE     SIZE  KEPT FOR
broker-0.00000000000000a0     0  1.0 MiB  messages of 2 bundles

If its owner died now
Its lease ends 4 s after its last renewal; the leader then gives the bundle to broker-2 (or another of
broker-3, if loads change).
broker-2 removes the claim of broker-1 and seals its log: from then on nothing is acknowledged there.
It reads the checkpoint and about 2 log files, 8.8 KiB of log: some 20 ms.
Then clients go on; what was acknowledged is there.
"""


def facts(**changes: Any) -> dict[str, Any]:
    """The facts above with some of them replaced (`record__state` goes one level down)."""
    found = copy.deepcopy(FACTS)
    for path, value in changes.items():
        outer, _, inner = path.partition("__")
        if inner:
            found[outer][inner] = value
        else:
            found[outer] = value
    return found


def words(**changes: Any) -> dict[str, str]:
    return {name: " ".join(found) for name, found in explain_in_words(facts(**changes)).items()}


def test_the_whole_explanation() -> None:
    """Golden: short sentences with small tables between them."""
    out = io.StringIO()
    render(Screen(file=out), {**FACTS, **explain_in_words(FACTS)})
    assert out.getvalue() == GOLDEN


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("lookup", "No broker had it when a client looked up a topic of it"),
        ("broker-7.0a is gone", "broker-7 had it and died"),
        (
            "load balancing: from 140 to 101 % of the mean",
            "balances load: it moved this bundle from broker-0",
        ),
        ("unload requested", "An administrator unloaded it from broker-0"),
        ("broker stops", "Broker-0 shut down"),
        ("scale-down: magnetar-operator", "Broker-0 was drained (scale-down: magnetar-operator)"),
        ("drained by magnetar drain", "Broker-0 was drained"),
        (
            "merged from 0x00000000_0x40000000 and 0x40000000_0x80000000",
            "It was merged from 0x00000000_0x40000000 and 0x40000000_0x80000000",
        ),
        (
            "split from 0x00000000_0x80000000",
            "It is a part of 0x00000000_0x80000000, which was split",
        ),
        (
            "Assigning by broker-7.0a for 31 s",
            "broker-7 was to take it over and had not after 31 s",
        ),
        ("its namespace was deleted", "Its namespace was deleted"),
        ("", "gives no reason"),
        ("full moon", 'Its record gives as the reason: "full moon".'),
    ],
)
def test_every_reason_has_words(reason: str, expected: str) -> None:
    """Those that brokers write, and any other one as it is."""
    assert expected in reason_in_words(reason, "broker-1", "broker-0")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"record__state": "Assigning"}, "broker-1 is taking it over"),
        (
            {"record__state": "Assigning", "owned__damage": [{"error": "file x is missing"}]},
            "It cannot, so far: file x is missing.",
        ),
        (
            {"record__state": "Releasing", "record__destination": "broker-2.c2"},
            "transferring it to broker-2",
        ),
        ({"record__state": "Releasing"}, "transferring it to the least loaded broker"),
        ({"record__state": "Splitting"}, "broker-1 is splitting it"),
        ({"record__state": "Deleted", "owner": None, "owned": None}, "It was split"),
        ({"record__state": "Free", "owner": None, "owned": None}, "It is Free"),
        ({"record": None, "owner": None, "owned": None}, "No broker owns it or ever did"),
        ({"owner__alive": False, "owned": None}, "which is gone"),
        (
            {"owned": None, "owner_silent": "no answer in time"},
            "broker-1 does not answer (no answer in time)",
        ),
        (
            {"exists": False, "owned__topic": None},
            "No such topic exists; this is where it would be.",
        ),
        (
            {"topic": "non-persistent://public/default/t", "exists": False, "owned__topic": None},
            "live as long as they have clients",
        ),
        (
            {"manifest__compaction": 2, "manifest__compacted_to": "17:3"},
            "view, generation 2, stands for everything up to 17:3.",
        ),
        (
            {"manifest__complete_to": "17:4"},
            "all that they have published up to 17:4 is in segments",
        ),
        ({"manifest": {"error": "gone"}}, "broker-1"),
        ({"topic": None}, "This is bundle"),
        ({"leader": None}, "no leader now"),
        (
            {"partitions": [{"topic": f"{TOPIC}-partition-0", "bundle": BUNDLE, "owner": OWNER}]},
            "its 1 partition lie in 1 bundle, served by broker-1",
        ),
    ],
)
def test_what_is_said_of_every_state(changes: dict[str, Any], expected: str) -> None:
    """States of the record, owners that are gone or silent, topics that are not there."""
    assert expected in words(**changes)["summary"]


def test_what_would_happen() -> None:
    """Nobody to take it, a dead owner, no owner at all, an end of the log that only the owner
    knows."""
    nobody = {"new owners": {"first": "", "all": []}}
    assert "No other broker takes bundles now" in words(**nobody)["if_owner_died"]
    assert (
        "cannot be served before one comes"
        in words(**nobody, owner=None, owned=None, record__state="Free")["if_owner_died"]
    )
    assert "broker-1 is gone already" in words(owner__alive=False, owned=None)["if_owner_died"]
    assert (
        "A lookup would give it to broker-2"
        in words(owner=None, owned=None, record__state="Free")["if_owner_died"]
    )
    assert "at most about" in words(recovery__exact=False)["if_owner_died"]


def test_why_it_stays_where_it_is() -> None:
    """A pin names its broker and how long it holds, also on the way there; one that is over is
    not mentioned."""
    hour_ms = 3_600_000
    pinned = {"record__pinned_until_ms": FACTS["now_ms"] + 24 * hour_ms}
    assert "It is pinned to broker-1 for another 24.0 h" in words(**pinned)["why"]
    assert f"`magnetar bundles unpin {BUNDLE}` takes that back" in words(**pinned)["why"]
    leaving = {**pinned, "record__state": "Releasing", "record__destination": "broker-2.c2"}
    assert "It is pinned to broker-2" in words(**leaving)["why"]
    assert "pinned" not in words(record__pinned_until_ms=FACTS["now_ms"])["why"]


def test_why_it_is_about_to_leave_and_what_keeps_files() -> None:
    """Cordons, shutdowns, restores; jobs, damaged manifests, nothing at all."""
    assert "is cordoned (maintenance)" in words(owner__cordon="maintenance")["why"]
    assert "is shutting down" in words(owner__draining=True)["why"]
    assert "restored twice" in words(record__restore=2)["why"]
    assert "Job default/c/once works on it" in words(jobs=["default/c/once"])["kept"]
    assert "cannot be read: gone" in words(manifest__error="gone")["kept"]
    assert (
        "No sealed log file"
        in words(log_files={"count": 0, "bytes": 0, "files": [], "unread_manifests": 0})["kept"]
    )
