"""Servers for the tests with real clients.

Owns: fixtures that start real processes and stop them by their own handle; the logs of servers and
foreign clients beside a failure. Imports: dev.server_process, foreign, places, program,
pulsar_admin, rest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from dev.ports import free_port
from dev.server_process import ServerProcess
from dev.testbed.cluster import STILL, Cluster
from dev.testbed.foreign import Client, Driver
from dev.testbed.rest import Admin
from tests.clients.coordinators import ENDS_ARE_CARRIED_OUT
from tests.clients.places import KINDS, NAMES, REFERENCE_DIFFERS, Place
from tests.clients.program import Program
from tests.clients.pulsar_admin import PulsarAdmin, Site

QUICK_SETTINGS = {
    "MAGNETAR_FAILOVER_DELAY_MS": "200",
    "MAGNETAR_EXPIRY_CHECK_S": "0.2",
    "MAGNETAR_BACKLOG_QUOTA_CHECK_S": "0.2",
    "MAGNETAR_TOPIC_CHECK_S": "0.1",
    **ENDS_ARE_CARRIED_OUT,
}
"""Periodic work of the shared server, often enough for tests to wait for."""
NAMESPACE_NUMBERS = itertools.count()
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the servers it used had to say."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for used in dict.fromkeys(
            value
            for value in item.funcargs.values()
            if isinstance(value, Cluster | ServerProcess | Driver | Place)
        ):
            if isinstance(used, Cluster):
                report.sections.append(("broker logs", used.log_dump()))
            if isinstance(used, ServerProcess):
                report.sections.append(("server log", used.log_tail()))
            if isinstance(used, Place):
                report.sections.append(("logs of the place", used.log_tail()))
            if isinstance(used, Driver):
                report.sections.append((f"{used.language} client's log", used.log_tail()))
    return report


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server, ready."""
    with ServerProcess(tmp_path) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[pulsar.Client]:
    """The official Python client, connected to `server`."""
    connected = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    yield connected
    connected.close()


@pytest.fixture(scope="session", params=["java", "go"])
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """The program with the official Java or Go client; one for all tests."""
    program = Driver(request.param, tmp_path_factory.mktemp(request.param))
    yield program
    program.close()


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A standalone server for the tests of one module, each with topics of its own: they restart
    it often enough."""
    process = ServerProcess(tmp_path_factory.mktemp("server"), environment=QUICK_SETTINGS)
    yield process
    process.stop()


@pytest.fixture
def shared_server(module_server: ServerProcess) -> ServerProcess:
    """The module's server, ready, also after a test that failed between killing and starting it."""
    if not module_server.running:
        module_server.start()
    return module_server


@pytest.fixture(scope="module")
def module_plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As `module_server`, with the settings that a server is delivered with."""
    process = ServerProcess(tmp_path_factory.mktemp("plain-server"))
    yield process
    process.stop()


@pytest.fixture
def plain_server(module_plain_server: ServerProcess) -> ServerProcess:
    """The module's plain server, ready, also after a test that failed between killing and
    starting it."""
    if not module_plain_server.running:
        module_plain_server.start()
    return module_plain_server


@pytest.fixture
def foreign(shared_server: ServerProcess, driver: Driver) -> Iterator[Client]:
    """The official Java or Go client, connected to `shared_server`."""
    connected = driver.client(shared_server.service_url)
    yield connected
    connected.close()


@pytest.fixture
def connected(shared_server: ServerProcess) -> Iterator[pulsar.Client]:
    """The official Python client, connected to `shared_server`."""
    made = pulsar.Client(shared_server.service_url, operation_timeout_seconds=60, logger=QUIET)
    yield made
    made.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """Where transactions run, by name, started when it is asked for; it stays up for the module.
    What did not start is stopped as well."""
    started: dict[str, Place] = {}
    with ExitStack() as stack:

        def find(name: str) -> Place:
            if name not in started:
                made = KINDS[name](tmp_path_factory.mktemp(name))
                stack.callback(made.stop)
                made.start()
                started[name] = made
            return started[name]

        yield find


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    """A place that serves transactions."""
    if request.param == "apache":
        if request.node.originalname.endswith("_crash"):
            pytest.skip("the reference wipes its data when it starts")
        differs = REFERENCE_DIFFERS.get(request.node.originalname) or REFERENCE_DIFFERS.get(
            request.node.name
        )
        if differs:
            request.applymarker(pytest.mark.xfail(strict=True, reason=differs))
    return places(request.param)


@pytest.fixture
def app(place: Place, driver: Driver) -> Iterator[Client]:
    """The official client with transactions enabled, at each place."""
    connected = driver.client(place.service_url, transactions=True)
    yield connected
    connected.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, although the server is shared."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


@pytest.fixture
def admin(shared_server: ServerProcess) -> Admin:
    """The shared server's REST."""
    return Admin(shared_server)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers of the module, whose bundles only the tests move; leases last for as long as a busy
    machine may need to look at what an end of a broker looks like."""
    with Cluster(
        tmp_path_factory.mktemp("cluster"), environment={**STILL, "MAGNETAR_LEASE_TTL_S": "10"}
    ) as running:
        yield running


@pytest.fixture
def program(cluster: Cluster) -> Program:
    """The command line. It knows all brokers of `cluster` by REST, the first of which does not
    exist."""
    cluster.repair()
    urls = [
        f"http://127.0.0.1:{free_port()}",
        *(broker.http_url for broker in cluster.brokers.values()),
    ]
    return Program(",".join(urls), cluster.service_url)


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A server, or three brokers, one JVM with pulsar-admin, and a tenant `acme`."""
    directory = tmp_path_factory.mktemp(request.param)
    running: ServerProcess | Cluster
    if request.param == "standalone":
        running = ServerProcess(directory)
        running.start()
        http_url, brokers = running.http_url, 1
    else:
        running = Cluster(directory / "cluster")
        running.start()
        http_url, brokers = running.brokers[running.entry].http_url, len(running.brokers)
    admin = PulsarAdmin(http_url, directory)
    try:
        admin("tenants create acme --admin-roles admin --allowed-clusters standalone")
        yield Site(admin, running.service_url, brokers)
    finally:
        admin.close()
        running.stop()


@pytest.fixture
def namespace(site: Site) -> str:
    """A namespace of the test's own at `site`."""
    name = f"acme/n{next(NAMESPACE_NUMBERS)}"
    site.admin(f"namespaces create {name} --bundles 8")
    return name
