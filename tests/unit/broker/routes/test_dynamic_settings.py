"""Settings of load balancing that change while brokers run, by Pulsar's names; isolation policies
that take effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.balance.settings import BALANCE, PLANNER, STRATEGIES, Settings
from magnetar.broker.bundles.balancing.settings import changed
from magnetar.errors import InvalidRequest
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import BROKER_CONFIGURATION, DocumentsRecord
from tests.support.broker_pair import pair
from tests.support.polling import until
from tests.support.rest import broker_with_rest, told

PATH = "/admin/v2/brokers/configuration"
SHEDDER, PLACEMENT = STRATEGIES


async def test_a_setting_is_changed_listed_and_restored(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        await rest("POST", f"{PATH}/{SHEDDER}/org.apache.pulsar.x.ThresholdShedder")
        assert broker.ownership.balance.current.shedder == "ThresholdShedder"
        assert SHEDDER in await rest.get(f"{PATH}/values")
        assert (await rest.get(f"{PATH}/runtime"))[SHEDDER] == "ThresholdShedder"
        await rest("DELETE", f"{PATH}/{SHEDDER}")
        await until(lambda: broker.ownership.balance.current.shedder == PLANNER)
        assert await rest.get(f"{PATH}/values") == {}


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        (SHEDDER, "Nonsense", "use one of"),
        ("loadBalancerEnabled", "maybe", "use true or false"),
        ("loadBalancerHistoryResourcePercentage", "7", "use 0 to 1"),
    ],
)
async def test_a_bad_value_is_refused_by_name_and_remedy(
    tmp_path: Path, name: str, value: str, remedy: str
) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        reason = told(await rest("POST", f"{PATH}/{name}/{value}", status=400))
        assert name in reason
        assert value in reason
        assert remedy in reason
        assert await rest.get(f"{PATH}/values") == {}


def test_avg_shedder_comes_and_goes_as_both_strategies() -> None:
    """One command sets one name: it must be possible to reach AvgShedder, and to leave it."""
    both = changed(BALANCE, {}, SHEDDER, "AvgShedder")
    assert both == {SHEDDER: "AvgShedder", PLACEMENT: "AvgShedder"}
    assert changed(BALANCE, both, SHEDDER, "ThresholdShedder") == {SHEDDER: "ThresholdShedder"}
    assert changed(BALANCE, both, PLACEMENT, None) == {}
    with pytest.raises(InvalidRequest):
        changed(BALANCE, {}, "loadBalancerNoSuchThing", "1")


async def test_all_brokers_follow_and_keep_what_they_understand(tmp_path: Path) -> None:
    """A value of a later version is passed over; the others are in force."""

    async with pair(tmp_path) as cluster:
        stored = DocumentsRecord(
            {"loadBalancerSheddingIntervalMinutes": "3", "loadBalancerOfTheFuture": "1"}
        )
        await cluster.store.put(keys.documents(BROKER_CONFIGURATION), stored.encode())
        for broker in (cluster.first, cluster.second):
            await until(lambda broker=broker: broker.ownership.balance.current.shed_minutes == 3)


def test_the_environment_gives_the_defaults() -> None:
    read = BrokerSettings.from_environment
    assert read({}).balance == BALANCE
    assert read({"MAGNETAR_LOADBALANCERENABLED": "false"}).balance.enabled is False
    assert read({"MAGNETAR_LOAD_REPORT_S": "2"}).balance_defaults.look_ms == 2000
    named = {"MAGNETAR_LOADBALANCERREPORTUPDATEMININTERVALMILLIS": "700"}
    assert read(named).balance_defaults.look_ms == 700
    with pytest.raises(InvalidRequest, match="loadBalancerEnabled"):
        read({"MAGNETAR_LOADBALANCERENABLED": "perhaps"})
    assert Settings.read(BALANCE.named()) == BALANCE


ISOLATION = {
    "namespaces": ["acme/.*"],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
}


async def test_an_isolation_policy_is_checked_and_shown(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        base = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
        refused = await rest("POST", f"{base}/p", {**ISOLATION, "primary": ["("]}, status=400)
        assert "not a regular expression" in told(refused)
        policy = {**ISOLATION, "primary": [broker.context.broker]}
        await rest("POST", f"{base}/p", policy)
        [shown] = await rest.get(f"{base}/brokers")
        assert (shown["policyName"], shown["primary"]) == ("p", True)
        assert shown["namespaceRegex"] == ["acme/.*"]
        assert await rest.get(f"{base}/brokers/{shown['brokerName']}") == shown
