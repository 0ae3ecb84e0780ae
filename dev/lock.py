"""Resolve the dependencies into the lock files.

Owns: requirements*.lock, and the one of the tests' S3 server, which shares nothing with them:
hashes, no index address (a lock file with addresses would tie every user to one mirror). Imports:
the standard library; runs `uv`. Invariant: the extras (of pyproject.toml) are constrained by one
another, so that one environment can hold them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

COMPILE = [
    "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes",
    "--no-emit-index-url", "--no-emit-find-links", "--no-header",
]  # fmt: skip
LOCKS: dict[str, list[str]] = {
    "requirements.lock": ["pyproject.toml"],
    "requirements-operator.lock": [
        "--group",
        "pyproject.toml:operator-image",
        "-c",
        "requirements.lock",
    ],
    "requirements-spark.lock": ["pyproject.toml", "--extra", "spark", "-c", "requirements.lock"],
    "requirements-dev.lock": [
        "pyproject.toml",
        "--all-extras",
        "-c",
        "requirements.lock",
        "-c",
        "requirements-operator.lock",
        "-c",
        "requirements-spark.lock",
    ],
    "dev/s3/requirements.lock": ["dev/s3/requirements.in"],
}


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([f"{directory}/bin/pip", "install", "--quiet", "uv"], check=True)
        for lock, options in LOCKS.items():
            print(f"- {lock}", flush=True)
            subprocess.run(
                [f"{directory}/bin/uv", *COMPILE, *options, "-o", lock], check=True, env=environment
            )


if __name__ == "__main__":
    main()
