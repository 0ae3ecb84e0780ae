"""The JVM of a Spark session.

Owns: finding a Java that will do, starting Spark's JVM, and what it said if it ended at once. Imports:
pyspark (only to start), errors. Invariants: what the JVM writes goes to this process's standard error;
its command line holds no secret.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.errors import MagnetarError

if TYPE_CHECKING:
    from pyspark import SparkConf

JAVA_MINIMUM = 17
JAVA_REMEDY = "install openjdk-17-jre-headless or set JAVA_HOME"
WORDS_BYTES_MAX = 600
COPY_BYTES, STANDARD_ERROR = 1 << 16, 2
_SECRETS = {"spark.authenticate.secret"}


class JavaMissing(MagnetarError):
    """No Java of a sufficient version: Spark cannot start."""


class JavaEnded(MagnetarError):
    """The JVM ended before Spark was ready; another attempt may find more memory."""


def require_java(environment: Mapping[str, str]) -> Path:
    """The `java` that Spark will start. Raises JavaMissing with the remedy."""
    home = environment.get("JAVA_HOME", "")
    found = shutil.which("java", path=f"{home}/bin" if home else environment.get("PATH", ""))
    if found is None:
        place = f"JAVA_HOME={home}" if home else "PATH"
        raise JavaMissing(
            f"no java in {place}: Spark needs Java {JAVA_MINIMUM} or newer; {JAVA_REMEDY}"
        )
    release = Path(found).resolve().parent.parent / "release"
    version = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
    if version is not None and int(version[1]) < JAVA_MINIMUM:
        raise JavaMissing(
            f"{found} is Java {version[1]}: Spark needs Java {JAVA_MINIMUM} or newer; {JAVA_REMEDY}"
        )
    return Path(found)


def start_java(configuration: SparkConf) -> None:
    """Start the JVM for the sessions of this process, unless it runs. Raises JavaEnded with its
    last words."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    launched = SparkConf(loadDefaults=False)  # the session gets the rest over the gateway
    for name, value in configuration.getAll():
        if name not in _SECRETS:
            launched.set(name, value)
    output = _Output()
    try:
        gateway = launch_gateway(launched, {"stdout": output.writing, "stderr": output.writing})
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        words = output.last_words()
        raise JavaEnded(f"Spark's JVM ended before it was ready; it said: {words}") from error
    finally:
        output.close()
    SparkContext._ensure_initialized(gateway=gateway)


class _Output:
    """What the JVM writes: copied to standard error, and its end remembered."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self._tail = b""
        # It ends with the last process that can write. A daemon: none of them outlives this one for
        # long, and what they say then is not needed.
        self._copying = threading.Thread(
            target=self._copy, args=(reading,), name="java-output", daemon=True
        )
        self._copying.start()

    def close(self) -> None:
        """The JVM has its copy of the end that is written to, or has ended."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def last_words(self) -> str:
        """In one line, once everything is read."""
        self.close()
        self._copying.join()
        said = self._tail.decode(errors="replace")
        return " ".join(said.split()) or "nothing"

    def _copy(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as source:
            while data := source.read(COPY_BYTES):
                self._tail = (self._tail + data)[-WORDS_BYTES_MAX:]
                while data:
                    data = data[os.write(STANDARD_ERROR, data) :]
