"""What keeps the operator from being removed."""

from __future__ import annotations

from typing import Any

from magnetar_operator.uninstall_check import objection


def manifest(namespace: str, name: str, *finalizers: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "finalizers": list(finalizers)}}


def test_nothing_left_is_no_objection() -> None:
    """Resources without a finalizer need no operator to be deleted."""
    assert objection([], []) == ""
    assert objection([], [manifest("shop", "orders")]) == ""


def test_clusters_and_finalizers_are_named_with_what_to_do() -> None:
    said = objection(
        [manifest("shop", "main")], [manifest("shop", "orders", "magnetar.io/topic-namespace")]
    )
    assert "BrokerClusters exist (shop/main)" in said
    assert "TopicNamespaces have a finalizer (shop/orders)" in said
    assert "--no-hooks" in said


def test_a_long_list_is_cut_and_counted() -> None:
    said = objection([manifest("shop", f"c{number}") for number in range(9)], [])
    assert "shop/c0, shop/c1, shop/c2, shop/c3, shop/c4 and 4 more" in said
