"""What applications of the official client saw with Apache Pulsar, recorded, and see now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.differential.applications import (
    DIRECTORY,
    QUIETS_MS,
    Servers,
    Shown,
    history,
)
from dev.differential.recordings import Recording, recordings
from dev.differential.servers import MAGNETAR_SETTINGS, Server
from dev.server_process import ServerProcess

RECORDED = {recording.name: recording for recording in recordings(DIRECTORY)}


def _replay(servers: Servers, recording: Recording) -> list[Shown]:
    """What it shows, with the longest wait if need be."""
    shown: list[Shown] = []
    for quiet_ms in QUIETS_MS:
        (shown,) = servers.play(recording.steps, quiet_ms)
        if shown == recording.observed:
            break
    return shown


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Shown]]]:
    """By all recordings, replayed beside each other on one server."""
    directory: Path = tmp_path_factory.mktemp("applications")
    with ServerProcess(directory, environment=MAGNETAR_SETTINGS) as process:
        servers = Servers(Server("magnetar", process.broker_port, process.http_url))
        shown = servers.each(lambda recording: _replay(servers, recording), RECORDED.values())
        yield dict(zip(RECORDED, shown, strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RECORDED)
def test_an_application_sees_what_it_saw_with_apache_pulsar(
    seen: dict[str, list[Shown]], name: str
) -> None:
    for index, (left, right) in enumerate(zip(RECORDED[name].observed, seen[name], strict=True)):
        assert right == left, f"step {index}"


def test_the_same_seed_gives_the_same_history() -> None:
    """And histories are of many kinds."""
    kinds = {step[0] for seed in range(50) for step in history(seed)}
    assert history(7) == history(7)
    assert len(kinds) == 13
