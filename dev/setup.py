"""Make the virtual environment.

Owns: the steps from a bare Python to an installed checkout, with a line per step. Imports: the
standard library only (nothing is installed yet). Invariants: every package is checked against its
hash; an interrupted run is repaired by the next; nothing outside the given directory changes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

PYTHON_MIN = (3, 11)
TICK_S = 10


def _announce_progress(label: str, started: float, done: threading.Event) -> None:
    while not done.wait(TICK_S):
        print(f"  ... {label}: {time.monotonic() - started:.0f} s", flush=True)


def step(label: str, command: list[str]) -> None:
    """Run one step with a line every ten seconds; on failure show what it said and stop."""
    print(f"- {label}", flush=True)
    started, done = time.monotonic(), threading.Event()
    ticker = threading.Thread(target=_announce_progress, args=(label, started, done), daemon=True)
    ticker.start()
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    done.set()
    ticker.join()
    if result.returncode != 0:
        print(result.stdout[-4000:])
        sys.exit(
            f"{label} failed (exit {result.returncode}); the lines above say why. Remedy: fix it "
            "and run the same command again."
        )
    print(f"  done in {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    environment, lock = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.version_info < PYTHON_MIN:
        sys.exit(
            f"python3 is {sys.version.split()[0]}; Magnetar needs >= "
            f"{'.'.join(map(str, PYTHON_MIN))}"
        )
    python = environment / "bin" / "python"
    if not python.exists():
        if (
            shutil.which("python3") is None
            or subprocess.run(
                [sys.executable, "-c", "import ensurepip, venv"], check=False
            ).returncode
        ):
            sys.exit("python3 has no venv module; on Debian: apt-get install python3-venv")
        step(
            f"virtual environment in {environment}",
            [sys.executable, "-m", "venv", str(environment)],
        )
    step(
        f"packages of {lock} (about 700 MB with Spark; the first time takes a minute or two)",
        [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)],
    )
    step(
        "this checkout",
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-e",
            ".",
        ],
    )


if __name__ == "__main__":
    main()
