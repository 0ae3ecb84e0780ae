"""The command line against three real brokers on a real etcd, and against a standalone server:
every command, its words and its JSON.

Cluster first: names of topics are each test's own, the cluster is shared and healthy between tests.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.ports import free_port
from dev.server_process import ServerProcess
from dev.testbed.cluster import STILL, Cluster, wait_for
from magnetar.topics.ledger_ids import epoch_of
from tests.clients.program import ROOT, Program
from tests.support.cli_guide import commands
from tests.support.namespaces import FULL

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nobody but the tests moves bundles; leases last for as long as a busy machine may need to
    look at what an end of a broker looks like."""
    with Cluster(
        tmp_path_factory.mktemp("cluster"), environment={**STILL, "MAGNETAR_LEASE_TTL_S": "10"}
    ) as running:
        yield running


@pytest.fixture
def program(cluster: Cluster) -> Program:
    """Knows all brokers by REST, the first of which does not exist."""
    cluster.repair()
    urls = [
        f"http://127.0.0.1:{free_port()}",
        *(broker.http_url for broker in cluster.brokers.values()),
    ]
    return Program(",".join(urls), cluster.service_url)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("standalone")) as process:
        yield process


@pytest.fixture
def alone(standalone: ServerProcess) -> Program:
    return Program(standalone.http_url, standalone.service_url)


def seen(program: Program) -> Any:
    """What `status` tells, healthy or not."""
    return json.loads(program.run("status", "--output", "json").stdout)


def at_rest(program: Program) -> None:
    """Until the broker that is asked knows of no bundle that is on its way."""
    wait_for("no bundle is on its way", lambda: bool(seen(program)["healthy"]))


# --- topics, subscriptions, messages --------------------------------------------------------------


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


def test_subscriptions_go_where_they_are_told(program: Program) -> None:
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


# --- bundles, moves, health -----------------------------------------------------------------------


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


def test_the_guides_commands_for_clusters_succeed(program: Program) -> None:
    """As they stand there, one after the other."""
    program.ok("topics", "create", "cli-guide")
    listed = commands("cluster")
    assert listed
    for line in listed:
        program.ok(*shlex.split(line)[1:])


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


# --- explain --------------------------------------------------------------------------------------


def test_explain_tells_owner_epoch_chain_and_why(program: Program, cluster: Cluster) -> None:
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
    """A paused owner does not answer: everything that store and volume know is told all the
    same."""
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


# --- errors, standalone ---------------------------------------------------------------------------


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


def test_manifests_on_a_standalone_server(alone: Program, tmp_path: Path) -> None:
    """The quickstart is applied, again without a change, then changed; a bad file changes
    nothing and is named with its field."""
    first = alone.json("apply", "-f", "examples/quickstart")
    assert [row["outcome"].partition(" ")[0] for row in first] == [
        "unchanged",
        "created",
        "skipped",
    ]
    again = alone.json("apply", "-f", "examples/quickstart")
    assert [row["outcome"].partition(" ")[0] for row in again] == [
        "unchanged",
        "unchanged",
        "skipped",
    ]
    text = (ROOT / "examples/quickstart/2-namespace.yaml").read_text()
    changed = tmp_path / "namespace.yaml"
    changed.write_text(text.replace("retentionTimeInMinutes: 60", "retentionTimeInMinutes: 61"))
    assert (
        alone.ok("apply", "-f", str(changed))
        == "topicnamespace/demo configured (retention_policies)\n"
    )
    assert (
        alone.json("namespaces", "policies", "get", "public/demo")["retention_policies"][
            "retentionTimeInMinutes"
        ]
        == 61
    )
    changed.write_text(
        f"{text.replace('retentionTimeInMinutes: 60', 'retentionTimeInMinutes: 62')}---\n{text.replace('bundles: 4', 'bundles: 0')}"
    )
    assert "bundles" in alone.refused("apply", "-f", str(changed))
    assert (
        alone.json("namespaces", "policies", "get", "public/demo")["retention_policies"][
            "retentionTimeInMinutes"
        ]
        == 61
    )
    outcomes = {
        row["resource"]: row["outcome"]
        for row in alone.json("apply", "--dry-run", "-f", "examples")
    }
    assert outcomes["datajob/volume-report"] == "valid"
    assert outcomes["configmap/volume-report"].startswith("skipped (only Kubernetes")
    assert "does not exist" in alone.refused("apply", "-f", str(tmp_path / "none.yaml"), code=2)


def test_a_manifest_means_the_same_without_kubernetes(alone: Program, tmp_path: Path) -> None:
    """Every policy, permissions, properties and the tenant; what it does not name stays; owners
    are shown, and nobody owns anything here."""
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1", "kind": "TopicNamespace", "metadata": {"name": "full"},
        "spec": {
            "clusterRef": {"name": "main"}, "tenant": "full", "namespace": "all", "policies": FULL,
            "permissions": {"alice": ["produce"]}, "properties": {"team": "blue"}, "tenantConfig": {"adminRoles": ["root"]},
        },
    }  # fmt: skip
    file = tmp_path / "full.yaml"
    file.write_text(json.dumps(manifest))
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == "created"
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == "unchanged"
    found = alone.json("namespaces", "policies", "get", "full/all")
    assert found["retention_policies"] == FULL["retention_policies"]
    assert found["backlog_quota_map"]["message_age"]["limitTime"] == 86400
    assert found["properties"] == {"team": "blue"}

    alone.ok(
        "namespaces",
        "policies",
        "set",
        "full/all",
        "message_ttl_in_seconds=1",
        "properties={team: red, cost: low}",
        "anti_affinity=g",
    )
    done = "configured (message_ttl_in_seconds, properties.team)"
    assert alone.json("apply", "-f", str(file))[0]["outcome"] == done
    found = alone.json("namespaces", "policies", "get", "full/all")
    assert (found["message_ttl_in_seconds"], found["anti_affinity"]) == (3600, "g")
    assert found["properties"] == {"team": "blue", "cost": "low"}

    assert alone.json("namespaces", "owner", "full/all") == {"owner": "", "owned": []}
    assert alone.ok("namespaces", "owner", "full/all", "--release") == "nobody owns full/all\n"
    assert {row["owner"] for row in alone.json("namespaces", "list")} == {""}


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


def test_a_drain_that_nobody_could_take_is_refused(alone: Program) -> None:
    """A standalone server has nobody to transfer to; the plan says so too."""
    assert "no broker but standalone takes bundles" in alone.refused("drain", "standalone")
    plan = alone.run("drain", "standalone", "--dry-run", "-o", "json")
    assert (plan.returncode, json.loads(plan.stdout)["possible"]) == (1, False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(alone: Program, shell: str) -> None:
    assert "_MAGNETAR_COMPLETE" in alone.ok("completion", shell)


def test_scripts_may_read_yaml_too(alone: Program) -> None:
    assert "healthy: true" in alone.ok("status", "-o", "yaml")
