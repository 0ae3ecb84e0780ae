"""The command line against a live standalone server, and its words when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.ports import free_port
from dev.server_process import ServerProcess

pytestmark = pytest.mark.slow
TIMEOUT_S = 240


def magnetar(
    *arguments: str, text: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command; tables get a width that cuts nothing."""
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "COLUMNS": "200", **(environment or {})},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    process.start()
    yield process
    process.stop()


def test_what_is_produced_is_consumed_in_order_and_once(server: ServerProcess) -> None:
    """Arguments and lines of standard input; JSON has everything; what was acknowledged does not
    come back."""
    url = ("--service-url", server.service_url)
    first = magnetar("produce", "greetings", "-m", "one", "-m", "two", "--key", "k", *url)
    assert (first.returncode, first.stdout) == (0, "2 messages published and durable\n")
    second = magnetar("produce", "greetings", *url, text="three\nümlaut\n")
    assert (second.returncode, second.stdout) == (0, "2 messages published and durable\n")
    consumed = magnetar(
        "consume",
        "greetings",
        "-s",
        "me",
        "--initial",
        "earliest",
        "-n",
        "3",
        "--output",
        "json",
        *url,
    )
    assert consumed.returncode == 0, consumed.stderr
    rows = [json.loads(line) for line in consumed.stdout.splitlines()]
    assert [(row["value"], row["key"]) for row in rows] == [
        ("one", "k"),
        ("two", "k"),
        ("three", None),
    ]
    rest = magnetar(
        "consume",
        "greetings",
        "-s",
        "me",
        "-n",
        "1",
        environment={"MAGNETAR_SERVICE_URL": server.service_url},
    )
    assert rest.stdout.rstrip().endswith(" ümlaut")


def test_status_shows_the_broker_and_its_bundles(server: ServerProcess) -> None:
    """The table for people names broker and state; JSON is what the server said."""
    shown = magnetar("status", "--url", server.http_url)
    assert shown.returncode == 0, shown.stderr
    for word in ("standalone", "serving", server.service_url, "BUNDLE", "healthy"):
        assert word in shown.stdout
    parsed = json.loads(magnetar("status", "--output", "json", "--url", server.http_url).stdout)
    assert [row["broker"] for row in parsed["brokers"]] == ["standalone"]
    assert {"leader", "bundles", "storage_id", "volume"} <= set(parsed)


def test_a_server_that_is_not_there_is_two_lines() -> None:
    """Exit 3, the address, what to check; no traceback."""
    url = f"http://127.0.0.1:{free_port()}"
    failed = magnetar("status", "--url", url)
    assert failed.returncode == 3
    assert failed.stderr == (
        f"magnetar: no answer from {url}: Connection refused\n  Is the server running, and is "
        "--url (or MAGNETAR_URL) right?\n"
    )


def test_a_refusal_shows_the_servers_reason(server: ServerProcess) -> None:
    """The topic's namespace does not exist: the sentence names it, and says how to create it."""
    failed = magnetar(
        "produce", "persistent://no/where/t", "-m", "x", "--service-url", server.service_url
    )
    assert failed.returncode == 1
    assert "no/where" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_wrong_usage_is_exit_2() -> None:
    assert magnetar("consume", "t").returncode == 2
    assert magnetar("no-such-command").returncode == 2


