"""Apache Pulsar as the oracle of what a client sees: a standalone server from Maven artifacts.

Owns: `Oracle`, and the command `make oracle` (`python -m dev.testbed.oracle`) that runs one until
it is interrupted. Imports: foreign_build (the libraries, fetched once), dev.bench.pulsar_peer (the
process, its readiness and stop). Invariants: it listens on the loopback only; its heap, direct
memory and caches are bounded; its data is wiped when it starts; only the process started here is
stopped, by its own handle.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.bench.pulsar_peer import PulsarPeer
from dev.kube.report import CommandFailed, say
from dev.testbed import foreign_build

CONFIGURATION = foreign_build.ORACLE / "standalone.conf"
LOGGING = foreign_build.ORACLE / "log4j2.properties"
MEMORY = ("-Xms128m", "-Xmx1g", "-XX:MaxDirectMemorySize=384m", "-XX:+UseSerialGC")
NICENESS = "10"
OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""Packages of the JDK that its libraries look into, as bin/pulsar of the distribution opens them."""
NO_FSYNC = {"journalSyncData": "false"}
"""As the distribution's own standalone.conf: what it answers is compared, not its durability."""


def version() -> str:
    """Of the Apache Pulsar that pom.xml names."""
    found = re.search(
        r"<version>(\d+\.\d+\.\d+)</version>", (foreign_build.ORACLE / "pom.xml").read_text()
    )
    assert found is not None
    return found.group(1)


class Oracle(PulsarPeer):
    """One Apache Pulsar standalone with transactions, its data below `directory`; as a context it
    is ready, and stopped in the end."""

    ready_timeout_s = 300.0
    """It is nice to what else runs."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        libraries = foreign_build.oracle_libraries()
        super().__init__(libraries, directory, {**NO_FSYNC, **(settings or {})})
        self._libraries = libraries

    def shipped_configuration(self) -> str:
        return CONFIGURATION.read_text()

    def program(self, configuration: Path) -> list[str | Path]:
        opened = [word for package in OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        return [
            "nice",
            "-n",
            NICENESS,
            "java",
            *MEMORY,
            *opened,
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dlog4j2.configurationFile={LOGGING}",
            "-cp",
            f"{self._libraries}/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config",
            configuration,
        ]

    def __enter__(self) -> Self:
        """Ready; nothing runs if that fails."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run one until Ctrl-C or SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m dev.testbed.oracle", description=__doc__)
    options.add_argument("--data", type=Path, help="keep data and logs here (wiped at each start)")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)
    with tempfile.TemporaryDirectory(prefix="magnetar-oracle-") as scratch:
        try:
            say(f"starting Apache Pulsar {version()}, standalone with transactions, heap of 1 GiB")
            started = time.monotonic()
            with Oracle(chosen.data or Path(scratch)) as oracle:
                say(f"ready after {time.monotonic() - started:.0f} s; its log: {oracle.log_path}")
                print(f"clients  {oracle.service_url}\nREST     {oracle.http_url}", flush=True)
                print("Ctrl-C stops it", flush=True)
                signal.pause()
        except KeyboardInterrupt:
            say("stopped")
        except (CommandFailed, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
