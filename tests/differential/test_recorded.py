"""What Apache Pulsar answered, recorded, and what Magnetar answers now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.differential.comparison import Difference, Rule, differences, judge, rules
from dev.differential.record import DIRECTORY, place
from dev.differential.recordings import Recording, recordings
from dev.differential.running import QUIETS_S, run
from dev.differential.servers import MAGNETAR_SETTINGS, Server
from dev.server_process import ServerProcess

RECORDED = {recording.name: recording for recording in recordings(DIRECTORY)}
BESIDE = 8
Findings = dict[str, list[Difference]]


async def _replay(server: Server, recording: Recording, known: list[Rule]) -> list[Difference]:
    """What differs from the recording, with the longest wait if need be."""
    found: list[Difference] = []
    for quiet_s in QUIETS_S:
        shown = await run(server, place(recording.name), recording.steps, quiet_s)
        found = differences(recording.observed, json.loads(json.dumps(shown)))
        if not judge(found, known).unexplained:
            break
    return found


async def _replay_all(process: ServerProcess) -> Findings:
    server, gate, known = (
        Server("magnetar", process.broker_port, process.http_url),
        asyncio.Semaphore(BESIDE),
        rules(),
    )

    async def one(recording: Recording) -> list[Difference]:
        async with gate:
            await server.prepare(place(recording.name).namespace)
            return await _replay(server, recording, known)

    found = await asyncio.gather(*map(one, RECORDED.values()))
    await server.close()
    return dict(zip(RECORDED, found, strict=True))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Findings]:
    """Of all recordings, replayed beside each other on one server."""
    directory: Path = tmp_path_factory.mktemp("differential")
    with ServerProcess(directory, environment=MAGNETAR_SETTINGS) as process:
        yield asyncio.run(_replay_all(process))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RECORDED)
def test_magnetar_answers_as_apache_pulsar_did(findings: Findings, name: str) -> None:
    """Step by step, but for what docs/differences.md explains."""
    unexplained = judge(findings[name], rules()).unexplained
    assert not unexplained, "\n".join(
        f"step {found.index} {RECORDED[name].steps[found.index]}, {found.where}:\n"
        f"  Apache Pulsar {found.pulsar}\n  Magnetar      {found.magnetar}"
        for found in unexplained
    )


@pytest.mark.timeout(1800)
def test_every_rule_is_needed(findings: Findings) -> None:
    """A difference that is no more has no place in docs/differences.md."""
    known = rules()
    used = {rule.name for found in findings.values() for rule, _ in judge(found, known).explained}
    assert {rule.name for rule in known} == used


def test_all_recordings_are_of_one_version() -> None:
    """They are made again together when Apache Pulsar's version changes."""
    assert len({recording.version for recording in RECORDED.values()}) == 1
