"""`python -m dev.docs`: write every document that is made from code, models or values.

Owns: the list of generated documents; `make docs` writes them. Imports: siblings. Invariant: each
is a function of the checkout; `--check` (and a test) fails when one differs, and says what to run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dev import broker_settings
from dev.docs import chart_values, dashboards, metrics, reference, state_machines

ROOT = Path(__file__).resolve().parents[2]
CHART = chart_values.CHART


def documents() -> dict[Path, str]:
    """Path -> content."""
    made = {
        broker_settings.LIST: broker_settings.listed(),
        broker_settings.REFERENCE: broker_settings.reference(),
    }
    made |= {
        CHART / "values.schema.json": chart_values.described_schema(),
        CHART / "README.md": chart_values.readme(),
    }
    made |= {
        CHART / "files" / "dashboards" / name: text for name, text in dashboards.documents().items()
    }
    made |= {
        ROOT / "docs" / "reference" / name: text for name, text in reference.documents().items()
    }
    return made | {
        ROOT / "docs" / "metrics.md": metrics.document(),
        ROOT / "docs" / "state-machines.md": state_machines.document(),
    }


def differences() -> list[str]:
    """Documents that are missing or outdated."""
    return [
        str(path.relative_to(ROOT))
        for path, text in documents().items()
        if not path.exists() or path.read_text() != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.docs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a document differs"
    )
    if parser.parse_args().check:
        found = differences()
        if found:
            print(
                "these documents are outdated; run `make docs`:\n  " + "\n  ".join(found),
                file=sys.stderr,
            )
        return 1 if found else 0
    for path, text in documents().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
