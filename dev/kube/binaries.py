"""Go programs built from source and cached by version.

Owns: `<cache>/bin/<name>-<version>/`. May import: paths, report, versions. Invariant: a cache entry
is complete or absent: it appears by one rename, so an interrupted build leaves no half binary.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dev.kube.paths import MODULES, Paths
from dev.kube.report import FETCH_ATTEMPTS, run_quietly, run_with_progress, say
from dev.kube.versions import PROGRAMS, Program, stamps


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
    for module in dict.fromkeys(PROGRAMS[name].module for name in missing):
        _build_once(
            module, [PROGRAMS[name] for name in missing if PROGRAMS[name].module == module], paths
        )
    return {name: paths.binaries / PROGRAMS[name].cache_key / name for name in wanted}


def _build_once(module: str, wanted: Sequence[Program], paths: Paths) -> None:
    with _exclusive(
        paths.binaries / f"{module}.lock", ", ".join(program.name for program in wanted)
    ):
        # What another process built while this one waited is there.
        if programs := [program for program in wanted if cached(program.name, paths) is None]:
            for killed in paths.binaries.glob(f".unfinished-{module}-*"):
                # what a killed build could not remove itself
                shutil.rmtree(killed, ignore_errors=True)
            _build(module, programs, paths)


def _build(module: str, programs: Sequence[Program], paths: Paths) -> None:
    """One call of Go: programs share most of their packages, and one is linked while another is
    compiled."""
    started = time.monotonic()
    title = ", ".join(f"{program.name} {program.version}" for program in programs)
    say(f"building {title} from source; later starts use the cache")
    with tempfile.TemporaryDirectory(
        prefix=f".unfinished-{module}-", dir=paths.binaries
    ) as directory:
        stale_packages = _count_stale(module, programs)

        def describe(lines: int) -> str:
            return f"programs: {min(lines, stale_packages)} of {stale_packages} packages compiled"

        argv = [
            *_go("build"),
            "-v",
            "-o",
            f"{directory}/",
            *(program.package for program in programs),
        ]
        run_with_progress(argv, describe, cwd=MODULES / module, environment=_go_environment())
        for program in programs:
            with entry(paths.binaries, program.cache_key) as place:
                (Path(directory) / program.built_as).rename(place / program.name)
    say(f"built {len(programs)} programs in {time.monotonic() - started:.0f} s")


def _count_stale(module: str, programs: Sequence[Program]) -> int:
    """How many packages Go will compile; the first call also downloads the sources."""
    argv = [
        *_go("list"),
        "-deps",
        "-f",
        "{{if .Stale}}stale{{end}}",
        *(program.package for program in programs),
    ]
    with tempfile.NamedTemporaryFile("r", prefix="magnetar-go-list-") as answer:
        shell = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", answer.name]
        run_with_progress(
            [*shell, *argv],
            lambda _: "programs: fetching sources",
            cwd=MODULES / module,
            environment=_go_environment(),
            attempts=FETCH_ATTEMPTS,
        )
        return answer.read().count("stale")


def _go(verb: str) -> list[str]:
    return [
        "nice",
        "-n",
        "10",
        "go",
        verb,
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        f"-s -w {stamps()}",
    ]


def _go_environment() -> dict[str, str]:
    """The user's own Go settings (proxy, caches), except what would change the result."""
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}


@contextmanager
def entry(parent: Path, name: str) -> Iterator[Path]:
    """A directory to fill; it becomes `parent/name` in one rename, or nothing at all if filling
    it fails."""
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
