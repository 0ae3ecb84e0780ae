"""Resolve the dependencies into the lock files.

Owns: requirements/*.lock; that of the tests' S3 server shares nothing with the others. Lock files
hold hashes and no index address, which would tie every user to one mirror. Imports: the standard
library; runs `uv`. Invariant: the extras (of pyproject.toml) are constrained by one another, so
that one environment can hold them all.
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
    "broker": ["pyproject.toml", "--extra", "broker"],
    "operator": ["--group", "pyproject.toml:operator-image", "-c", "requirements/broker.lock"],
    "spark": [
        "pyproject.toml", "--extra", "broker", "--extra", "spark", "-c", "requirements/broker.lock",
    ],
    "dev": [
        "pyproject.toml", "--all-extras", "-c", "requirements/broker.lock",
        "-c", "requirements/operator.lock", "-c", "requirements/spark.lock",
    ],
    "s3": ["requirements/s3.in"],
}  # fmt: skip


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([f"{directory}/bin/pip", "install", "--quiet", "uv"], check=True)
        for lock, options in LOCKS.items():
            print(f"- requirements/{lock}.lock", flush=True)
            subprocess.run(
                [f"{directory}/bin/uv", *COMPILE, *options, "-o", f"requirements/{lock}.lock"],
                check=True,
                env=environment,
            )


if __name__ == "__main__":
    main()
