"""What the operator's image holds is what the operator imports."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = """
import importlib, pkgutil, sys
import magnetar_operator
for module in pkgutil.walk_packages(magnetar_operator.__path__, "magnetar_operator."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*{name.partition(".")[0] for name, module in sys.modules.items() if module is not None})
"""
OF_BROKERS_ONLY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "obstore",
    "typer",
    "rich",
    "mmh3",
    "jwt",
    "crc32c",
}


def test_the_operator_imports_nothing_that_its_image_lacks() -> None:
    """Those that only brokers and the command line have must not be importable, let alone be
    imported."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({sorted(OF_BROKERS_ONLY)}))\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"kopf", "aetcd"} <= set(done.stdout.split())


def test_the_command_starts_the_operator_with_what_its_image_holds() -> None:
    """`magnetar operator` comes as far as its settings."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({sorted(OF_BROKERS_ONLY)}))\n"
    program = f"{blocked}from magnetar.cli import main\nsys.argv = ['magnetar', 'operator']\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MAGNETAR_IMAGE": ""},
    )
    assert done.returncode != 0
    assert "MAGNETAR_IMAGE is not set" in done.stderr


def test_the_group_of_the_image_repeats_the_projects_own_bounds() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    assert set(document["dependency-groups"]["operator-image"]) <= {
        *project["dependencies"], *project["optional-dependencies"]["operator"],
    }  # fmt: skip
