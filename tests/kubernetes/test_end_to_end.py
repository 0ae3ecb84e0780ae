"""The product on a real node: scale by editing, drain, forced deletion, Spark; under traffic from
the official Python client.

The tests run in this order and share one cluster, as a user's day would.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dev import cluster
from tests.kubernetes.conftest import READY_S, Node, Traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]
STEADY_MESSAGES = 5000
FLOOD_S, FLOOD_PAUSE_S = 45.0, 0.2
"""Three periods of the probes and more."""
FLOOD_CONNECTIONS, FLOOD_STEP = 1_200, 50
"""Held on each port at a time, and opened there between two pauses at most."""
FLOOD_OPENED_MIN = 2 * FLOOD_CONNECTIONS
COMPACTED_TOPIC = "persistent://public/demo/debian-packages"


def _is_settled(node: Node, replicas: int) -> bool:
    found = node.get("brokercluster", "main")
    status = found.get("status", {})
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("replicas") == replicas
        and status.get("readyReplicas") == replicas
        and all(map(_is_ready, _broker_pods(node).values()))
        and node.condition("brokercluster", "main", "Ready") == "True"
    )


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions", [])
    )


def _scale(node: Node, replicas: int) -> float:
    """`kubectl scale` and wait until the cluster has settled there; seconds."""
    node.run("scale", "brokercluster/main", f"--replicas={replicas}")
    return node.wait(f"{replicas} brokers", lambda: _is_settled(node, replicas))


def _broker_pods(node: Node) -> dict[str, dict[str, Any]]:
    """The broker pods that exist, by name."""
    found = node.get(
        "pods", "", "-l", "magnetar.io/cluster=main,app.kubernetes.io/component=broker"
    )["items"]
    return {pod["metadata"]["name"]: pod for pod in found}


def _flow(node: Node, traffic: Traffic, messages: int = 200) -> None:
    """Wait until so many more messages were acknowledged, some of them of every topic."""
    before, total = traffic.counts(), traffic.total()
    node.wait(
        "traffic on every topic",
        lambda: (
            traffic.total() > total + messages
            and all(count > before[topic] for topic, count in traffic.counts().items())
        ),
    )


def _bundles_by_broker(node: Node) -> dict[str, int]:
    """Bundles of each broker, as the brokers themselves report them; nothing while the one that
    is asked comes or goes."""
    address = node.get("service", "main")["spec"]["clusterIP"]
    try:
        with urllib.request.urlopen(
            f"http://{address}:8080/magnetar/v1/status", timeout=60
        ) as response:
            status = json.load(response)
    except (OSError, http.client.HTTPException):
        return {}
    return {row["broker"]: row["bundles"] for row in status["brokers"]}


def test_quickstart_is_ready(node: Node) -> None:
    """One broker serves, the namespace of the quickstart exists, everything says so in its
    conditions."""
    node.wait(
        "BrokerCluster Ready", lambda: node.condition("brokercluster", "main", "Ready") == "True"
    )
    node.wait(
        "TopicNamespace Ready", lambda: node.condition("topicnamespace", "demo", "Ready") == "True"
    )
    node.wait("one broker is ready", lambda: node.ready_brokers() == 1)


def test_scaling_fails_no_send(node: Node, traffic: Traffic) -> None:
    """`kubectl scale` to 3, 2 and 4 while clients publish: bundles spread, the highest broker is
    drained, no send fails, nothing is lost."""
    took = {3: _scale(node, 3)}
    node.wait(
        "bundles on every broker",
        lambda: (
            min(_bundles_by_broker(node).values(), default=0) > 0
            and len(_bundles_by_broker(node)) == 3
        ),
    )
    traffic.reset_measurements()
    _flow(node, traffic, STEADY_MESSAGES)
    steady_ms = traffic.latency_ms(0.99)
    traffic.reset_measurements()
    took[2] = _scale(node, 2)
    drain_ms, pause_ms = traffic.latency_ms(0.99), traffic.longest_gap_s * 1000
    assert set(_broker_pods(node)) == {"main-broker-0", "main-broker-1"}
    _flow(node, traffic)
    took[4] = _scale(node, 4)
    assert set(_broker_pods(node)) == {f"main-broker-{number}" for number in range(4)}
    _flow(node, traffic)
    took[2] = min(took[2], _scale(node, 2))
    assert traffic.failed == []
    print(
        f"\nseconds to scale to {took}; publish p99 {steady_ms:.0f} ms steady, {drain_ms:.0f} ms "
        "while a broker is drained"
        f" (x{drain_ms / steady_ms:.1f}), longest pause of one topic {pause_ms:.0f} ms"
    )
    traffic.verify()


def test_forced_deletion_of_a_broker_loses_nothing(node: Node, traffic: Traffic) -> None:
    """`kubectl delete pod --force`: the broker's bundles are taken over; nothing acknowledged is
    missing."""
    traffic.reset_measurements()
    former = node.uid("main-broker-1")
    node.run("delete", "pod", "main-broker-1", "--force", "--grace-period=0")
    started = time.monotonic()
    _flow(node, traffic, 1000)
    # The status may be older than the deletion.
    node.wait(
        "the broker is back",
        lambda: node.uid("main-broker-1") not in ("", former) and _is_settled(node, 2),
    )
    print(
        f"\nback after {time.monotonic() - started:.1f} s, longest pause of one topic "
        f"{traffic.longest_gap_s:.1f} s"
    )
    assert traffic.failed == []
    traffic.verify()


def test_probes_stay_green_while_connections_flood_a_broker(node: Node, traffic: Traffic) -> None:
    """Half requests and silent connections, from the node that the probes come from: no probe
    fails, no container restarts, clients go on."""
    pod = "main-broker-0"

    def failed_probes() -> dict[str, int]:
        """That Kubernetes has noted of the pod, by event: events are forgotten after an hour."""
        events = node.get(
            "events", "", f"--field-selector=involvedObject.name={pod},reason=Unhealthy"
        )["items"]
        return {event["metadata"]["uid"]: event.get("count") or 1 for event in events}

    def restarts() -> int:
        return int(node.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])

    before, restarted = failed_probes(), restarts()
    address = node.get("pod", pod)["status"]["podIP"]
    traffic.reset_measurements()
    opened = _flood(address)
    assert opened > FLOOD_OPENED_MIN, "the broker took none back, or took too few to need to"
    assert {
        event: count for event, count in failed_probes().items() if count > before.get(event, 0)
    } == {}
    assert restarts() == restarted
    _flow(node, traffic)
    print(
        f"\n{opened} connections; longest pause of one topic {traffic.longest_gap_s * 1000:.0f} ms"
    )
    assert traffic.failed == []
    traffic.verify()


def _flood(address: str) -> int:
    """For `FLOOD_S` as many connections as a peer may want, to the port of clients and of HTTP,
    opened again when the broker ends them; how many. A slow machine opens them for longer."""
    opened, held = 0, {6650: list[socket.socket](), 8080: list[socket.socket]()}
    begun = time.monotonic()

    def goes_on() -> bool:
        lasted_s = time.monotonic() - begun
        return lasted_s < FLOOD_S or (opened <= FLOOD_OPENED_MIN and lasted_s < READY_S)

    try:
        while goes_on():
            for port, peers in held.items():
                for peer in [peer for peer in peers if _is_over(peer)]:
                    peer.close()
                    peers.remove(peer)
                for _ in range(min(FLOOD_STEP, FLOOD_CONNECTIONS - len(peers))):
                    opened += 1
                    with contextlib.suppress(OSError):
                        peers.append(socket.create_connection((address, port), timeout=5))
                        peers[-1].sendall(
                            b"GET /ready HTTP/1.1\r\nHost: x" if port == 8080 else b""
                        )
                        peers[-1].setblocking(False)
            time.sleep(FLOOD_PAUSE_S)
    finally:
        for peer in (*held[6650], *held[8080]):
            peer.close()
    return opened


def _is_over(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_forced_deletion_of_the_operators_leader_delays_reconciling_only(
    node: Node, traffic: Traffic
) -> None:
    """With two operators, the other one takes over and scales the cluster; no client notices."""
    image, etcd_image = node.installed_images()
    cluster.install(node.tools, image, etcd_image, cluster.CHART, "--set", "replicas=2")
    system = ("-n", cluster.SYSTEM_NAMESPACE)

    def leader() -> str:
        return str(
            node.get("lease", "magnetar-operator", *system)["spec"].get("holderIdentity") or ""
        )

    first, pod = "", ""

    def leads() -> bool:
        """Whether the Lease names a pod that is there: an earlier upgrade may have just ended one
        that led."""
        nonlocal first, pod
        first = leader()
        pods = node.get("pods", "", *system, "-l", "app.kubernetes.io/name=magnetar")["items"]
        names = [found["metadata"]["name"] for found in pods]
        pod = next((name for name in names if first.startswith(name)), "")
        return bool(pod)

    node.wait("an operator leads", leads)
    node.run("delete", "pod", pod, *system, "--force", "--grace-period=0")
    took_s = node.wait("the other one leads", lambda: leader() not in ("", first))
    print(
        f"\nanother operator leads after {took_s:.1f} s (forced deletion lets a process end in "
        "order if it can)"
    )
    _scale(node, 3)
    _scale(node, 2)
    _flow(node, traffic)
    assert traffic.failed == []
    traffic.verify()
    cluster.install(node.tools, image, etcd_image)


def _etcd_members(node: Node) -> list[tuple[str, str]]:
    """Each member of the managed etcd and what it is, as the status says."""
    status = node.get("brokercluster", "main").get("status", {})
    members = (status.get("etcd") or {}).get("members") or []
    return [(member["name"], member.get("role", "")) for member in members]


def _etcd_roles(node: Node) -> list[str]:
    return sorted(role for _, role in _etcd_members(node))


def _resize_etcd(node: Node, members: int) -> float:
    """Ask for so many members and wait until they serve; seconds."""
    patch = {"spec": {"etcd": {"managed": {"replicas": members}}}}
    node.run("patch", "brokercluster", "main", "--type=merge", "-p", json.dumps(patch))
    wanted = ["Follower"] * (members - 1) + ["Leader"]
    return node.wait(
        f"{members} members of etcd",
        lambda: (
            _etcd_roles(node) == wanted
            and node.condition("brokercluster", "main", "Ready") == "True"
        ),
    )


def test_etcd_grows_to_three_and_loses_a_member_under_traffic(node: Node, traffic: Traffic) -> None:
    """1 -> 3 -> 1 members live; one of three deleted by force, the leader at that: no send
    fails, nothing acknowledged is missing."""
    up_s = _resize_etcd(node, 3)
    leader = ""

    def is_shown() -> bool:
        nonlocal leader
        leader = next((name for name, role in _etcd_members(node) if role == "Leader"), "")
        return bool(leader)

    node.wait("etcd has a leader", is_shown)
    uid = node.uid(leader)
    traffic.reset_measurements()
    node.run("delete", "pod", leader, "--force", "--grace-period=0")
    _flow(node, traffic, 1000)

    def is_back() -> bool:
        ready = node.get("statefulset", "main-etcd").get("status", {}).get("readyReplicas") == 3
        return (
            ready
            and node.uid(leader) not in ("", uid)
            and _etcd_roles(node) == ["Follower", "Follower", "Leader"]
        )

    back_s = node.wait("three members again", is_back)
    down_s = _resize_etcd(node, 1)
    _flow(node, traffic)
    print(
        f"\netcd to three members {up_s:.0f} s, back to one {down_s:.0f} s; its leader lost: three "
        f"again after {back_s:.0f} s,"
        f" longest pause of one topic {traffic.longest_gap_s * 1000:.0f} ms"
    )
    assert traffic.failed == []
    traffic.verify()


@pytest.fixture(scope="module")
def expectation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File in which the example remembers what compaction must leave."""
    return tmp_path_factory.mktemp("debian-packages") / "expected.json"


