"""Go programs built from source and cached by version.

Owns: `<cache>/bin/<name>-<version>/`. May import: paths, report, versions.
Invariant: a cache entry is complete or absent: it appears by one rename, so an interrupted build leaves no half binary.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.kube.paths import MODULES, Paths
from dev.kube.report import run_quietly, run_with_progress, say
from dev.kube.versions import PROGRAMS, Program


class UnknownProgram(LookupError):
    """The version table has no such program."""


def cached(name: str, paths: Paths) -> Path | None:
    """The program's path if it has been built already."""
    program = PROGRAMS[name]
    path = paths.binaries / program.cache_key / program.name
    return path if path.is_file() else None


def ensure(names: Iterable[str], paths: Paths) -> dict[str, Path]:
    """Build what is missing, in the order of the version table, and return all paths."""
    wanted = list(names)
    if unknown := [name for name in wanted if name not in PROGRAMS]:
        raise UnknownProgram(f"no program {', '.join(unknown)}; known: {', '.join(PROGRAMS)}")
    missing = [name for name in PROGRAMS if name in wanted and cached(name, paths) is None]
    for position, name in enumerate(missing, start=1):
        _build_once(PROGRAMS[name], paths, f"{name} {PROGRAMS[name].version} ({position} of {len(missing)})")
    return {name: paths.binaries / PROGRAMS[name].cache_key / name for name in wanted}


def _build_once(program: Program, paths: Paths, title: str) -> None:
    with _exclusive(paths.binaries / f"{program.cache_key}.lock", title):
        if cached(program.name, paths) is not None:
            return  # another process built it while we waited
        for killed in paths.binaries.glob(f".unfinished-{program.cache_key}-*"):
            shutil.rmtree(killed, ignore_errors=True)  # what a killed build could not remove itself
        _build(program, paths, title)


def _build(program: Program, paths: Paths, title: str) -> None:
    started = time.monotonic()
    say(f"building {title} from source; later starts use the cache")
    with entry(paths.binaries, program.cache_key) as directory:
        stale_packages = _count_stale(program, title)

        def describe(lines: int) -> str:
            return f"{title}: {min(lines, stale_packages)} of {stale_packages} packages compiled"

        argv = [*_go("build", program), "-v", "-o", directory / program.name, program.package]
        run_with_progress(argv, describe, cwd=MODULES / program.module, environment=_go_environment())
    say(f"built {title} in {time.monotonic() - started:.0f} s")


def _count_stale(program: Program, title: str) -> int:
    """How many packages Go will compile; the first call also downloads the sources."""
    argv = [*_go("list", program), "-deps", "-f", "{{if .Stale}}stale{{end}}", program.package]
    directory = MODULES / program.module
    with tempfile.NamedTemporaryFile("r", prefix="magnetar-go-list-") as answer:
        shell = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", answer.name]
        run_with_progress([*shell, *argv], lambda _: f"{title}: fetching sources", cwd=directory, environment=_go_environment())
        return answer.read().count("stale")


def _go(verb: str, program: Program) -> list[str | Path]:
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {program.linker_flags}".strip()]
    return ["nice", "-n", "10", "go", verb, *flags]


def _go_environment() -> dict[str, str]:
    """The user's own Go settings (proxy, caches), except what would change the result."""
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}


@contextmanager
def entry(parent: Path, name: str) -> Iterator[Path]:
    """A directory to fill; it becomes `parent/name` in one rename, or nothing at all if filling it fails."""
    parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".unfinished-{name}-", dir=parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        destination = parent / name
        if destination.exists():
            shutil.rmtree(destination)
        unfinished.rename(destination)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _exclusive(lock: Path, title: str) -> Iterator[None]:
    """Two commands that need the same program build it once."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build of {title}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def go_version() -> tuple[int, int] | None:
    """The installed Go's major and minor version; None without Go."""
    if shutil.which("go") is None:
        return None
    word = run_quietly(["go", "env", "GOVERSION"]).strip().removeprefix("go")
    major, minor = word.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()))
