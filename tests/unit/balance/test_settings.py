"""Settings of load balancing: Pulsar's names, defaults and bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.balance.settings import FIELDS, Settings
from magnetar.errors import InvalidRequest

DEFAULTS = {
    "loadBalancerLoadSheddingStrategy": "ThresholdShedder",
    "loadBalancerLoadPlacementStrategy": "LeastLongTermMessageRate",
    "loadBalancerBrokerOverloadedThresholdPercentage": 85,
    "loadBalancerReportUpdateThresholdPercentage": 10,
    "loadBalancerHistoryResourcePercentage": 0.9,
    "loadBalancerSheddingGracePeriodMinutes": 30,
    "loadBalanceSheddingDelayInSeconds": 180,
    "maxUnloadPercentage": 0.2,
    "minUnloadMessageThroughput": 1048576,
    "loadBalancerNamespaceBundleMaxMsgRate": 30000,
    "loadBalancerNamespaceMaximumBundles": 128,
    "loadBalancerDistributeBundlesEvenlyEnabled": True,
    "lowerBoundarySheddingEnabled": False,
    "loadBalancerSheddingExcludedNamespaces": (),
}


def test_defaults_are_pulsars() -> None:
    named = Settings().named()
    assert {name: named[name] for name in DEFAULTS} == DEFAULTS


def test_text_and_json_alike() -> None:
    """What `spec.config` has as text and a record as JSON."""
    text = {name: str(value) for name, value in Settings().named().items() if value != ()}
    assert Settings.read(text) == Settings()
    assert Settings.read(Settings().named()) == Settings()
    found = Settings.read(
        {
            "loadBalancerLoadSheddingStrategy": (
                "org.apache.pulsar.broker.loadbalance.extensions.scheduler.TransferShedder"
            ),
            "loadBalancerSheddingExcludedNamespaces": " a/b, c/d,",
            "loadBalancerTransferEnabled": "False",
        }
    )
    assert found.shedder == "TransferShedder"
    assert found.excluded_namespaces == ("a/b", "c/d")
    assert found.transfer is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loadBalancerNoSuchThing", 1),
        ("loadBalancerLoadSheddingStrategy", "org.example.MyShedder"),
        ("loadBalancerHistoryResourcePercentage", 1.1),
        ("loadBalancerHistoryResourcePercentage", "nan"),
        ("maxUnloadPercentage", -0.1),
        ("loadBalancerBrokerMaxTopics", 1.5),
        ("loadBalancerBrokerMaxTopics", "many"),
        ("loadBalancerEnabled", "maybe"),
        ("loadBalancerSheddingExcludedNamespaces", 7),
        ("plannerBand", 0),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Settings.read({name: value})


def test_avg_shedder_is_both_or_neither() -> None:
    """Pulsar does not start otherwise."""
    for name in ("loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy"):
        with pytest.raises(InvalidRequest, match="only if it is both"):
            Settings.read({name: "AvgShedder"})


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/load-balancing.md").read_text()
    named = Settings().named()
    assert [name for name in FIELDS if f"| `{name}` | " not in text] == []
    for line in text.splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in FIELDS:
            assert Settings.read({cells[0]: cells[1]}).named()[cells[0]] == named[cells[0]], line
