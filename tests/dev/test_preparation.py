"""What the first `make cluster` makes: the estimate, and tasks side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dev import preparation
from dev.kube import binaries
from dev.kube.paths import Paths
from dev.kube.versions import PROGRAMS
from dev.preparation import Task, announcement, estimate, run, tasks


def test_a_machine_without_caches_makes_everything_once(tmp_path: Path) -> None:
    found = {task.name: task for task in tasks(Paths(tmp_path), str(tmp_path / "venv"))}
    assert list(found) == ["programs", "images", "python"]
    assert set(preparation.PROGRAMS) <= set(found["programs"].command)


def test_the_first_cluster_takes_twelve_minutes_quiet_and_twenty_busy(tmp_path: Path) -> None:
    found = tasks(Paths(tmp_path), str(tmp_path / "venv"))
    assert 8 < estimate(found, cores=2, load=0) <= 12
    assert estimate(found, cores=2, load=2) <= 20


def test_what_is_cached_is_not_made_again(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for name in preparation.PROGRAMS:
        with binaries.entry(paths.binaries, PROGRAMS[name].cache_key) as directory:
            (directory / name).write_text("program")
    assert [task.name for task in tasks(paths, "")] == ["images"]


def test_the_announcement_says_how_long_and_what() -> None:
    text = announcement([Task("programs", "9 Go programs", (), 10)], cores=2, load=0)
    assert text.startswith("about 7 minutes until the cluster is ready (2 cores, load 0.0)")
    assert "programs: 9 Go programs" in text


def _python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_tasks_run_at_once_and_say_whose_a_line_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other: one after another would never end."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        os.mkfifo(path)
    waits = [
        Task(
            "a",
            "",
            _python(f"open({str(one)!r}, 'w').close(); open({str(two)!r}).close(); print('met')"),
            1,
        )
    ]
    waits.append(
        Task(
            "b",
            "",
            _python(f"open({str(one)!r}).close(); open({str(two)!r}, 'w').close(); print('met')"),
            1,
        )
    )
    assert run(waits) == []
    assert sorted(capsys.readouterr().out.splitlines()) == ["  a: met", "  b: met"]


def test_a_task_that_fails_stops_the_others() -> None:
    assert run(
        [
            Task("slow", "", _python("import time; time.sleep(600)"), 1),
            Task("wrong", "", _python("raise SystemExit(3)"), 1),
        ]
    ) == ["wrong"]
