"""docs/transactions.md is true: its programs are run as they stand, its settings and their defaults
are the server's, its commands run elsewhere too.

Its lines for `magnetar` run in `test_cli_transactions`, its example in `test_exactly_once`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from dev.testbed import foreign_build
from magnetar.hosting.settings import BrokerSettings
from tests.clients.program import ROOT
from tests.support.guides import GUIDES

pytestmark = pytest.mark.slow

GUIDE = (ROOT / "docs" / "transactions.md").read_text()
SERVICE_URL = "pulsar://127.0.0.1:6650"
PROGRAM_S = 300.0
Command = list[str]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def _java(directory: Path, text: str) -> Command:
    (directory / "Mover.java").write_text(text)
    return [
        "java",
        *foreign_build.JVM_OPTIONS,
        "-cp",
        f"{foreign_build.java_libraries()}/*",
        str(directory / "Mover.java"),
    ]


def _go(directory: Path, text: str) -> Command:
    (directory / "main.go").write_text(text)
    for name in ("go.mod", "go.sum"):
        (directory / name).write_bytes((foreign_build.GO / name).read_bytes())
    foreign_build.build_go(directory, directory / "mover")
    return [str(directory / "mover")]


def _python(directory: Path, text: str) -> Command:
    (directory / "mover.py").write_text(text)
    return [sys.executable, str(directory / "mover.py")]


@pytest.mark.parametrize(
    ("language", "prepare"),
    [
        pytest.param("java", _java, marks=pytest.mark.java),
        pytest.param("go", _go, marks=pytest.mark.java),
        ("python", _python),
    ],
    ids=["java", "go", "python"],
)
@pytest.mark.timeout(600)
def test_a_program_of_the_guide_moves_a_message(
    plain_server: ServerProcess,
    tmp_path: Path,
    language: str,
    prepare: Callable[[Path, str], Command],
) -> None:
    """On a server as it is delivered; what it prints last is what came out of its transaction."""
    (text,) = _blocks(language)
    assert text.count(SERVICE_URL) == 1
    command = prepare(tmp_path, text.replace(SERVICE_URL, plain_server.service_url))
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"FROM {language.upper()}", done.stdout + done.stderr


def test_versions_are_those_that_the_tests_run_with() -> None:
    """Of the Java client as in the tests' pom.xml, of the Go client as in their go.mod."""
    (java,) = re.findall(r"`org\.apache\.pulsar:pulsar-client:([\d.]+)`", GUIDE)
    assert (
        f"<artifactId>pulsar-client</artifactId>\n      <version>{java}</version>"
        in (foreign_build.JAVA / "pom.xml").read_text()
    )
    (go,) = re.findall(r"`(github\.com/apache/pulsar-client-go v[\d.]+)`", GUIDE)
    assert f"\t{go}\n" in (foreign_build.GO / "go.mod").read_text()


def test_settings_are_the_servers() -> None:
    """Every setting that it names exists, and the table of limits shows their defaults, in
    words."""
    defaults = BrokerSettings()
    documented = {
        "transaction_timeout_max_s": (86_400.0, "1 day"),
        "transaction_outcome_kept_s": (600.0, "10 minutes"),
        "transactions_open_max": (100_000, "100 000"),
        "transaction_participants_max": (10_000, "10 000"),
        "txn_open_per_topic_max": (10_000, "10 000"),
        "txn_open_entries_per_topic_max": (1_000_000, "1 000 000 entries"),
        "txn_entries_max": (100_000, "100 000 entries, 1 GiB"),
        "txn_bytes_max": (1 << 30, "100 000 entries, 1 GiB"),
        "txn_held_acks_max": (200_000, "200 000 runs"),
        "transaction_end_patience_s": (0.5, "0.5 s"),
    }
    limits = re.findall(r"^\|[^|]+\|([^|]*`[^|]*)\| ([^|]+) \|$", GUIDE, re.MULTILINE)
    rows = {name: words for bounds, words in limits for name in re.findall(r"`(\w+)`", bounds)}
    assert rows == {name: words for name, (_, words) in documented.items()}
    assert {name: getattr(defaults, name) for name in documented} == {
        name: value for name, (value, _) in documented.items()
    }
    assert defaults.transactions_enabled
    named = set(re.findall(r"`((?:transactions?|txn)_[a-z_]+)`", GUIDE))
    assert {"transactions_enabled", *documented} <= named
    assert [name for name in named if not hasattr(defaults, name)] == []


def test_metrics_are_listed() -> None:
    """Every metric that it names is in the reference, which is made from the code."""
    listed = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(magnetar_[a-z_]+)`", GUIDE))
    assert named
    assert [name for name in named if f"`{name}`" not in listed] == []


def test_what_it_has_for_kubernetes_is_run_by_the_other_guides() -> None:
    """Line by line: those are run against a real API server."""
    others = {line for guide in GUIDES for line in (ROOT / "docs" / guide).read_text().splitlines()}
    (block,) = _blocks("bash")
    assert [line for line in block.splitlines() if line not in others] == []
