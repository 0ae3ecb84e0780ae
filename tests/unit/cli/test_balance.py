"""`magnetar balance simulate`: records replay offline, and answer what other settings would do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from magnetar.balance.cluster import Broker, Bundle, Cluster
from magnetar.balance.decision import SHED, Decision, Request, decide, recorded
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, Resource
from magnetar.balance.settings import BALANCE
from magnetar.cli.balance import balance
from magnetar.cli.failures import WrongUsage

SHEDDER = "loadBalancerLoadSheddingStrategy"


def _request() -> Request:
    """Four bundles of 30000 messages/s at one of two brokers."""
    history = History.steady(Rates(30_000, 0, 30_000_000, 0))
    bundles = tuple(Bundle(f"t/n/0x0000000{at}_0x0000000{at + 1}", "a", history) for at in range(4))
    top = tuple(BundleLoad(bundle.name, history) for bundle in bundles)
    rates = Rates(120_000, 0, 120_000_000, 0)
    cpu = Resource(90, 100), Resource(5, 100)
    full = LoadReport("a", 1000, cpu=cpu[0], rates=rates, bundles=4, top=top)
    brokers = (Broker("a", full), Broker("b", LoadReport("b", 1000, cpu=cpu[1])))
    return Request(SHED, Cluster(1000, brokers, bundles), settings=BALANCE.named(), seed=1)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path, request = tmp_path / "record.json", _request()
    path.write_bytes(recorded(request, decide(request)).encode())
    return path


def simulate(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(balance, ["simulate", *arguments])
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


def simulated(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simulate(*arguments, "--output", "json"))
    return found


def test_a_record_replays_and_shows_what_it_leads_to(record: Path) -> None:
    """An answer of REST with the record in it, too."""
    found = simulated(str(record))
    assert (len(found["moves"]), found["same"]) == (2, True)
    assert found["imbalance"] == {"before": 2.0, "after": 1.0}
    assert found["brokers"]["b"]["before"] == 0.0
    assert found["brokers"]["a"]["after"] == found["brokers"]["b"]["after"]
    shown = simulate(str(record))
    assert "imbalance (max/mean) 2.00, then 1.00" in shown
    assert "the record says the same" in shown
    record.write_text(json.dumps({"id": "x", "record": json.loads(record.read_text())}))
    assert simulated(str(record)) == found


def test_other_settings_decide_otherwise(record: Path) -> None:
    off = simulated(str(record), "--set", "loadBalancerSheddingEnabled=false")
    assert (off["moves"], off["same"]) == ([], None)
    other = simulated(str(record), "--set", f"{SHEDDER}=ThresholdShedder")
    assert other["strategy"] == "ThresholdShedder"
    assert [move["source"] for move in other["moves"]][:1] == ["a"]
    transfer = (f"{SHEDDER}=TransferShedder",)
    assert simulated(str(record), "--set", *transfer)["moves"] == []
    assert simulated(str(record), "--set", *transfer, "--cycles", "9")["moves"] != []


def test_another_outcome_is_exit_1(record: Path) -> None:
    """As after a change of the program."""
    decision = Decision.decode(record.read_bytes())
    outcome = replace(decision.outcome, moves=decision.outcome.moves[:1])
    record.write_bytes(replace(decision, outcome=outcome).encode())
    assert "the record says something else" in simulate(str(record), code=1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"record": 7}', '{"schema": 2}'])
def test_what_is_no_record_is_wrong_usage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "strange"
    path.write_text(text)
    found = CliRunner().invoke(balance, ["simulate", str(path)])
    assert isinstance(found.exception, WrongUsage)
    assert "--save FILE" in str(found.exception) + repr(vars(found.exception))


def test_a_record_without_inputs_is_wrong_usage(tmp_path: Path) -> None:
    path, request = tmp_path / "short.json", _request()
    path.write_bytes(replace(recorded(request, decide(request)), inputs="").encode())
    found = CliRunner().invoke(balance, ["simulate", str(path)])
    assert isinstance(found.exception, WrongUsage)
