"""Apache Pulsar's official distribution: its load tool drives every server here, its broker is the
peer.

Owns: `<cache>/pulsar-<version>/`. Imports: dev.kube (cache directory, atomic entries, progress
lines). Invariants: the cache entry is complete or absent (one rename); the download goes through
Maven and so through the machine's own Maven settings, which also verify its checksum.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from dev.kube.binaries import entry
from dev.kube.paths import cache_directory
from dev.kube.report import FETCH_ATTEMPTS, CommandFailed, run_with_progress, say

VERSION = "4.0.8"  # the newest whose complete distribution is published as a Maven artifact
ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
DOWNLOAD_MEGABYTES = 245


def cached(cache: Path) -> Path | None:
    """The unpacked distribution if it is there already."""
    home = cache / f"pulsar-{VERSION}"
    return home if (home / "bin" / "pulsar-perf").is_file() else None


def ensure(cache: Path | None = None) -> Path:
    """The distribution's directory, downloaded and unpacked on first use. Raises CommandFailed
    saying what is missing."""
    cache = cache or cache_directory(os.environ)
    require_java()
    if (home := cached(cache)) is not None:
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"pulsar-{VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second command waits and finds it done
        if cached(cache) is None:
            _download(cache)
    home = cached(cache)
    if home is None:
        raise CommandFailed(
            f"{ARTIFACT} unpacked without bin/pulsar-perf; remove {cache / f'pulsar-{VERSION}'} "
            "and try again"
        )
    return home


def require_java() -> None:
    """Raises CommandFailed if neither JAVA_HOME nor PATH has a Java."""
    java_home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (
        java_home and (Path(java_home) / "bin" / "java").is_file()
    ):
        raise CommandFailed(
            "java is not installed; the load tool needs Java 17 or later (Debian: "
            "openjdk-17-jre-headless), or set JAVA_HOME"
        )


def _download(cache: Path) -> None:
    if shutil.which("mvn") is None:
        raise CommandFailed(
            f"mvn is not installed; it fetches {ARTIFACT} (Debian: maven), or unpack that archive "
            f"as {cache / f'pulsar-{VERSION}'}"
        )
    started = time.monotonic()
    say(
        f"fetching Apache Pulsar {VERSION} ({DOWNLOAD_MEGABYTES} MB) with Maven; later runs use "
        f"{cache}"
    )
    with entry(cache, f"pulsar-{VERSION}") as directory:
        archive_directory = directory / ".download"
        copy = [
            "mvn",
            "-B",
            "dependency:copy",
            f"-Dartifact={ARTIFACT}",
            f"-DoutputDirectory={archive_directory}",
        ]
        run_with_progress(
            copy, lambda _: f"downloading {DOWNLOAD_MEGABYTES} MB", attempts=FETCH_ATTEMPTS
        )
        (archive,) = archive_directory.glob("*.tar.gz")
        unpack: list[str | Path] = [
            "tar",
            "-xzf",
            archive,
            "--strip-components=1",
            "--no-same-owner",
            "-C",
            directory,
        ]
        run_with_progress(unpack, lambda _: "unpacking")
        shutil.rmtree(archive_directory)
    say(f"fetched Apache Pulsar {VERSION} in {time.monotonic() - started:.0f} s")
