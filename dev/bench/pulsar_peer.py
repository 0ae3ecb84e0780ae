"""Apache Pulsar standalone with fsync, as the peer of a measurement.

Owns: its configuration, start, readiness and stop. Imports: dev.server_process (free ports), the
standard library. Invariants: it syncs its journal before receipts (its own standalone file does
not); it listens on the loopback only, the bookie included; its data lies in the given directory and
is wiped at start; only the process started here is stopped, by its own handle.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from dev.bench.pulsar_perf import BenchFailed
from dev.ports import free_port

POLL_S = 0.2
STOP_TIMEOUT_S = 30.0
LOG_TAIL_CHARACTERS = 4000
TRANSACTIONS = {
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}
"""Settings of one that has transactions, and acknowledges parts of batches in them."""


def durable_configuration(
    shipped: str, broker_port: int, http_port: int, settings: Mapping[str, str] | None = None
) -> str:
    """The shipped standalone.conf with fsync, everything on the loopback, and `settings`; every
    other line stays as it is."""
    changed = {
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerServicePort": str(broker_port),
        "webServicePort": str(http_port),
        "journalSyncData": "true",
        "listeningInterface": "lo",  # the bookie's; without it the bookie listens on all addresses
        **(settings or {}),
    }
    lines = [line for line in shipped.splitlines() if line.partition("=")[0].strip() not in changed]
    return "\n".join([*lines, *(f"{key}={value}" for key, value in changed.items())]) + "\n"


class PulsarPeer:
    """One Apache Pulsar standalone of the distribution at `home`, with its data below
    `directory`."""

    name = "pulsar"
    ready_timeout_s = 90.0

    def __init__(
        self, home: Path, directory: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self._home, self._directory, self._settings = home, directory, settings
        self.broker_port, self.http_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = directory / "pulsar.log"

    @property
    def http_url(self) -> str:
        """Where its REST is."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def shipped_configuration(self) -> str:
        """The configuration that the settings change."""
        return (self._home / "conf" / "standalone.conf").read_text()

    def program(self, _configuration: Path) -> list[str | Path]:
        """The command of a standalone server, without its options. The distribution's script
        takes its configuration from the environment."""
        return [self._home / "bin" / "pulsar", "standalone"]

    def start(self) -> float:
        """Start and wait until its health check passes; seconds that took."""
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "standalone.conf"
        configuration.write_text(
            durable_configuration(
                self.shipped_configuration(), self.broker_port, self.http_port, self._settings
            )
        )
        command: list[str | Path] = [
            *self.program(configuration),
            "-nfw",
            "-nss",
            "-a",
            "127.0.0.1",
            "--wipe-data",
        ]
        command += [
            "--metadata-dir",
            self._directory / "metadata",
            "--bookkeeper-dir",
            self._directory / "bookkeeper",
        ]
        environment = {
            **os.environ,
            "PULSAR_STANDALONE_CONF": str(configuration),
            "PULSAR_LOG_DIR": str(self._directory / "logs"),
        }
        started = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._wait_ready()
        return time.monotonic() - started

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.ready_timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchFailed(
                    f"Apache Pulsar exited with {self._process.returncode}:\n{self.log_tail()}"
                )
            try:
                with urllib.request.urlopen(
                    f"{self.http_url}/admin/v2/brokers/health", timeout=10
                ) as answer:
                    if answer.read().strip() == b"ok":
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
        raise BenchFailed(
            f"Apache Pulsar is not healthy after {self.ready_timeout_s:.0f} s:\n{self.log_tail()}"
        )

    def log_tail(self) -> str:
        """The end of the server's log."""
        return self.log_path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def stop(self) -> None:
        """SIGTERM; SIGKILL if it lingers: its data is wiped anyway."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
