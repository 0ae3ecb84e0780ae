"""Load balancing by REST: what is in force, what was decided, what would be decided."""

from __future__ import annotations

import json
from pathlib import Path

from magnetar.balance.decision import Decision, replay
from magnetar.balance.settings import STRATEGIES
from tests.support.balanced_pair import Stage, play
from tests.support.polling import until
from tests.support.rest import broker_with_rest, rest_over

PATH = "/magnetar/v1/balance"


def test_a_leader_shows_loads_trend_plan_and_what_it_decided(tmp_path: Path) -> None:
    """The plan moves nothing; decisions replay from their records; another broker redirects what
    only the leader knows, and answers the rest."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        led, other = stage.brokers
        async with rest_over(tmp_path, led) as rest, rest_over(tmp_path, other) as elsewhere:
            led.leader._balancer = led.leader._new_balancer()
            led.leader._leading = True  # without patrols of its own
            await stage.bundles(4, led)
            await stage.report(led, [1000] * 4)
            plan = await rest.get(f"{PATH}/plan?inputs=true")
            assert len(plan["moves"]) == 2
            planned = Decision.decode(json.dumps(plan["record"]).encode())
            assert replay(planned) == planned.outcome
            assert stage.on(other) == []
            before = await rest.get(PATH)
            assert (round(before["imbalance"], 1), before["trend"]) == (2.0, [])
            assert before["moves"]["under_way"] == []
            assert before["brokers"][led.context.broker]["share"] == before["imbalance"]
            await stage.patrol(led)
            after = await rest.get(PATH)
            assert [round(found["imbalance"], 1) for found in after["trend"]] == [2.0]
            assert len(after["moves"]["under_way"]) <= 2
            shown, *idle = await elsewhere.get(f"{PATH}/history")
            assert shown["moves_total"] == 2
            assert await elsewhere.get(f"{PATH}/history?before={shown['id']}") == idle
            found = await elsewhere.get(f"{PATH}/decisions/{shown['id']}")
            decision = Decision.decode(json.dumps(found["record"]).encode())
            assert replay(decision) == decision.outcome
            assert found["moves"] == shown["moves"]

    play(tmp_path, script)


def test_other_brokers_redirect_to_the_leader(tmp_path: Path) -> None:
    async def script(stage: Stage) -> None:
        first, second = stage.brokers
        await until(lambda: first.leader.leading or second.leader.leading)
        led, other = (first, second) if first.leader.leading else (second, first)
        async with rest_over(tmp_path, other) as elsewhere:
            for path in (PATH, f"{PATH}/plan?inputs=true"):
                found = await elsewhere.ask("GET", path)
                assert found.status_code == 307
                assert found.headers["location"] == f"{led.context.http_url}{path}"

    play(tmp_path, script)


async def test_bounds_are_refused_by_name(tmp_path: Path) -> None:
    """And a decision that is not kept is 404."""
    async with broker_with_rest(tmp_path) as (broker, rest, _peer):
        for query in ("count=0", "count=101", "before=../cluster"):
            reason = (await rest("GET", f"{PATH}/history?{query}", status=400))["reason"]
            assert query.partition("=")[0] in reason
        await rest("GET", f"{PATH}/decisions/7", status=400)
        absent = f"{7:015d}-{7:020d}-{7:08d}"
        await rest("GET", f"{PATH}/decisions/{absent}", status=404)
        await until(lambda: broker.leader.leading)
        name = STRATEGIES[0]
        await rest("POST", f"/admin/v2/brokers/configuration/{name}/ThresholdShedder", status=200)
        found = await rest.get(PATH)
        assert (found["strategy"], found["settings"][name]) == ("ThresholdShedder",) * 2
        assert found["changed"] == [name]


def test_explain_says_what_load_does_to_a_bundle(tmp_path: Path) -> None:
    """What would move now only the leader says, because it remembers what moved lately."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)

        async def asked() -> list[str]:
            async with rest_over(tmp_path, second) as rest:
                return [
                    " ".join((await rest.get(f"/magnetar/v1/explain?bundle={name}"))["by_load"])
                    for name in stage.names
                ]

        said = await asked()
        assert all("1002.0 messages/s, of 40" in found for found in said), said
        assert all("What would move now, the leader knows" in found for found in said), said
        second.leader._leading = True
        said = await asked()
        assert sum("Planner would move it to second now" in found for found in said) == 2, said
        assert sum("would move 2 other bundles now" in found for found in said) == 2

    play(tmp_path, script)
