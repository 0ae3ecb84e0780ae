"""Reading etcd's pods and choosing what its set is to be."""

from __future__ import annotations

import copy
from typing import Any

from magnetar.resources.etcd import EtcdStatus, ManagedEtcd
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.status import Observed, findings_of
from magnetar_operator.builders.etcd_set import EtcdShape
from magnetar_operator.builders.object import Defaults, etcd_endpoints
from magnetar_operator.conditions import Reason, Type
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.figures import Figures, Sighting
from magnetar_operator.etcd.membership import Admission, EtcdPlan, EtcdPod, Member, Restart, Voice
from magnetar_operator.etcd.upkeep import Upkeep
from magnetar_operator.etcd.view import EtcdLifecycle, is_known, pod_of, shape_of, status_of
from magnetar_operator.pods.rolling import RollPlan
from tests.support.samples import DEFAULTS, cluster

NEWER = Defaults(
    "registry.example/magnetar:2", "IfNotPresent", DEFAULTS.etcd_image, DEFAULTS.spark_image
)


def made(shape: EtcdShape | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        identity_of(item): item
        for item in desired(cluster(), DEFAULTS, 1, {}, shape=shape or EtcdShape())
    }


def pod(revision: str = "a", ready: str = "True", **status: Any) -> dict[str, Any]:
    metadata = {"name": "main-etcd-0", "labels": {"controller-revision-hash": revision}}
    return {
        "metadata": metadata,
        "spec": {"containers": []},
        "status": {"conditions": [{"type": "Ready", "status": ready}], **status},
    }


def test_a_refused_start_is_read_from_the_start_container() -> None:
    refused = {"exitCode": 1, "message": f"{etcd_start.EMPTY}: the volume holds no data"}
    waiting = {
        "name": "start",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": refused},
    }
    assert pod_of(pod(ready="False", initContainerStatuses=[waiting]), None) == EtcdPod(
        ready=False, empty=True
    )
    passed = {
        "name": "start",
        "state": {"terminated": {"exitCode": 0}},
        "lastState": {"terminated": refused},
    }
    assert pod_of(pod(initContainerStatuses=[passed]), None) == EtcdPod()
    ended = {
        "name": "etcd",
        "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    assert pod_of(pod(ready="False", containerStatuses=[ended]), None) == EtcdPod(
        ready=False, failing=True
    )


def test_pods_that_wait_to_join_are_no_trouble_and_pods_that_no_node_takes_are() -> None:
    """A pending member is listed beside whatever the plan says; of a volume without data the
    plan speaks itself."""
    refused = {"exitCode": 1, "message": f"{etcd_start.EMPTY}: the volume holds no data"}
    joins = {
        "name": "start",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": refused},
    }
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    pending = pod(ready="False") | {"metadata": {"name": "main-etcd-2"}}
    pending["status"]["conditions"].append(unscheduled)
    pods = (pod(ready="False", initContainerStatuses=[joins]), pending)
    plan = EtcdPlan(3, reason=Reason.ETCD_SCALING, message="a third member joins")
    life = EtcdLifecycle(plan, Upkeep(), EtcdShape(), EtcdStatus(), Sighting(None, {}), pods)
    assert [(problem.reason, problem.about) for problem in life.pod_problems] == [
        (Reason.POD_UNSCHEDULABLE, "main-etcd-2")
    ]
    found = findings_of(cluster(), Observed({}, (), None, etcd=life), ScalePlan(1), RollPlan(), ())
    degraded = next(finding for finding in found if finding.type is Type.DEGRADED)
    assert (degraded.holds, degraded.reason) == (True, Reason.POD_UNSCHEDULABLE)


def test_a_pod_is_outdated_only_by_a_template_that_the_controller_has_seen() -> None:
    stateful_set = made()["StatefulSet", "main-etcd"]
    stateful_set["metadata"]["generation"] = 2
    stateful_set["status"] = {"observedGeneration": 1, "updateRevision": "b"}
    assert pod_of(pod(), stateful_set).outdated == ""
    stateful_set["status"]["observedGeneration"] = 2
    assert pod_of(pod(), stateful_set).outdated == "Image"
    assert pod_of(pod("b"), stateful_set).outdated == ""