def _example(node: Node, expectation: Path) -> list[str]:
    return [
        "--service-url",
        node.service_url(),
        "--topic",
        COMPACTED_TOPIC,
        "--expectation",
        str(expectation),
    ]


def _verify(node: Node, expectation: Path) -> None:
    """The compacted topic holds exactly what was published; else what it says of the differences."""
    done = subprocess.run(
        [sys.executable, "examples/debian-packages/verify.py", *_example(node, expectation)],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_compaction_runs_driver_and_executors_to_a_committed_result(
    node: Node, expectation: Path
) -> None:
    """`kubectl apply -f examples/compaction.yaml` over several generations of this machine's
    package records leaves exactly the newest of each."""
    example = _example(node, expectation)
    subprocess.run(
        [sys.executable, "examples/debian-packages/produce.py", *example, "--generations", "3"],
        check=True,
    )
    node.run("apply", "-f", "examples/compaction.yaml")
    seen_executor = False

    def finished() -> bool:
        nonlocal seen_executor
        pods = node.get("pods")["items"]
        seen_executor |= any(
            pod["metadata"]["labels"].get("app.kubernetes.io/component") == "executor"
            for pod in pods
            if "labels" in pod["metadata"]
        )
        job = node.get("datajob", "debian-packages").get("status", {})
        assert job.get("state") != "Failed", node.report()
        return job.get("state") == "Succeeded"

    took = node.wait("DataJob Succeeded", finished)
    assert seen_executor, "the work was not done by an executor pod"
    print(f"\nDataJob from apply to Succeeded: {took:.0f} s")
    _verify(node, expectation)


def test_clean_up_leaves_the_data(node: Node, expectation: Path) -> None:
    """Deleting the BrokerCluster removes its pods and keeps its volumes; applying it again
    adopts them and serves the same messages."""
    node.run("delete", "brokercluster", "main", "--wait=true")
    mine = "magnetar.io/cluster=main,app.kubernetes.io/component in (broker,etcd)"
    node.wait("pods gone", lambda: not node.get("pods", "", "-l", mine)["items"])
    assert node.get("pvc")["items"], "the volumes must outlive the cluster object"
    node.run("apply", "-f", "examples/quickstart")
    node.wait("Ready again", lambda: node.condition("brokercluster", "main", "Ready") == "True")
    _verify(node, expectation)


def test_uninstalled_with_its_definitions_and_installed_again_it_finds_the_data(
    node: Node, expectation: Path
) -> None:
    """The operator goes first, then the definitions and with them every resource: nobody is
    wedged, and a new one serves the same messages."""
    image, etcd_image = node.installed_images()
    subprocess.run(
        [
            *node.tools.helm,
            "uninstall",
            cluster.RELEASE,
            "-n",
            cluster.SYSTEM_NAMESPACE,
            "--wait",
            "--no-hooks",
        ],
        check=True,
    )
    definitions = [
        name
        for name in node.run("get", "crd", "-o", "name").split()
        if name.endswith(".magnetar.io")
    ]
    assert definitions, "they outlive the release"
    node.run("delete", "--wait=true", *definitions)
    node.wait(
        "pods gone", lambda: not node.get("pods", "", "-l", "magnetar.io/cluster=main")["items"]
    )
    assert node.get("pvc")["items"], "the volumes must outlive everything"
    cluster.install(node.tools, image, etcd_image)
    node.run("apply", "-f", "examples/quickstart")
    node.wait("Ready again", lambda: node.condition("brokercluster", "main", "Ready") == "True")
    _verify(node, expectation)
