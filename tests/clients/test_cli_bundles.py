"""Bundles by the command line, against three real brokers on a real etcd: they are moved, split,
merged and drained, and `status` and `explain` report it.

Names of topics are each test's own; the cluster is shared and healthy between tests.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from dev.testbed.cluster import Cluster, wait_for
from magnetar.topics.ledger_ids import epoch_of
from tests.clients.program import Program

pytestmark = [pytest.mark.slow]


def seen(program: Program) -> Any:
    """What `status` shows, healthy or not."""
    return json.loads(program.run("status", "--output", "json").stdout)


def at_rest(program: Program) -> None:
    """Until the broker that is asked knows of no bundle that is on its way."""
    wait_for("no bundle is on its way", lambda: bool(seen(program)["healthy"]))


def test_bundles_move_where_they_are_sent(program: Program, cluster: Cluster) -> None:
    """A topic, a bundle and a whole namespace leave their owners; what has no owner is said to
    be unused."""
    program.ok("namespaces", "create", "cli-moves/n", "--bundles", "8")
    topics = [f"persistent://cli-moves/n/t{number}" for number in range(6)]
    for topic in topics:
        program.ok("topics", "create", topic)
    first = program.json("bundles", "owner", topics[0])
    target = next(name for name in cluster.brokers if name != first["broker"])
    moved = program.json("unload", topics[0], "--to", target)
    assert [(row["bundle"], row["from"], row["to"]) for row in moved["bundles"]] == [
        (first["bundle"], first["broker"], target)
    ]
    at_rest(program)
    again = program.json("unload", topics[0], "--to", target)
    assert [(row["from"], row["to"], row["moved"]) for row in again["bundles"]] == [
        (target, target, False)
    ]
    assert any(
        f"pinned to {target} for another 2" in sentence
        for sentence in program.json("explain", first["bundle"])["why"]
    )
    program.ok("bundles", "unpin", topics[0])
    assert not program.json("bundles", "owner", topics[0])["pinned_until_ms"]
    assert "is pinned" in program.ok("bundles", "pin", first["bundle"], "--seconds", "60")
    assert program.json("bundles", "unload", first["bundle"])["bundles"][0]["from"] == target
    at_rest(program)
    used = {
        row["bundle"]
        for row in program.json("bundles", "list", "cli-moves/n")
        if row["state"] == "Owned"
    }
    result = program.json("unload", "cli-moves/n")
    assert {row["bundle"] for row in result["bundles"]} == used
    assert (
        set(result["unused"])
        == {row["bundle"] for row in program.json("bundles", "list", "cli-moves/n")} - used
    )
    assert "is not a live broker" in program.refused("unload", topics[0], "--to", "nobody")
    assert "cli-moves/n/0x" in program.ok("bundles", "list", "--broker", target) + program.ok(
        "bundles", "list", "cli-moves/n"
    )
    assert "name a topic" in program.refused("bundles", "owner", "cli-moves/n", code=2).lower()


def test_a_bundle_is_split_under_its_topics(program: Program) -> None:
    """In the middle, then at a given place, and two parts merged; topics stay where they were,
    explanations name the parent."""
    program.ok("namespaces", "create", "cli-splits/n", "--bundles", "1")
    topic = "persistent://cli-splits/n/t"
    program.ok("produce", topic, "-m", "before")
    owner = program.json("bundles", "owner", topic)
    children = program.json("bundles", "split", owner["bundle"])["children"]
    assert children == ["cli-splits/n/0x00000000_0x7fffffff", "cli-splits/n/0x7fffffff_0xffffffff"]
    at_rest(program)
    wait_for(
        "the split is known", lambda: len(program.json("bundles", "list", "cli-splits/n")) == 2
    )
    part = program.json("bundles", "owner", topic)
    assert (part["bundle"] in children, part["broker"]) == (True, owner["broker"])
    found = program.json("explain", topic)
    assert (found["bundle"], found["bundles"], found["owned"]["topic"]["entries"]) == (
        part["bundle"],
        2,
        1,
    )
    assert "which was split" in " ".join(found["why"])
    program.ok("bundles", "split", children[0], "--at", "0x10000000", "--at", "0x20000000")
    wait_for(
        "the split is known", lambda: len(program.json("bundles", "list", "cli-splits/n")) == 4
    )
    assert program.refused("bundles", "split", children[0])
    merged = program.json("bundles", "merge", "cli-splits/n/0x00000000_0x10000000")["merged"]
    assert merged == "cli-splits/n/0x00000000_0x20000000"
    wait_for(
        "the merge is known", lambda: len(program.json("bundles", "list", "cli-splits/n")) == 3
    )
    assert "the last of its namespace" in program.refused("bundles", "merge", children[1])
    assert [row["value"] for row in program.json("topics", "peek", topic, "-n", "5")] == ["before"]


def test_a_broker_is_drained_and_comes_back(program: Program, cluster: Cluster) -> None:
    """A plan first, then all of its bundles leave, status says cordoned, and undo lets it take
    some again."""
    for number in range(6):
        program.ok("topics", "create", f"cli-drain-{number}")
    name = next(row["broker"] for row in seen(program)["brokers"] if row["bundles"])
    plan = program.json("drain", name, "--dry-run")
    assert (plan["possible"], name in plan["candidates"], len(plan["bundles"]) > 0) == (
        True,
        False,
        True,
    )
    assert program.json("drain", name)["drained"] is True
    wait_for("everybody knows that it is empty", lambda: cluster.owned_by(name) == [])
    states = lambda: {row["broker"]: row["state"] for row in seen(program)["brokers"]}  # noqa: E731
    wait_for("everybody knows that it is cordoned", lambda: states()[name] == "cordoned")
    program.ok("drain", name, "--undo")
    assert "not cordoned" in program.refused("drain", name, "--undo")
    assert "no live broker" in program.refused("drain", "nobody")
    assert "no live broker" in program.refused("drain", "nobody", "--dry-run")


def test_status_is_health(program: Program, cluster: Cluster) -> None:
    """Healthy is exit 0; a broker that died is a problem until its bundles are owned again."""
    at_rest(program)
    value = seen(program)
    assert (value["healthy"], value["problems"], value["damage"], value["unreachable"]) == (
        True,
        [],
        [],
        [],
    )
    assert {row["broker"] for row in value["brokers"]} == set(cluster.brokers)
    assert "healthy" in program.ok("status", "--bundles")
    for row in value["brokers"]:
        assert row["http_url"].startswith("http://")
    victim = next(name for name in cluster.brokers if name != cluster.entry)
    cluster.brokers[victim].kill()
    sick = program.run("status", "--output", "json")
    problems = json.loads(sick.stdout)["problems"]
    assert (sick.returncode, bool(problems)) == (1, True)
    assert any(victim in problem for problem in problems)

    def healthy() -> bool:
        return program.run("status").returncode == 0

    wait_for("the others own everything", healthy)


def test_explain_shows_owner_epoch_chain_and_why(program: Program, cluster: Cluster) -> None:
    """The same facts at every broker, loaded or absent topic, after a lookup, after a move,
    after a death."""
    topic = "persistent://public/default/cli-explained"
    absent = program.json("explain", "cli-absent-topic")
    assert (absent["exists"], "No such topic exists" in " ".join(absent["summary"])) == (
        False,
        True,
    )
    assert {row["bundle"] for row in program.json("bundles", "list", "public/default")} >= {
        absent["bundle"]
    }
    program.ok("produce", topic, "-m", "a", "-m", "b")
    program.ok("subscriptions", "create", topic, "slow", "--from", "earliest")
    owner = cluster.owner("cli-explained")
    answers: list[Any] = []

    def alike() -> bool:
        """Whether every broker has learned of the same record: a checkpoint may have changed it
        between two questions."""
        asked = [
            Program(broker.http_url, cluster.service_url) for broker in cluster.brokers.values()
        ]
        answers[:] = [one.json("explain", topic) for one in asked]
        return len({json.dumps(found["record"]) for found in answers}) == 1

    wait_for("all brokers tell of the same record", alike)
    for found in answers:
        assert found["owner"]["broker"] == owner
        assert found["record"]["state"] == "Owned"
        assert (
            found["record"]["epoch"]
            == found["recovery"]["chain"][-1]["epoch"]
            == epoch_of(found["owned"]["topic"]["ledgers"][-1]["ledger"])
        )
        assert found["recovery"]["chain"][-1]["incarnation"] == found["owner"]["incarnation"]
        assert found["leader"]["broker"] in cluster.brokers
        assert [row["name"] for row in found["owned"]["topic"]["subscriptions"]] == ["slow"]
        assert any(
            "subscription slow has not acknowledged 2 entries" in sentence
            for sentence in found["kept"]
        )
    target = next(name for name in cluster.brokers if name != owner and name != cluster.entry)
    program.ok("unload", topic, "--to", target)
    program.ok("produce", topic, "-m", "c")
    at_rest(program)
    moved = program.json("explain", topic)
    assert moved["owner"]["broker"] == target
    assert len(moved["owned"]["topic"]["ledgers"]) == 2
    assert any("unloaded" in sentence and owner in sentence for sentence in moved["why"]), moved[
        "why"
    ]
    cluster.brokers[target].kill()
    wait_for(
        "the dead owner's bundle is taken over", lambda: cluster.owner("cli-explained") != target
    )
    at_rest(program)
    after = program.json("explain", topic)
    assert after["record"]["epoch"] > moved["record"]["epoch"]
    assert any(f"{target} had it and died" in sentence for sentence in after["why"]), after["why"]
    shown = program.ok("explain", topic)
    for words in (
        "Log chain",
        "Ledgers",
        "Cursors",
        "What keeps its log files",
        "If its owner died now",
        topic,
    ):
        assert words in shown
    by_bundle = program.json("explain", after["bundle"])
    assert (by_bundle["topic"], by_bundle["bundle"]) == (None, after["bundle"])


def test_explain_without_its_owner(program: Program, cluster: Cluster) -> None:
    """A paused owner does not answer: everything that store and volume know is shown all
    the same."""
    topic = "persistent://public/default/cli-silent"
    program.ok("produce", topic, "-m", "a")
    owner = cluster.owner("cli-silent")
    other = next(broker for name, broker in cluster.brokers.items() if name != owner)
    paused = cluster.brokers[owner]
    paused.signal(signal.SIGSTOP)
    try:
        found = Program(other.http_url, cluster.service_url).json("explain", topic)
    finally:
        paused.signal(signal.SIGCONT)
    assert (found["exists"], found["topic"]) == (True, topic)
    assert found["record"]["epoch"] > 0
    assert found["if_owner_died"]


def test_explain_of_what_cannot_be_meant(program: Program) -> None:
    """A namespace is wrong usage; one that is not there, or a bundle that is none, is refused
    with what to do."""
    assert "is a namespace" in program.refused("explain", "public/default", code=2)
    assert "does not exist" in program.refused("explain", "persistent://no/where/t")
    assert "is not one of the 4" in program.refused(
        "explain", "public/default/0x00000000_0x10000000"
    )
