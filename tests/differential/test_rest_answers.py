"""What REST answers, beside what Apache Pulsar's answered when it was asked: statuses, names of fields,
types of values, and sentences of refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.differential.rest_answers import PATHS, RECORDED, answers, changed, prepared
from dev.differential.rest_changes import CHANGES
from dev.server_process import ServerProcess

ONE, MANY = "/admin/v2/persistent/answers/ns/one", "/admin/v2/persistent/answers/ns/many"
ADDED = "it also has the epoch of a producer, and the subscription of the oldest message always"
INTENDED = {
    "/admin/v2/bookies/all": "there are no bookies",
    "/admin/v2/broker-stats/load-report": "what only its load manager and the JVM have is absent",
    "/admin/v2/broker-stats/metrics": "those of its ledgers are absent; /metrics has them all",
    "/admin/v2/broker-stats/topics": "it was asked before it had made its statistics",
    "/admin/v2/brokers/configuration/runtime": "settings have their own names",
    "/admin/v2/brokers/internal-configuration": "there is neither ZooKeeper nor BookKeeper",
    "/admin/v2/clusters/standalone": "there is no factory of the JVM's TLS",
    "/admin/v2/clusters/standalone/peers": "an empty list where there are none",
    f"{MANY}-partition-0/stats": ADDED,
    f"{ONE}/stats": ADDED,
    f"{MANY}/partitioned-stats": ADDED,
    f"{ONE}/internal-info": "times of changes are not kept",
    f"{MANY}/internal-info": "times of changes are not kept",
    f"{MANY}/compaction": "the state of all partitions instead of 404",
    f"{MANY}/offload": "the state of all partitions instead of 404",
    f"{MANY}/properties": "an empty object where there are none",
    "/admin/v2/schemas/answers/ns/one/metadata": "404 as for the schema",
}
"""Why an answer is another one; docs/compatibility.md says so to users."""


LAST = len(CHANGES) - 1
INTENDED_CHANGES = {LAST: "a group that is not there: 404, not an error of the server's"}
"""Why a step of the changes is answered otherwise, by its number."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """By a server of ours, in the same situation."""
    with (
        ServerProcess(tmp_path_factory.mktemp("server")) as server,
        prepared(server.service_url, server.http_url),
    ):
        yield {"answers": answers(server.http_url), "changes": changed(server.http_url)}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(RECORDED).read_text())
    return found


def _alike(ours: list[Any], theirs: list[Any]) -> bool:
    """The same, or a refusal that begins with Pulsar's sentence."""
    if ours[0] == theirs[0] and ours[0] != "text" and ours[0] >= 400:
        return theirs[1] is None or str(ours[1]).startswith(theirs[1])
    return ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_an_answer_is_as_pulsars_or_there_is_a_reason(
    path: str, shown: dict[str, Any], recorded: dict[str, Any]
) -> None:
    ours, theirs = shown["answers"][path], recorded["answers"][path]
    assert _alike(ours, theirs) is (path not in INTENDED), (INTENDED.get(path), ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_change_is_answered_as_pulsars_or_there_is_a_reason(
    number: int, shown: dict[str, Any], recorded: dict[str, Any]
) -> None:
    """Each step stands on those before it."""
    method, path, _ = CHANGES[number]
    ours, theirs = shown["changes"][number], recorded["changes"][number]
    reason = INTENDED_CHANGES.get(number)
    assert _alike(ours, theirs) is (reason is None), (method, path, reason, ours, theirs)
