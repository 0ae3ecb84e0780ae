"""Who may reach a cluster, against a real API server: policies it takes, words in the status,
refusals."""

from __future__ import annotations

from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from tests.apiserver.stage import Scene, brokers_of, external, running_operator, settled, until

pytestmark = pytest.mark.slow

SHOP = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}


async def test_policies_follow_the_spec_and_the_status_says_who_may_administer(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A steady state costs no write; a policy that another client changed is changed back; one
    that is no longer wanted goes."""
    path = scene.core("networkpolicies", "main-broker", "/apis/networking.k8s.io/v1")

    def rest() -> dict[str, Any]:
        found = scene.get(path)
        return dict(found["spec"]["ingress"][2]) if found else {}

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace) as operator:
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        await until("a policy", rest)
        assert "from" not in rest()
        cluster = scene.path("brokerclusters", "main")
        said = await until("a word", lambda: scene.condition(cluster, "Protected"))
        assert (said["status"], said["reason"]) == ("False", "OpenToAll")
        await settled(operator)

        scene.merge(
            cluster,
            {"spec": {"networkPolicy": {"restFrom": [SHOP, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}}},
        )
        await until("REST is for some", lambda: rest().get("from"))
        assert rest()["from"] == [SHOP, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
        await until(
            "the status says so",
            lambda: (
                "spec.networkPolicy.restFrom admits"
                in scene.condition(cluster, "Protected")["message"]
            ),
        )
        await settled(operator)

        scene.merge(path, {"spec": {"ingress": [{}]}})
        await until(
            "it is changed back", lambda: len((scene.get(path) or {})["spec"]["ingress"]) == 3
        )
        scene.merge(cluster, {"spec": {"networkPolicy": {"enabled": False}}})
        await until("it is gone", lambda: scene.get(path) is None)


@pytest.mark.parametrize(
    "peer", [{}, {**SHOP, "ipBlock": {"cidr": "10.0.0.0/8"}}], ids=["nobody", "both"]
)
def test_a_peer_that_says_nothing_or_two_things_is_refused(
    scene: Scene, peer: dict[str, Any]
) -> None:
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
    }
    manifest["spec"] = {"networkPolicy": {"clientsFrom": [peer]}}  # type: ignore[assignment]
    status, answer = scene.plane.request("POST", scene.path("brokerclusters"), manifest)
    assert status == 422
    assert "each entry has either ipBlock, or podSelector" in answer["message"]