def test_a_taken_port_stops_the_start_before_anything_is_touched(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The owner is named, and no data directory is left behind."""
    data = tmp_path / "data"
    ports = ("--broker-port", str(server.broker_port), "--http-port", str(free_port()))
    failed = magnetar("standalone", "--data-dir", str(data), *ports)
    assert failed.returncode == 1
    assert f"port {server.broker_port} is in use by" in failed.stderr
    assert f"pid {server.pid}" in failed.stderr
    assert "BROKER_PORT" in failed.stderr
    assert not data.exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MAGNETAR_LEASE_TTL_S": "0.1"}, "MAGNETAR_LEASE_TTL_S=0.1 is out of range: use 1..60"),
        ({"MAGNETAR_PARTITIONS_MAX": "x"}, "MAGNETAR_PARTITIONS_MAX='x' is not a number"),
    ],
)
def test_a_bad_setting_stops_the_start_with_its_name(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    """Variable, value and bounds."""
    ports = ("--broker-port", str(free_port()), "--http-port", str(free_port()))
    failed = magnetar(
        "standalone", "--data-dir", str(tmp_path / "data"), *ports, environment=environment
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"magnetar: {words}")
    assert len(failed.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ("rich", "yaml", "asyncio", "fastapi", "magnetar.client", "magnetar.broker")),
        (["broker", "--help"], ("typer", "rich", "fastapi", "magnetar.client", "http.client")),
        (["standalone", "--help"], ("typer", "rich", "fastapi", "magnetar.client", "http.client")),
    ],
)
def test_help_is_quick_and_servers_are_light(arguments: list[str], absent: tuple[str, ...]) -> None:
    """What is not imported costs neither time nor memory: help needs no network, a server no
    terminal libraries."""
    program = (
        "import sys\nfrom magnetar.cli import main\ntry:\n    main(sys.argv[1:])\nexcept "
        "SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {absent!r} if sys.modules.get(name) is not None])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command() -> None:
    """Servers too, which another parser reads; every group and command has a sentence that fits
    a line."""
    shown = magnetar("--help", environment={"COLUMNS": "80"}).stdout
    for name in (
        "standalone",
        "broker",
        "operator",
        "status",
        "top",
        "explain",
        "unload",
        "drain",
        "produce",
    ):
        assert f"  {name} " in shown
    for name in ("consume", "apply", "plan", "report"):
        assert f"  {name} " in shown
    for name in (
        "topics",
        "subscriptions",
        "namespaces",
        "bundles",
        "balance",
        "metadata",
        "completion",
    ):
        assert f"  {name} " in shown
    assert "..." not in shown.removeprefix("Usage: magnetar [OPTIONS] COMMAND [ARGS]...")


def test_top_puts_the_busiest_first(server: ServerProcess) -> None:
    """Topics by what waits in them, with their bundle and broker; sums by bundle and broker
    agree."""
    url = ("--service-url", server.service_url)
    for topic, messages in (
        ("persistent://public/default/quiet", "1"),
        ("persistent://public/default/loud", "5"),
    ):
        assert magnetar("topics", "create", topic, "--url", server.http_url).returncode == 0
        assert (
            magnetar(
                "subscriptions",
                "create",
                topic,
                "waits",
                "--from",
                "earliest",
                "--url",
                server.http_url,
            ).returncode
            == 0
        )
        assert magnetar("produce", topic, "-m", "x", "-n", messages, *url).returncode == 0
    found = json.loads(
        magnetar(
            "top", "--by", "backlog", "-n", "2", "--output", "json", "--url", server.http_url
        ).stdout
    )
    assert [(row["topic"].rpartition("/")[2], row["backlog"], row["broker"]) for row in found["topics"]] == [
        ("loud", 5, "standalone"), ("quiet", 1, "standalone"),
    ]  # fmt: skip
    assert sum(row["backlog"] for row in found["bundles"]) == 6
    assert [row["backlog"] for row in found["brokers"]] == [6]
    shown = magnetar("top", "--by", "backlog", "--url", server.http_url)
    assert shown.returncode == 0, shown.stderr
    assert "imbalance (max/mean) 1.00" in shown.stdout
    assert (found["brokers"][0]["load"], found["balance"]["imbalance"]) == (1.0, 1.0)
    assert "Topics by backlog" in shown.stdout


def test_load_balancing_of_a_server_is_planned_and_simulated(
    server: ServerProcess, tmp_path: Path
) -> None:
    """One broker: nothing to move, and nothing was decided; the saved record replays."""
    record = tmp_path / "plan.json"
    url = ("--url", server.http_url)
    shown = magnetar("balance", "plan", "--save", str(record), *url)
    assert shown.returncode == 0, shown.stderr
    assert "Planner, imbalance 1.00 (max/mean): no moves" in shown.stdout
    replayed = magnetar("balance", "simulate", str(record))
    assert replayed.returncode == 0, replayed.stderr
    assert "the record says the same" in replayed.stdout
    history = json.loads(magnetar("balance", "history", "--output", "json", *url).stdout)
    assert not any(decision["moves"] for decision in history)  # it has no other broker
    absent = f"{7:015d}-{7:020d}-{7:08d}"
    assert "there is none" in magnetar("balance", "show", absent, *url).stderr
