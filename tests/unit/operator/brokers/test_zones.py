"""Zones of nodes: which pods are looked at, and what the record keeps."""

from __future__ import annotations

from typing import Any

from magnetar_operator.brokers.zones import still_known, unknown


def pod(ordinal: int, uid: str, node: str = "n1") -> dict[str, Any]:
    name = f"main-broker-{ordinal}"
    return {"metadata": {"name": name, "uid": uid}, "spec": {"nodeName": node} if node else {}}


def test_a_pod_is_looked_at_once_and_its_successor_again() -> None:
    known = {"main-broker-0": {"pod": "a", "zone": "z"}, "main-broker-1": {"pod": "b", "zone": ""}}
    pods = [pod(0, "a"), pod(1, "b"), pod(2, "c")]
    assert unknown(known, pods) == [pods[2]]
    assert unknown(known, [pod(1, "new")]) == [pod(1, "new")]


def test_a_pod_without_a_node_waits() -> None:
    assert unknown({}, [pod(0, "a", "")]) == []


def test_brokers_that_come_back_keep_their_entry_until_they_are_scaled_away() -> None:
    known = {f"main-broker-{at}": {"pod": str(at), "zone": "z"} for at in (0, 2, 10)}
    assert still_known(known, [pod(10, "10")], 2).keys() == {"main-broker-0", "main-broker-10"}
