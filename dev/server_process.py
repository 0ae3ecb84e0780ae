"""A Magnetar server as a child process.

Owns: starting, awaiting, killing and stopping one; used by the demo, the benchmarks and the tests
with real clients. Imports: the standard library. Invariants: only processes started here are
signalled, by their own handle; ports are free ones of the loopback; the server's log is kept in a
file that an error message names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.ports import free_port

HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0
POLL_S = 0.02


class ServerProcess:
    """One server: a standalone, or a broker of a cluster if `store` is given. `volume` "" is a
    directory below `directory`.

    `role` "coordinator" makes it a transaction coordinator of that cluster instead of a broker. As
    a context it is ready, and stopped in the end.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "standalone",
        store: str | None = None,
        volume: str = "",
        environment: dict[str, str] | None = None,
        advertise: str = HOST,
        listener: str = "",
        role: str = "broker",
        open_files: int | None = None,
        program: Sequence[str] = ("magnetar",),
    ) -> None:
        """`advertise`: the host that the broker advertises, if something stands between its clients
        and its ports.

        `listener`: the host that the broker advertises for its listener `external`. `open_files`:
        the process's hard limit of them. `program`: the module that is run, and its own arguments.
        """
        self.directory, self.name, self.volume = directory, name, volume
        self._advertise, self._listener, self._role = advertise, listener, role
        self._program = tuple(program)
        self.broker_port, self.http_port = free_port(), free_port()
        self.tls_port, self.https_port = free_port(), free_port()
        self._store = store
        self._limits = ["prlimit", f"--nofile={open_files}", "--"] if open_files is not None else []
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = directory / f"{name}.log"

    @property
    def service_url(self) -> str:
        """Where clients go, the advertised host included."""
        return f"pulsar://{self._advertise}:{self.broker_port}"

    @property
    def external_url(self) -> str:
        """Where clients of the listener `external` go."""
        return f"pulsar://{self._listener}:{self.broker_port}"

    @property
    def service_url_tls(self) -> str:
        """Where clients go by TLS, if the environment gives the server certificates."""
        return f"pulsar+ssl://{self._advertise}:{self.tls_port}"

    @property
    def https_url(self) -> str:
        """The server's own REST port by TLS."""
        return f"https://{HOST}:{self.https_port}"

    @property
    def http_url(self) -> str:
        """The server's own REST port."""
        return f"http://{HOST}:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists (it may be stopped by SIGSTOP)."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        """Ready; nothing runs if that fails."""
        try:
            self.start()
        except BaseException:
            if self.running:
                self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, wait: bool = True) -> float:
        """Start (again) on the same directory and ports; seconds until ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = ["--broker-port", str(self.broker_port), "--http-port", str(self.http_port)]
        if "MAGNETAR_TLS" in self._environment:
            ports += ["--tls-port", str(self.tls_port), "--https-port", str(self.https_port)]
        if self._store is None:
            command = [
                "standalone",
                "--data-dir",
                str(self.directory / "data"),
                *ports,
                "--log-level",
                "info",
            ]
            command += ["--storage", self.volume] if self.volume else []
        else:
            command = [
                self._role,
                "--name",
                self.name,
                "--store",
                self._store,
                "--volume",
                self.volume or str(self.directory / "volume"),
                "--bind",
                HOST,
                "--advertised-address",
                self._advertise,
                *ports,
            ]
            command += (
                ["--advertised-listeners", f"external:{self.external_url}"]
                if self._listener
                else []
            )
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._limits, sys.executable, "-m", *self._program, *command],
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return time.monotonic() - started

    def wait_ready(self) -> None:
        """Wait for GET /ready; raises RuntimeError with the log's end if the process dies or
        takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"{self.name} exited with {self._process.returncode}:\n{self.log_tail()}"
                )
            try:
                with urllib.request.urlopen(f"{self.http_url}/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
        raise RuntimeError(
            f"{self.name} is not ready after {READY_TIMEOUT_S} s:\n{self.log_tail()}"
        )

    def log_tail(self) -> str:
        """The end of the server's log."""
        return self.log_path.read_text(errors="replace")[-4000:] if self.log_path.exists() else ""

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self, seconds: float) -> None:
        """SIGSTOP for so long."""
        self.signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self, timeout_s: float = 120.0) -> int:
        """SIGTERM and wait; the exit code."""
        if self._process is None or self._process.poll() is not None:
            return self._process.returncode if self._process is not None else 0
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(
                f"{self.name} did not stop within {timeout_s} s:\n{self.log_tail()}"
            ) from None

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(120)

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
