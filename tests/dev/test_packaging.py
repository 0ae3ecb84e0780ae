"""What the distribution declares is what its code imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import magnetar
from magnetar.cli import EXTRA_OF

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"magnetar", "magnetar_operator", "magnetar_jobs", "dev", "tests"}
DISTRIBUTIONS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "jwt": "pyjwt",
    "prometheus_client": "prometheus-client",
    "pulsar": "pulsar-client",
    "typing_extensions": "typing-extensions",
    "yaml": "pyyaml",
}
"""Modules that are not called as what brings them."""
PLAIN = ("wire", "client", "cli", "resources", "topics", "transactions", "hashes.py", "names.py")
"""Of the package: what works without an extra, but for commands that name the extra they need."""
ON_REQUEST = {"cli/tokens.py", "cli/serve.py", "cli/kubernetes.py", "client/avro_records.py"}
OWN_ENVIRONMENT = {"moto", "werkzeug"}
"""Imported by the tests' S3 server, which runs in an environment of its own."""


def declared(*extras: str) -> set[str]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in extras)]
    return {re.split(r"[<>=\[; ]", line)[0].lower() for lines in lists for line in lines}


def imported(paths: Iterable[Path]) -> dict[str, str]:
    """Third-party distributions -> a file that imports each."""
    found: dict[str, str] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for module in (name.partition(".")[0] for name in names):
                if module not in sys.stdlib_module_names and module not in OURS:
                    found[DISTRIBUTIONS.get(module, module)] = str(path.relative_to(ROOT))
    return found


@pytest.mark.parametrize(
    ("tree", "extras"),
    [
        ("broker_image", ("broker", "kubernetes")),
        ("operator", ("operator",)),
        ("spark_jobs", ("spark",)),
        ("dev", ("broker", "operator", "spark", "dev")),
    ],
)
def test_every_import_is_declared(tree: str, extras: tuple[str, ...]) -> None:
    known = declared(*extras) | (OWN_ENVIRONMENT if tree == "dev" else set())
    assert {
        name: where
        for name, where in imported((ROOT / tree).rglob("*.py")).items()
        if name not in known
    } == {}


def test_client_and_command_line_need_no_extra() -> None:
    package = ROOT / "broker_image" / "magnetar"
    paths = [
        path
        for part in PLAIN
        for path in ([package / part] if part.endswith(".py") else (package / part).rglob("*.py"))
        if str(path.relative_to(package)) not in ON_REQUEST
    ]
    assert {name: where for name, where in imported(paths).items() if name not in declared()} == {}


@pytest.mark.slow
def test_a_command_names_the_extra_that_it_needs() -> None:
    """With what only extras bring out of reach the client is there, and `standalone` says what to
    install."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({sorted(EXTRA_OF)}))\n"
    program = "import magnetar.client\nfrom magnetar.cli import main\nmain(['standalone'])"
    done = subprocess.run(
        [sys.executable, "-c", block + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'magnetar[broker]'" in done.stderr


def test_there_is_one_version() -> None:
    """The distribution takes the package's, and the chart's is the same."""
    assert "version" in PROJECT["dynamic"]
    chart = (ROOT / "charts" / "magnetar" / "Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): \"?([\d.]+)\"?$", chart, re.MULTILINE) == [
        magnetar.__version__,
        magnetar.__version__,
    ]
