"""The command line against three real brokers on a real etcd: topics, subscriptions, messages and
namespaces, its words and its JSON, and what errors say.

Names of topics are each test's own; the cluster is shared and healthy between tests.
"""

from __future__ import annotations

import json
import shlex

import pytest

from dev.ports import free_port
from tests.clients.program import Program
from tests.support.cli_guide import commands

pytestmark = [pytest.mark.slow]


def test_topics_from_birth_to_end(program: Program) -> None:
    """Create, list, grow, stats, terminate, delete; with and without partitions, wherever they
    are served."""
    program.ok("topics", "create", "cli-plain", "--property", "team=a")
    program.ok("topics", "create", "cli-parts", "-p", "3")
    listed = {row["topic"]: row["partitions"] for row in program.json("topics", "list")}
    assert (
        listed["persistent://public/default/cli-plain"],
        listed["persistent://public/default/cli-parts"],
    ) == (0, 3)
    assert program.json("topics", "partitions", "cli-parts", "--set", "4")["partitions"] == 4
    assert (
        program.ok("produce", "cli-parts", "-m", "a", "-m", "b", "-n", "4")
        == "8 messages published and durable\n"
    )
    assert "cli-parts-partition-3" in program.ok("topics", "list", "--partitions")
    stats = program.json("topics", "stats", "cli-parts")
    assert (stats["msgInCounter"], stats["metadata"]["partitions"]) == (8, 4)
    program.ok("produce", "cli-plain", "-m", "x", "-k", "k")
    assert "LEDGER" in program.ok("topics", "stats", "cli-plain", "--internal")
    assert "stored" in program.ok("topics", "stats", "cli-plain")
    assert "terminated" in program.ok("topics", "terminate", "cli-plain")
    assert "terminated" in program.refused("produce", "cli-plain", "-m", "y")
    assert len(program.json("topics", "terminate", "cli-parts")["last"]) == 4
    for name in ("cli-plain", "cli-parts"):
        program.ok("topics", "delete", name)
        assert "cli-" in program.refused("topics", "stats", name)


def test_what_was_produced_is_consumed(program: Program) -> None:
    """Stdin and arguments, keys and properties, types, a timeout that is a failure, messages
    that stay when they are not acknowledged."""
    program.ok(
        "produce",
        "cli-messages",
        "-k",
        "k",
        "--property",
        "p=1",
        "--rate",
        "1000",
        text="one\ntwo\n\xfc",
    )
    peeked = program.json("topics", "peek", "cli-messages", "-n", "5")
    assert [row["value"] for row in peeked] == ["one", "two", "ü"]
    program.ok(
        "consume",
        "cli-messages",
        "-s",
        "s",
        "-p",
        "earliest",
        "-n",
        "2",
        "--no-ack",
        "-t",
        "shared",
    )
    lines = program.ok(
        "consume", "cli-messages", "-s", "s", "-n", "2", "-t", "shared", "-o", "json"
    ).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["value"], row["key"], row["properties"]) for row in rows] == [
        ("one", "k", {"p": "1"}),
        ("two", "k", {"p": "1"}),
    ]
    assert [
        row["value"] for row in program.json("topics", "peek", "cli-messages", "-s", "s", "-n", "9")
    ] == ["ü"]
    assert program.ok(
        "consume", "cli-messages", "-s", "s", "-t", "shared", "--timeout", "10"
    ).endswith(" ü\n")
    assert "0 of 1 messages came" in program.refused(
        "consume", "cli-messages", "-s", "s", "-t", "shared", "-n", "1", "--timeout", "0.5"
    )


