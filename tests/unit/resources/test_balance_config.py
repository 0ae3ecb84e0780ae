"""Load balancing in `spec.config`, by Pulsar's names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from magnetar.balance.settings import BALANCE, FIELDS, followed
from magnetar.resources.broker_config import BrokerConfig
from tests.support.samples import cluster


def test_what_a_cluster_sets_is_what_its_brokers_read() -> None:
    given = {
        "loadBalancerLoadSheddingStrategy": "ThresholdShedder",
        "loadBalancerSheddingEnabled": False,
        "loadBalancerHistoryResourcePercentage": 0.5,
        "loadBalancerSheddingExcludedNamespaces": "a/b,c/d",
    }
    found, refused = followed(BALANCE, cluster(config=given).spec.balance_settings)
    assert refused == {}
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
