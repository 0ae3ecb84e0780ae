"""Servers for the tests with real clients.

Owns: fixtures that start real processes and stop them by their own handle; the brokers' logs beside a failure. Imports: dev.server_process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess
from tests.clients.cluster import Cluster

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the servers it used had to say."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for used in item.funcargs.values():
            if isinstance(used, Cluster):
                report.sections.append(("broker logs", used.log_dump()))
                break
            if isinstance(used, ServerProcess):
                report.sections.append(("server log", used.log_tail()))
                break
    return report


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server, ready."""
    process = ServerProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[pulsar.Client]:
    """The official Python client, connected to `server`."""
    connected = pulsar.Client(server.service_url, operation_timeout_seconds=20, logger=QUIET)
    yield connected
    connected.close()
