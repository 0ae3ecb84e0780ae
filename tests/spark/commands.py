"""The command line beside a server, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dev.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 540.0


def magnetar(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = [str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs", ".")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAGNETAR_")}
    environment = {
        **own,
        "PYTHONPATH": ":".join(path),
        "MAGNETAR_URL": server.http_url,
        "PYSPARK_PYTHON": sys.executable,
    }
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
