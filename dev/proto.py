"""Generated protocol modules.

Owns: how `pulsar_api_pb2.py` and its type stub are made from `pulsar_api.proto`: `python -m
dev.proto` writes them, `--check` only compares. Imports: the standard library; protoc comes with
grpcio-tools, the stub generator with mypy-protobuf. Invariant: the committed files are exactly what
this module generates; a test fails when they drift.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "broker_image"
SCHEMA = "magnetar/wire/pulsar_api.proto"
OUTPUTS = ("magnetar/wire/pulsar_api_pb2.py", "magnetar/wire/pulsar_api_pb2.pyi")


def generate(directory: Path) -> dict[str, bytes]:
    """Run protoc into `directory`; returns the generated files by their path under the source
    root. Raises CalledProcessError."""
    environment = dict(os.environ)
    # finds protoc-gen-mypy
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", "")]
    )
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={SOURCE_ROOT}",
        f"--python_out={directory}",
    ]
    subprocess.run([*command, f"--mypy_out=quiet:{directory}", SCHEMA], check=True, env=environment)
    return {name: (directory / name).read_bytes() for name in OUTPUTS}


def drifted() -> list[str]:
    """Paths of committed files that differ from what the schema generates now."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
    return [
        name
        for name, content in fresh.items()
        if not (SOURCE_ROOT / name).is_file() or (SOURCE_ROOT / name).read_bytes() != content
    ]


def main() -> int:
    """Write the generated files, or with --check say which are stale (exit status 1)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        stale = drifted()
        for name in stale:
            print(f"{name} is stale; run: python -m dev.proto", file=sys.stderr)
        return 1 if stale else 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in generate(Path(scratch)).items():
            (SOURCE_ROOT / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