def test_an_upgrade_of_the_operator_alone_restarts_no_member() -> None:
    """Its own image runs in the start container, which keeps the one it has until something else
    changes or it cannot be pulled."""
    stateful_set, managed = made()["StatefulSet", "main-etcd"], ManagedEtcd()
    plan = EtcdPlan(1)
    shape, _ = shape_of(cluster(), managed, NEWER, plan, stateful_set, [pod()], {})
    assert shape.start_image == DEFAULTS.image
    trouble = pod(
        initContainerStatuses=[
            {"name": "start", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
        ]
    )
    assert (
        shape_of(cluster(), managed, NEWER, plan, stateful_set, [trouble], {})[0].start_image == ""
    )
    other = managed.model_copy(update={"quota_mib": 512})
    assert shape_of(cluster(), other, NEWER, plan, stateful_set, [pod()], {})[0].start_image == ""


def test_a_downgrade_keeps_the_image_that_runs() -> None:
    stateful_set = copy.deepcopy(made(EtcdShape(image="etcd:v3.6.5"))["StatefulSet", "main-etcd"])
    shape, problem = shape_of(
        cluster(),
        ManagedEtcd(image="etcd:v3.5.21"),
        DEFAULTS,
        EtcdPlan(1),
        stateful_set,
        [pod()],
        {},
    )
    assert (shape.image, "downgrade" in problem) == ("etcd:v3.6.5", True)


def test_the_config_map_admits_one_pod() -> None:
    joining = made(EtcdShape(2, Admission(1, member=0xAB, ordinals=(0, 1))))[
        "ConfigMap", "main-etcd"
    ]["data"]
    assert (joining[etcd_start.OPEN], joining[etcd_start.MEMBER]) == ("main-etcd-1", "ab")
    assert joining["ETCD_INITIAL_CLUSTER"] == (
        "main-etcd-0=https://main-etcd-0.main-etcd.shop.svc:2380,main-etcd-1=https://main-etcd-1.main-etcd.shop.svc:2380"
    )
    assert made()["ConfigMap", "main-etcd"]["data"][etcd_start.OPEN] == ""


def test_an_etcd_is_bootstrapped_again_only_by_the_name_of_the_lost_one() -> None:
    """The annotation permits nothing once the new etcd is up, which has another identity."""
    lost = cluster()
    lost = lost.model_copy(
        update={"status": lost.status.model_copy(update={"etcd": EtcdStatus(cluster_id="c0")})}
    )
    assert is_known(lost)
    for value, known in (("c1", True), ("", True), ("c0", False)):
        annotated = lost.metadata.model_copy(
            update={"annotations": {"magnetar.io/begin-etcd": value}}
        )
        assert is_known(lost.model_copy(update={"metadata": annotated})) is known
    tokens = set()
    for value in ("", "c0"):
        resource = lost.model_copy(
            update={
                "metadata": lost.metadata.model_copy(
                    update={"annotations": {names.BEGIN_ETCD: value}}
                )
            }
        )
        children = {identity_of(item): item for item in desired(resource, DEFAULTS, 1, {})}
        tokens.add(children["ConfigMap", "main-etcd"]["data"]["ETCD_INITIAL_CLUSTER_TOKEN"])
    assert len(tokens) == 2


def test_clients_are_not_restarted_beside_a_member_or_while_the_only_one_is_unavailable() -> None:
    def life(plan: EtcdPlan, *pods: dict[str, Any]) -> EtcdLifecycle:
        return EtcdLifecycle(plan, Upkeep(), EtcdShape(), EtcdStatus(), Sighting(None, {}), pods)

    going = pod()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    restart = EtcdPlan(1, step=Restart(0, "Image"), reason=Reason.ETCD_ROLLING)
    assert life(restart, pod()).restarting == "the restart of etcd pod 0"
    assert life(EtcdPlan(1), going).restarting == "the successor of main-etcd-0"
    assert life(EtcdPlan(3), going, pod(), pod()).restarting == "", "the others are a quorum"
    assert life(EtcdPlan(1), pod()).restarting == ""


def test_sizes_in_the_status_change_only_with_a_tenth_of_themselves() -> None:
    """Else every write to the store would be a write of the status."""

    def seen(mib: int) -> Sighting:
        figures = Figures(Voice(10, 10, 1), 0xC0, "3.6.5", 1, mib << 20, mib << 20, learner=False)
        return Sighting((Member(10, 0),), {0: figures})

    first = cluster()
    status = status_of(first, ManagedEtcd(), EtcdPlan(1), seen(200), [0])
    assert (status.database_mib, status.cluster_id, status.members[0].role) == (200, "c0", "Leader")
    second = first.model_copy(update={"status": first.status.model_copy(update={"etcd": status})})
    assert status_of(second, ManagedEtcd(), EtcdPlan(1), seen(215), [0]) == status
    assert status_of(second, ManagedEtcd(), EtcdPlan(1), seen(230), [0]).database_mib == 230
    assert status_of(second, ManagedEtcd(), EtcdPlan(1), Sighting(None, {}), [0]).cluster_id == "c0"


def test_clients_are_given_new_members_when_all_of_them_vote_and_not_before() -> None:
    """Brokers are restarted by another address: once on the way up and once on the way down, at
    the end of each; never for a member that is down."""
    one, three = ManagedEtcd(), ManagedEtcd(replicas=3)
    seen, unseen = Sighting((Member(1, 0),), {}), Sighting(None, {})
    found = cluster(etcd={"managed": {"replicas": 1}})
    given: list[tuple[str, ...]] = []
    for managed, reason, look in (
        (one, Reason.STORE_STARTING, unseen), (one, None, seen), (three, Reason.ETCD_SCALING, seen), (three, Reason.ETCD_NO_QUORUM, unseen),
        (three, None, seen), (three, Reason.ETCD_MEMBER_DOWN, seen), (three, None, unseen), (one, Reason.ETCD_SCALING, seen), (one, None, seen),
    ):  # fmt: skip
        etcd = status_of(found, managed, EtcdPlan(managed.replicas, reason=reason), look, [0])
        found = cluster(etcd={"managed": {"replicas": managed.replicas}})
        found = found.model_copy(update={"status": found.status.model_copy(update={"etcd": etcd})})
        given.append(etcd_endpoints(found))
    service = ("main-etcd.shop.svc:2379",)
    members = tuple(f"main-etcd-{ordinal}.main-etcd.shop.svc:2379" for ordinal in range(3))
    assert given == [service] * 4 + [members] * 4 + [service]


def test_a_new_cluster_begins_with_the_members_that_it_will_have() -> None:
    assert len(etcd_endpoints(cluster(etcd={"managed": {"replicas": 3}}))) == 3