def test_subscriptions_go_where_they_are_sent(program: Program) -> None:
    """Create at both ends and at an id, skip, clear, back by time, stats, delete; names of what
    is missing."""
    program.ok("produce", "cli-cursors", text="".join(f"{number}\n" for number in range(10)))
    name = "cli-cursors"
    program.ok("subscriptions", "create", name, "begin", "--from", "earliest", "--property", "a=b")
    program.ok("subscriptions", "create", name, "end")
    program.ok("subscriptions", "create", name, "hour", "--from", "1h")
    third = program.json("topics", "peek", name, "-n", "3")[2]["id"]
    assert program.json("subscriptions", "list", name) == ["begin", "end", "hour"]

    def backlog(subscription: str) -> int:
        return int(
            program.json("subscriptions", "stats", name, subscription)[subscription]["msgBacklog"]
        )

    assert (backlog("begin"), backlog("end"), backlog("hour")) == (10, 0, 10)
    program.ok("subscriptions", "skip", name, "begin", "-n", "4")
    assert backlog("begin") == 6
    program.ok("subscriptions", "reset", name, "begin", "--to", third)
    assert backlog("begin") == 8
    program.ok("subscriptions", "clear", name, "begin")
    assert backlog("begin") == 0
    for target, left in (("earliest", 10), ("latest", 0), ("2h", 10)):
        program.ok("subscriptions", "reset", name, "begin", "--to", target)
        assert backlog("begin") == left
    assert "begin" in program.ok("subscriptions", "stats", name)
    assert "has no subscription other" in program.refused("subscriptions", "stats", name, "other")
    assert "already exists" in program.refused("subscriptions", "create", name, "end")
    program.ok("subscriptions", "delete", name, "end")
    assert program.json("subscriptions", "list", name) == ["begin", "hour"]


def test_namespaces_and_their_policies(program: Program) -> None:
    """Create, list, policies set, got and taken away, a value that is refused with its bounds,
    delete."""
    program.ok("namespaces", "create", "cli-tenant/n", "--bundles", "3")
    assert {
        row["namespace"]: row["bundles"] for row in program.json("namespaces", "list", "cli-tenant")
    } == {"cli-tenant/n": 3}
    program.ok(
        "namespaces",
        "policies",
        "set",
        "cli-tenant/n",
        "message_ttl_in_seconds=60",
        "deduplicationEnabled=true",
    )
    program.ok(
        "namespaces",
        "policies",
        "set",
        "cli-tenant/n",
        "retention_policies={retentionTimeInMinutes: 5, retentionSizeInMB: 6}",
    )
    assert program.json("namespaces", "policies", "get", "cli-tenant/n") == {
        "message_ttl_in_seconds": 60,
        "deduplicationEnabled": True,
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6},
    }
    program.ok("namespaces", "policies", "set", "cli-tenant/n", "deduplicationEnabled=null")
    assert "not set" in program.ok(
        "namespaces", "policies", "get", "cli-tenant/n", "deduplicationEnabled"
    )
    assert "message_ttl_in_seconds" in program.refused(
        "namespaces", "policies", "set", "cli-tenant/n", "message_ttl_in_seconds=soon"
    )
    program.ok("topics", "create", "persistent://cli-tenant/n/t")
    assert "non empty" in program.refused("namespaces", "delete", "cli-tenant/n")
    program.ok("namespaces", "delete", "cli-tenant/n", "--force")
    assert "does not exist" in program.refused("topics", "list", "cli-tenant/n")


def test_the_guides_commands_for_clusters_succeed(program: Program) -> None:
    """As they stand there, one after the other."""
    program.ok("topics", "create", "cli-guide")
    listed = commands("cluster")
    assert listed
    for line in listed:
        program.ok(*shlex.split(line)[1:])


def test_errors_say_what_to_do(program: Program) -> None:
    """Nobody there is 3, wrong usage 2, refusals 1; a remedy each time."""
    nowhere = f"127.0.0.1:{free_port()}"
    for command in (("status",), ("topics", "list"), ("explain", "t")):
        assert "Is the server running" in program.refused(
            *command, "--url", f"http://{nowhere}", code=3
        )
    assert "Is the server running" in program.refused(
        "produce", "t", "-m", "x", "--service-url", f"pulsar://{nowhere}", code=3
    )
    assert "is not valid" in program.refused("topics", "stats", "x://y", code=2)
    assert "write http://host:port" in program.refused(
        "status", "--url", "localhost", code=2
    ).replace("Write", "write")
    assert "topics list" in program.refused("topics", "delete", "cli-never-was")
    assert "Create no/where" in program.refused("produce", "persistent://no/where/t", "-m", "x")


def test_a_cluster_without_kubernetes_takes_namespaces_only(program: Program) -> None:
    """What needs Kubernetes is named and skipped."""
    rows = {
        row["resource"]: row["outcome"]
        for row in program.json("apply", "-f", "examples/quickstart")
    }
    assert rows["brokercluster/main"].startswith("skipped")
    assert "kubectl apply" in rows["brokercluster/main"]
    assert rows["topicnamespace/demo"] in ("created", "unchanged")
    assert rows["transactioncoordinator/main"].startswith("skipped")
