"""The drivers of the official Java and Go clients and of pulsar-admin, and the libraries of Apache
Pulsar itself, built once and cached.

Owns: `<cache>/clients/`, keyed by the hash of what each part is made from; `python -m
dev.testbed.foreign_build java go admin` builds with progress. Imports: dev.kube (cache directory,
atomic entries, progress lines). Invariants: a cache entry is complete or absent (one rename);
packages come through Maven and Go and so through the machine's own settings, which also verify
their checksums.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.kube.binaries import entry
from dev.kube.paths import cache_directory
from dev.kube.report import FETCH_ATTEMPTS, CommandFailed, run_with_progress, say

HERE = Path(__file__).parent
JAVA, GO, ADMIN = HERE / "java", HERE / "go", HERE / "java_admin"
ORACLE = HERE / "java_oracle"
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
KEY_DIGITS = 16


def _key(root: Path, *patterns: str) -> str:
    """What the files are: their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        digest.update(
            f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes()
        )
    return digest.hexdigest()[:KEY_DIGITS]


@contextmanager
def _lock(cache: Path, name: str) -> Iterator[None]:
    """A second build of the same thing waits and finds it done."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ensure(name: str, fill: Callable[[Path], None]) -> Path:
    """The cache entry `name`, filled on first use."""
    cache = cache_directory(os.environ) / "clients"
    directory = cache / name
    if not directory.is_dir():
        with _lock(cache, name):
            if not directory.is_dir():
                started = time.monotonic()
                with entry(cache, name) as unfinished:
                    fill(unfinished)
                say(
                    f"{name}: ready after {time.monotonic() - started:.0f} s; later runs use the "
                    "cache"
                )
    return directory


def _need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise CommandFailed(
            f"{program} is not installed; the tests with foreign clients need it (Debian: "
            f"{package})"
        )


def _fetch_libraries(project: Path) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        _need("mvn", "maven")
        copy = [
            "mvn",
            "-B",
            "-f",
            project / "pom.xml",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={directory}",
        ]
        run_with_progress(
            [str(part) for part in copy],
            lambda lines: f"{project.name}: fetching libraries ({lines} lines of Maven)",
            attempts=FETCH_ATTEMPTS,
        )

    return fill


def _compile_java(project: Path, libraries: Path) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        _need("javac", "openjdk-17-jdk-headless")
        sources = sorted((project / "src").rglob("*.java"))
        command: list[str | Path] = [
            "javac",
            "-Xlint:all,-processing,-classfile,-serial,-try",
            "-cp",
            f"{libraries}/*",
            "-d",
            directory,
            *sources,
        ]
        run_with_progress(command, lambda _: f"{project.name}: compiling")

    return fill


def java_libraries() -> Path:
    """A directory with the Java client and what it needs, fetched if need be. Raises
    CommandFailed saying what is missing."""
    return _ensure(f"java-libraries-{_key(JAVA, 'pom.xml')}", _fetch_libraries(JAVA))


def java() -> list[str]:
    """The command that starts the Java driver, built if need be. Raises CommandFailed saying
    what is missing."""
    libraries = java_libraries()
    classes = _ensure(
        f"java-driver-{_key(JAVA, 'pom.xml', 'src/**/*.java')}", _compile_java(JAVA, libraries)
    )
    logging = [
        f"-Dorg.slf4j.simpleLogger.{name}"
        for name in (
            f"defaultLogLevel={'debug' if os.environ.get('DRIVER_DEBUG') else 'info'}",
            "showDateTime=true",
            "dateTimeFormat=HH:mm:ss.SSS",
            "showThreadName=false",
        )
    ]
    return ["java", *JVM_OPTIONS, *logging, "-cp", f"{classes}:{libraries}/*", "magnetar.Main"]


def pulsar_admin() -> list[str]:
    """The command that starts pulsar-admin behind line-JSON, but for its URL. Raises
    CommandFailed saying what is missing."""
    libraries = _ensure(f"admin-libraries-{_key(ADMIN, 'pom.xml')}", _fetch_libraries(ADMIN))
    classes = _ensure(
        f"admin-shell-{_key(ADMIN, 'pom.xml', 'src/**/*.java')}", _compile_java(ADMIN, libraries)
    )
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", *JVM_OPTIONS, quiet, "-cp", f"{classes}:{libraries}/*", "magnetar.Shell"]


def oracle_libraries() -> Path:
    """A directory with Apache Pulsar's broker and what it needs, fetched if need be. Raises
    CommandFailed saying what is missing."""
    return _ensure(f"oracle-libraries-{_key(ORACLE, 'pom.xml')}", _fetch_libraries(ORACLE))


def build_go(sources: Path, program: Path) -> None:
    """Build the Go module in `sources`. Raises CommandFailed saying what is missing."""
    _need("go", "golang, 1.24 or later")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    build = [
        "nice",
        "-n",
        "5",
        "go",
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        "-s -w",
        "-o",
        str(program),
        ".",
    ]
    run_with_progress(
        build,
        lambda lines: f"Go client: {lines} packages fetched or compiled (350 or so)",
        cwd=sources,
        environment=environment,
        attempts=FETCH_ATTEMPTS,
    )


def go() -> list[str]:
    """The command that starts the Go driver, built if need be. Raises CommandFailed saying what
    is missing."""
    return [
        str(
            _ensure(
                f"go-driver-{_key(GO, '*.go', 'go.mod', 'go.sum')}",
                lambda made: build_go(GO, made / "driver"),
            )
            / "driver"
        )
    ]


BUILDERS = {"java": java, "go": go, "admin": pulsar_admin}


def main() -> None:
    for language in sys.argv[1:] or BUILDERS:
        try:
            command = BUILDERS[language]()
        except (CommandFailed, subprocess.SubprocessError) as error:
            sys.exit(f"{language}: {error}")
        print(f"{language}: {command[0]}")


if __name__ == "__main__":
    main()
