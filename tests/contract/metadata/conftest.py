"""Fixtures of the metadata contract: each test runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.testbed.etcd_server import EtcdNotAvailable, EtcdServer
from tests.contract.metadata.backends import Backend, EmbeddedBackend, EtcdBackend, FaultyBackend
from tests.contract.metadata.simulated import SimulatedBackend


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A running etcd; tests that need it are skipped, with the reason, where there is none."""
    try:
        server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    except EtcdNotAvailable as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.kill()


@pytest.fixture(
    params=[
        "memory",
        "embedded",
        "faulty",
        "simulated",
        pytest.param("etcd", marks=[pytest.mark.etcd, pytest.mark.slow]),
    ],
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return Backend(tmp_path)
        case "embedded":
            return EmbeddedBackend(tmp_path)
        case "faulty":
            return FaultyBackend(tmp_path)
        case "simulated":
            return SimulatedBackend(tmp_path)
        case _:
            return EtcdBackend(tmp_path, request.getfixturevalue("etcd_server"))
