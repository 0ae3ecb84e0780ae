"""`spec.loadBalancing`: its rules, and the settings that its fields are."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from magnetar.balance.settings import BALANCE, FIELDS, PLACEMENTS, SHEDDERS, Settings
from magnetar.resources.load_balancing import SETS, LoadBalancing, Placement, Strategy
from magnetar_operator.builders.config_map import settings_of
from tests.support.samples import cluster

EVERYTHING = {
    "enabled": True,
    "strategy": "ThresholdShedder",
    "placement": "RoundRobinBrokerSelector",
    "intervalSeconds": 30,
    "bandPercent": 3,
    "movesParallelMax": 9,
    "splits": False,
    "merges": False,
    "failureDomains": False,
}


def test_the_strategies_are_those_of_the_balancer() -> None:
    assert set(get_args(Strategy)) == set(SHEDDERS)
    assert set(get_args(Placement)) == set(PLACEMENTS)


def test_what_is_not_given_sets_nothing() -> None:
    assert cluster().spec.balance_settings == {}


def test_every_field_becomes_settings_that_brokers_take() -> None:
    assert EVERYTHING.keys() == {to_camel(name) for name in LoadBalancing.model_fields}
    given = cluster(loadBalancing=EVERYTHING).spec.balance_settings
    assert given.keys() == {name for names in SETS.values() for name in names} <= FIELDS.keys()
    found = Settings.read({**BALANCE.named(), **given})
    assert (found.shedder, found.placement) == ("ThresholdShedder", "RoundRobinBrokerSelector")
    assert (found.plan_interval_s, found.shed_minutes) == (30, 0.5)
    assert (found.band, found.band_trigger, found.moves_parallel) == (0.03, 0.075, 9)
    assert not any((found.split, found.merge, found.failure_domains))
    assert found.enabled


@pytest.mark.parametrize("field", ["intervalSeconds", "bandPercent", "movesParallelMax"])
def test_brokers_take_what_the_bounds_admit(field: str) -> None:
    schema = LoadBalancing.model_json_schema()["properties"][field]["anyOf"][0]
    for bound in ("minimum", "maximum"):
        given = cluster(loadBalancing={field: schema[bound]}).spec.balance_settings
        Settings.read({**BALANCE.named(), **given})


def test_avgshedder_is_the_placement_as_well() -> None:
    given = cluster(loadBalancing={"strategy": "AvgShedder"}).spec.balance_settings
    assert Settings.read(given).placement == "AvgShedder"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"loadBalancing": {"placement": "AvgShedder"}}, "both strategy and placement"),
        (
            {"loadBalancing": {"strategy": "AvgShedder", "placement": "Planner"}},
            "both strategy and placement",
        ),
        (
            {"loadBalancing": {"bandPercent": 3}, "config": {"plannerTriggerBand": 0.1}},
            "loadBalancing.bandPercent sets plannerBand and plannerTriggerBand",
        ),
        (
            {
                "loadBalancing": {"placement": "Planner"},
                "config": {"loadBalancerLoadSheddingStrategy": "Planner"},
            },
            "loadBalancing.placement sets",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(spec: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        cluster(**spec)


def test_no_setting_of_load_balancing_reaches_the_pods() -> None:
    """Their template would change, and every broker be restarted."""
    changed = cluster(
        loadBalancing={"strategy": "TransferShedder"},
        config={"loadBalancerEnabled": False, "keep_alive_s": 11},
    )
    assert settings_of(changed) == settings_of(cluster(config={"keep_alive_s": 11}))
    assert changed.spec.balance_settings["loadBalancerEnabled"] == "false"
