"""Splitting bundles of public/default by REST.

Owns: `split`, and which bundle has a topic. Imports: the cluster of the tests, names. Invariant: a
split whose answer was lost counts as done once its bundle is gone.
"""

from __future__ import annotations

from dev.testbed.cluster import MOVED, UNAVAILABLE, Cluster, request, wait_for
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of

NAMESPACE = NamespaceName("public", "default")
PATH = "/admin/v2/namespaces/public/default"
GONE = 404
"""How a range is answered that is not a bundle."""


def boundaries(cluster: Cluster) -> list[int]:
    """As a broker shows them that has perhaps split nothing itself."""
    status, body = request("GET", f"{cluster.brokers[cluster.entry].http_url}{PATH}/bundles")
    assert status == 200, (status, body)
    assert body["numBundles"] == len(body["boundaries"]) - 1
    return [int(boundary, 16) for boundary in body["boundaries"]]


def bundle_with(cluster: Cluster, topic: str) -> BundleName:
    return bundle_of(NAMESPACE, boundaries(cluster), TopicName.parse(topic).hash)


def split(cluster: Cluster, topic: str, query: str = "") -> BundleName:
    """Split the bundle of a topic at its owner; the bundle that was split."""
    bundle, count = bundle_with(cluster, topic), len(boundaries(cluster))
    accepted = {204, MOVED, UNAVAILABLE}

    def done() -> bool:
        owner = cluster.brokers[cluster.owner(topic)]
        status, body = request("PUT", f"{owner.http_url}{PATH}/{bundle.range}/split{query}")
        assert status in accepted, (status, body)
        if status == UNAVAILABLE:
            # it may have been carried out all the same: then there is no such bundle any more
            accepted.add(GONE)
        return status in (204, GONE)

    wait_for(f"{bundle} is split", done)
    wait_for(
        f"{cluster.entry} knows that {bundle} is split",
        lambda: len(boundaries(cluster)) == count + 1,
    )
    return bundle
