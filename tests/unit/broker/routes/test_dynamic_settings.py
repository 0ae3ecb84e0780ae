"""Settings that change while brokers run; isolation policies that take effect."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import cast

import pytest

from magnetar.balance.settings import BALANCE, PLANNER, STRATEGIES, Settings
from magnetar.broker.bundles.balancing.settings import changed
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.errors import InvalidRequest
from magnetar.hosting import live_settings
from magnetar.hosting.bounded import bounded_fields
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import BROKER_CONFIGURATION, DocumentsRecord
from magnetar.names import TopicName
from tests.support.broker_pair import pair
from tests.support.brokers import SETTINGS, TOPIC, open_peer
from tests.support.polling import until
from tests.support.rest import broker_with_rest, refusal_text

PATH = "/admin/v2/brokers/configuration"
SHEDDER, PLACEMENT = STRATEGIES


async def test_a_setting_is_changed_listed_and_restored(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        await rest("POST", f"{PATH}/{SHEDDER}/org.apache.pulsar.x.ThresholdShedder", status=200)
        assert broker.ownership.balance.current.shedder == "ThresholdShedder"
        assert SHEDDER in await rest.get(f"{PATH}/values")
        assert (await rest.get(f"{PATH}/runtime"))[SHEDDER] == "ThresholdShedder"
        await rest("DELETE", f"{PATH}/{SHEDDER}", status=200)
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
        reason = refusal_text(await rest("POST", f"{PATH}/{name}/{value}", status=400))
        assert name in reason
        assert value in reason
        assert remedy in reason
        assert await rest.get(f"{PATH}/values") == {}


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("read_batch_entries_max", "7", 7),
        ("ack_write_delay_s", "0.5", 0.5),
        ("exposeTopicLevelMetricsInPrometheus", "false", 0),
    ],
)
async def test_a_live_setting_is_in_force_at_once_until_it_is_deleted(
    tmp_path: Path, name: str, value: str, held: float
) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        assert name in await rest.get(PATH)
        started = getattr(broker.context.settings, name)
        await rest("POST", f"{PATH}/{name}/{value}", status=200)
        assert getattr(broker.context.settings, name) == held
        assert (await rest.get(f"{PATH}/values"))[name] == str(held)
        assert (await rest.get(f"{PATH}/runtime"))[name] == str(held)
        await rest("DELETE", f"{PATH}/{name}", status=200)
        await until(lambda: getattr(broker.context.settings, name) == started)
        assert await rest.get(f"{PATH}/values") == {}


@pytest.mark.parametrize("value", ["0", "many", "nan", "1e99"])
async def test_a_bad_value_of_a_live_setting_changes_nothing(tmp_path: Path, value: str) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        path = f"{PATH}/read_batch_entries_max/{value}"
        reason = (await rest("POST", path, status=400))["reason"]
        assert "READ_BATCH_ENTRIES_MAX" in reason
        assert value in reason
        assert broker.context.settings == broker.context.live.started


async def test_a_setting_of_the_start_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, _peer):
        for method, path in (("POST", "log_file_bytes/1"), ("DELETE", "log_file_bytes")):
            remedy = (await rest(method, f"{PATH}/{path}", status=412))["remedy"]
            assert "spec.config" in remedy
            assert "MAGNETAR_LOG_FILE_BYTES" in remedy
        await rest("POST", f"{PATH}/no_such_setting/1", status=412)


async def test_topics_and_new_connections_learn_of_a_change(tmp_path: Path) -> None:
    """A topic that is served counts from then on; a connection that is open keeps its settings."""
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce(1, producer_name="p")
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        await rest("POST", f"{PATH}/metrics_publish_histograms/true", status=200)
        await rest("POST", f"{PATH}/keep_alive_s/77", status=200)
        await until(lambda: topic.publishing.histogram is not None)
        await peer.send(b"counted", 0)
        histogram = topic.publishing.histogram
        assert histogram is not None
        await until(lambda: histogram.sizes.read(0).values == 1)
        async with open_peer(broker) as other:
            await other.produce(1, producer_name="q")
            producers = topic.core.producers.by_name
            kept = {
                name: cast("ProducerSession", found.handle).connection.settings.keep_alive_s
                for name, found in producers.items()
            }
        assert kept == {"p": SETTINGS.keep_alive_s, "q": 77}
        await rest("DELETE", f"{PATH}/metrics_publish_histograms", status=200)
        await until(lambda: topic.publishing.histogram is None)


def test_live_settings_are_read_when_they_are_needed() -> None:
    """No constructor keeps the value of one; those of a connection, and of one scrape, may."""
    allowed = {"connection.py", "reading.py"}
    package = Path(live_settings.__file__).parents[1]
    assert {field.name for field in bounded_fields(BrokerSettings)} >= live_settings.LIVE
    for path in [*(package / "broker").rglob("*.py"), *(package / "hosting").rglob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
                continue
            kept = {
                node.attr
                for statement in function.body
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
                for node in ast.walk(statement)
                if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("settings")
            }
            assert not kept & live_settings.LIVE or path.name in allowed, path


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
            {
                "loadBalancerSheddingIntervalMinutes": "3",
                "loadBalancerOfTheFuture": "1",
                "partitions_max": 9,
                "schema_versions_max": "none",
            }
        )
        await cluster.store.put(keys.documents(BROKER_CONFIGURATION), stored.encode())
        for broker in (cluster.first, cluster.second):
            await until(lambda broker=broker: broker.ownership.balance.current.shed_minutes == 3)
            await until(lambda broker=broker: broker.context.settings.partitions_max == 9)
            assert broker.context.settings.schema_versions_max == SETTINGS.schema_versions_max


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
        assert "not a regular expression" in refusal_text(refused)
        policy = {**ISOLATION, "primary": [broker.context.broker]}
        await rest("POST", f"{base}/p", policy)
        [shown] = await rest.get(f"{base}/brokers")
        assert (shown["policyName"], shown["primary"]) == ("p", True)
        assert shown["namespaceRegex"] == ["acme/.*"]
        assert await rest.get(f"{base}/brokers/{shown['brokerName']}") == shown
