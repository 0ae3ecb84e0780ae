"""Load balancing in `spec.config`, by Pulsar's names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from magnetar.balance.settings import BALANCE, FIELDS, text_of
from magnetar.hosting.settings import BrokerSettings
from magnetar.resources.broker_config import BrokerConfig
from magnetar_operator.builders.config_map import PREFIX


def test_what_a_cluster_sets_is_what_its_brokers_read() -> None:
    given = {
        "loadBalancerLoadSheddingStrategy": "ThresholdShedder",
        "loadBalancerSheddingEnabled": False,
        "loadBalancerHistoryResourcePercentage": 0.5,
        "loadBalancerSheddingExcludedNamespaces": "a/b,c/d",
    }
    chosen = BrokerConfig(**given).chosen()
    environment = {f"{PREFIX}{name.upper()}": text_of(value) for name, value in chosen.items()}
    found = BrokerSettings.from_environment(environment).balance
    assert (found.shedder, found.shedding, found.history) == ("ThresholdShedder", False, 0.5)
    assert found.excluded_namespaces == ("a/b", "c/d")
    assert found.placement == BALANCE.placement


@pytest.mark.parametrize(
    "given",
    [
        {"loadBalancerLoadSheddingStrategy": "Nonsense"},
        {"loadBalancerHistoryResourcePercentage": 2},
        {"loadBalancerEnabled": "yes"},
        {"loadBalancerLoadSheddingStrategy": "AvgShedder"},
    ],
)
def test_what_no_broker_would_take_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BrokerConfig(**given)


def test_every_setting_has_a_field() -> None:
    assert FIELDS.keys() <= BrokerConfig.model_fields.keys()
