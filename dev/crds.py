"""`python -m dev.crds`: write the CustomResourceDefinitions that the resources' models describe.

Owns: `crds/*.yaml` and their copies in the chart. Imports: magnetar.resources, yaml. Invariant:
the files are a function of the models; `--check` (and a test) fails when they differ, and says what
to run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from magnetar.resources.definitions import definitions

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = (ROOT / "crds", ROOT / "charts" / "magnetar" / "files" / "crds")
HEADER = "# Generated from broker_image/magnetar/resources by `make crds`; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes equal parts out twice: an anchor would surprise readers and some tools."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def rendered() -> dict[str, str]:
    """File name -> content."""
    return {
        f"{name}.yaml": HEADER + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120)
        for name, manifest in definitions().items()
    }


def differences() -> list[str]:
    """Files that are missing, outdated or too many."""
    wanted = rendered()
    found = []
    for directory in DIRECTORIES:
        present = {path.name for path in directory.glob("*.yaml")}
        found += [str(directory / name) for name in sorted(present ^ set(wanted))]
        found += [
            str(directory / name)
            for name in sorted(present & set(wanted))
            if (directory / name).read_text() != wanted[name]
        ]
    return found


def write() -> None:
    """Make the files what they should be."""
    wanted = rendered()
    for directory in DIRECTORIES:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("*.yaml"):
            if path.name not in wanted:
                path.unlink()
        for name, text in wanted.items():
            (directory / name).write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.crds", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file differs"
    )
    if not parser.parse_args().check:
        write()
        return 0
    found = differences()
    if found:
        print(
            "these files do not match the models; run `make crds`:\n  " + "\n  ".join(found),
            file=sys.stderr,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
