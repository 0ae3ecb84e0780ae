"""A real etcd for tests.

Owns: finding the binary (ETCD_BINARY, else the one that `python3 -m dev.kube binary etcd` builds
and caches), and processes of it on free loopback ports with data in a temporary directory and fsync
on. Every process is stopped by its id.
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
from functools import cache
from pathlib import Path

from dev.ports import free_port

START_TIMEOUT_S = 120.0


class EtcdNotAvailable(RuntimeError):
    """No binary could be found or built."""


@cache
def etcd_binary() -> Path:
    """Path of the etcd binary, looked for once. Raises EtcdNotAvailable with the reason."""
    if chosen := os.environ.get("ETCD_BINARY"):
        return Path(chosen)
    command = [sys.executable, "-m", "dev.kube", "binary", "etcd"]
    root = Path(__file__).resolve().parents[2]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    lines = built.stdout.split()
    if built.returncode != 0 or not lines:
        raise EtcdNotAvailable(
            f"{' '.join(command)}: {built.stderr.strip()[-300:]}; set ETCD_BINARY"
        )
    return Path(lines[-1])


class EtcdServer:
    """One member; `extra` are more command line flags."""

    def __init__(self, directory: Path, extra: tuple[str, ...] = (), scheme: str = "http") -> None:
        self._binary = etcd_binary()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._extra = extra
        self._scheme = scheme
        self._port, self._peer_port, self._health_port = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def form_cluster(servers: Sequence[EtcdServer]) -> None:
        """Make `servers`, none of which has ever been started, the members of one cluster; its
        elections are unhurried."""
        peers = ",".join(f"member-{number}={server.peer}" for number, server in enumerate(servers))
        for number, server in enumerate(servers):
            unhurried = ("--heartbeat-interval", "100", "--election-timeout", "1000")
            server._extra += ("--name", f"member-{number}", "--initial-cluster", peers, *unhurried)

    @property
    def peer(self) -> str:
        return f"http://127.0.0.1:{self._peer_port}"

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for clients."""
        return "127.0.0.1", self._port

    def start(self, wait: bool = True) -> None:
        """Start, or start again on the same data; returns when it serves. A member of a cluster
        needs the others for that."""
        client, peer = self.endpoint, self.peer
        arguments = [
            *(
                "--name",
                "test",
                "--data-dir",
                str(self._directory / "data"),
                "--log-level",
                "error",
            ),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"test={peer}",
            ),
            *("--listen-metrics-urls", f"http://127.0.0.1:{self._health_port}"),
            # Short election times allow leases of one second.
            *("--heartbeat-interval", "20", "--election-timeout", "200", *self._extra),
        ]
        output = (self._directory / "etcd.log").open("ab")
        self._process = subprocess.Popen([self._binary, *arguments], stdout=output, stderr=output)
        output.close()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Until it serves. Raises EtcdNotAvailable with the end of its log."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EtcdNotAvailable(
                    f"etcd did not start: {(self._directory / 'etcd.log').read_text()[-500:]}"
                )
            time.sleep(0.02)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._health_port}/health", timeout=5
            ) as answer:
                return b'"health":"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def freeze(self) -> None:
        """Stop answering while every connection stays open; returns when the last thread stands
        still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any(not _stands_still(stat) for stat in tasks.glob("*/stat")):
            time.sleep(0.001)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Stop as a power failure would, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _stands_still(stat: Path) -> bool:
    """Whether a thread is stopped, or has ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return True
