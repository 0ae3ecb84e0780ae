"""What the store's record of changed settings gets of a resource, and what stays of others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.settings import AVERAGE, BALANCE, STRATEGIES, followed
from magnetar.metadata.records import BROKER_CONFIGURATION
from magnetar_operator.brokers.followed_settings import Records, planned, settings_in_force
from magnetar_operator.brokers.state import ClusterState, StoredDocuments
from magnetar_operator.builders.config_map import settings_of
from tests.support.samples import cluster

SHEDDER, PLACEMENT = STRATEGIES
NOTHING = Records({}, {})


def test_a_new_name_is_written_and_remembered_and_removed_with_the_resource() -> None:
    wanted = {"plannerBand": "0.03"}
    first = planned(wanted, NOTHING)
    assert first == Records(wanted, wanted)
    assert planned(wanted, first) == first
    assert planned({}, first) == NOTHING


def test_what_an_administrator_set_under_another_name_stays() -> None:
    by_hand = {"plannerMovesMax": "7"}
    found = planned({"plannerBand": "0.03"}, Records(by_hand, {}))
    assert found == Records({**by_hand, "plannerBand": "0.03"}, {"plannerBand": "0.03"})
    assert planned({}, found) == Records(by_hand, {})


def test_a_value_that_was_there_before_is_not_the_operators_to_remove() -> None:
    by_hand = Records({"plannerBand": "0.03"}, {})
    assert planned({"plannerBand": "0.03"}, by_hand) == by_hand
    assert planned({}, by_hand) == by_hand


def test_the_resource_wins_over_a_change_by_hand_until_it_is_silent() -> None:
    ours = {"plannerBand": "0.03"}
    changed = Records({"plannerBand": "0.1"}, ours)
    assert planned(ours, changed) == Records(ours, ours)
    assert planned({}, changed) == Records({"plannerBand": "0.1"}, {})


@pytest.mark.parametrize("package", ["", "org.apache.pulsar.broker.loadbalance.impl."])
def test_avgshedder_by_hand_gives_way_as_both_strategies(package: str) -> None:
    by_hand = dict.fromkeys(STRATEGIES, f"{package}{AVERAGE}") | {"plannerMovesMax": "7"}
    found = planned({SHEDDER: "ThresholdShedder"}, Records(by_hand, {}))
    assert found.followed == {SHEDDER: "ThresholdShedder", "plannerMovesMax": "7"}


names = st.sampled_from(["plannerBand", "plannerMovesMax", SHEDDER, PLACEMENT])
values = st.sampled_from(["1", "Planner", AVERAGE, "RoundRobinBrokerSelector"])
wishes = st.sampled_from(
    [{}, {"strategy": AVERAGE}, {"strategy": "Planner", "placement": "Planner"},
     {"placement": "RoundRobinBrokerSelector"}, {"bandPercent": 3}]
)  # fmt: skip


@given(st.dictionaries(names, values), st.dictionaries(names, values), wishes)
def test_any_records_become_coherent_in_one_step(
    stored: dict[str, Any], written: dict[str, Any], wish: dict[str, Any]
) -> None:
    """Brokers accept both strategies, the second step changes nothing, and after the resource is
    silent nothing is called the operator's."""
    wanted = cluster(loadBalancing=wish).spec.balance_settings
    found = planned(wanted, Records(stored, written))
    assert planned(wanted, found) == found
    assert wanted.items() <= found.followed.items()
    both = {**BALANCE.named(), **found.followed}
    assert len({both[name] == AVERAGE for name in STRATEGIES}) == 1
    assert planned({}, found).written == {}


def test_settings_in_force_are_the_resources_over_the_stored_ones() -> None:
    """A value that this operator does not know is passed over."""
    stored = {"plannerBand": "0.1", "plannerMovesMax": "7", "plannerOfTomorrow": "x"}
    state = ClusterState(
        "", {}, {}, {}, documents={BROKER_CONFIGURATION: StoredDocuments(stored, 3)}
    )
    found = settings_in_force(cluster(loadBalancing={"bandPercent": 3}), state)
    assert (found.band, found.moves_max) == (0.03, 7)
    assert settings_in_force(cluster(), None) == BALANCE


def test_live_settings_are_followed_and_the_others_roll() -> None:
    """A setting is in the store or in the pods' environment, never in both."""
    given = cluster(config={"read_batch_entries_max": 7, "log_spares_max": 3, "plannerBand": 0.1})
    assert given.spec.followed_settings == {"read_batch_entries_max": "7", "plannerBand": "0.1"}
    environment = settings_of(given)
    assert environment["MAGNETAR_LOG_SPARES_MAX"] == "3"
    assert not {name for name in environment if "READ_BATCH" in name or "PLANNER" in name}
    stored = {"read_batch_entries_max": "7", "plannerBand": "0.1"}
    state = ClusterState(
        "", {}, {}, {}, documents={BROKER_CONFIGURATION: StoredDocuments(stored, 3)}
    )
    assert settings_in_force(given, state).band == 0.1


def test_refused_values_leave_the_others_in_force() -> None:
    found, refused = followed(BALANCE, {"plannerBand": "wide", "plannerMovesMax": 7})
    assert found.moves_max == 7
    assert list(refused) == ["plannerBand"]
