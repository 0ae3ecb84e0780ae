"""The Debian example: its parser, its generations and its verdict, without a broker."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "debian-packages"


def load(name: str) -> ModuleType:
    """Import a module of the example as its scripts do: by its bare name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


records = load("package_records")
verify = load("verify")

STATUS = """Package: adduser
Status: install ok installed
Architecture: all
Version: 3.134
Conffiles:
 /etc/adduser.conf cc34
 /etc/deluser.conf 11a0
Description: add and remove users
 first line
 .
 last line

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: base-files
Status: install ok installed
Architecture: amd64
Version: 12.4
"""
BOOKWORM = """Package: linux-image-6.1.0-25-amd64
Source: linux (6.1.100-1)
Architecture: amd64
Version: 6.1.100-1

Package: adduser
Architecture: all
Version: 3.130
"""
SECURITY = """Package: linux-image-6.1.0-27-amd64
Source: linux
Architecture: amd64
Version: 6.1.110-1
"""
LOG = """2026-01-01 10:00:00 install gone:amd64 <none> 1
2026-01-02 10:00:00 upgrade base-files:amd64 12.3 12.4
2026-01-03 10:00:00 status installed base-files:amd64 12.4
2026-01-04 10:00:00 remove gone:amd64 1 <none>
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root directory with status, lists of two suites and a log."""
    lists = tmp_path / records.LISTS
    lists.mkdir(parents=True)
    (tmp_path / records.STATUS).parent.mkdir(parents=True)
    (tmp_path / records.LOG).parent.mkdir(parents=True)
    (tmp_path / records.STATUS).write_text(STATUS)
    (tmp_path / records.LOG).write_text(LOG)
    (lists / "deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages").write_text(BOOKWORM)
    (
        lists / "deb.debian.org_debian-security_dists_bookworm-security_main_binary-amd64_Packages"
    ).write_text(SECURITY)
    return tmp_path


def test_continuation_lines_belong_to_their_field() -> None:
    first = next(records.parse_records(STATUS.splitlines()))
    assert first["Description"] == "add and remove users\nfirst line\n.\nlast line"
    assert first["Conffiles"] == "\n/etc/adduser.conf cc34\n/etc/deluser.conf 11a0"
    assert records.key_of(first) == "adduser:all"


def test_views_are_ordered_from_oldest_to_newest(machine: Path) -> None:
    assert [view.name for view in records.read_views(machine)] == [
        "history",
        "bookworm",
        "bookworm-security",
        "installed",
    ]


def test_a_rebuilt_source_removes_the_binaries_it_no_longer_builds(machine: Path) -> None:
    security = records.read_views(machine)[2]
    assert security.removed == {"linux-image-6.1.0-25-amd64:amd64"}


def test_an_uninstalled_package_is_removed_and_its_last_version_is_history(machine: Path) -> None:
    views = records.read_views(machine)
    assert views[0].records["gone:amd64"]["Version"] == "1"
    assert "gone:amd64" in views[-1].removed
    assert "gone:amd64" not in views[-1].records


def test_expectation_after_all_generations_is_the_newest_record_of_each_key(machine: Path) -> None:
    expectation = records.Expectation()
    for generation in records.plan_generations(records.read_views(machine), 4, 0):
        for key, payload in records.messages_of(generation, sent_ms=generation.number):
            expectation.saw(key, payload)
    assert set(expectation.newest) == {
        "adduser:all",
        "base-files:amd64",
        "linux-image-6.1.0-27-amd64:amd64",
    }
    assert expectation.removed == {"gone:amd64", "linux-image-6.1.0-25-amd64:amd64"}


def test_more_generations_than_views_send_the_living_records_again(machine: Path) -> None:
    generations = records.plan_generations(records.read_views(machine), 6, 0, first=5)
    assert [generation.number for generation in generations] == [5, 6, 7, 8, 9, 10]
    assert generations[-1].name == "refresh"
    assert "gone:amd64" not in generations[-1].records
    assert records.payload_of(generations[-1], {"a": "b"}, 1) != records.payload_of(
        generations[-2], {"a": "b"}, 1
    )


def test_a_machine_without_any_removal_still_exercises_deletion(tmp_path: Path) -> None:
    (tmp_path / records.STATUS).parent.mkdir(parents=True)
    (tmp_path / records.STATUS).write_text(STATUS)
    generations = records.plan_generations(records.read_views(tmp_path), 2, 0)
    assert len(generations[-1].removed) == 1
    assert not generations[-1].removed & set(generations[-1].records)


def test_the_limit_prefers_packages_with_several_versions(machine: Path) -> None:
    assert records.choose_keys(records.read_views(machine), 1) == {"adduser:all"}


def test_a_machine_without_a_package_database_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--root"):
        records.read_views(tmp_path)


def test_the_expectation_file_survives_a_round_trip(tmp_path: Path) -> None:
    expectation = records.Expectation(generation=3)
    expectation.saw("a", b"1")
    expectation.saw("b", b"")
    expectation.write(tmp_path / "file.json")
    assert records.Expectation.read(tmp_path / "file.json") == expectation


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([("a", b"new"), ("b", b"1")], None),
        ([("a", b"old"), ("b", b"1")], "stale: a"),
        ([("a", b"new")], "missing: b"),
        ([("a", b"new"), ("b", b"1"), ("gone", b"1")], "deleted, yet there: gone"),
        ([("a", b"new"), ("b", b"1"), ("alien", b"1")], "surplus: alien"),
        ([("a", b"old"), ("a", b"new"), ("b", b"1")], "2 times: a"),
        ([("a", b"new"), ("b", b"1"), ("gone", b"")], "deletions left in the view: 1"),
        ([("a", b"new"), ("b", b"1"), ("", b"x")], "messages without a key: 1"),
    ],
)
def test_the_verdict_names_every_kind_of_difference(
    sent: list[tuple[str, bytes]], problem: str | None
) -> None:
    expectation = records.Expectation()
    for key, payload in (("a", b"new"), ("b", b"1"), ("gone", b"")):
        expectation.saw(key, payload)
    seen = verify.Observation()
    for key, payload in sent:
        seen.add(key, payload)
    assert verify.compare(expectation, seen, strict=True) == ([problem] if problem else [])


def test_before_a_compaction_only_the_last_record_of_a_key_counts() -> None:
    expectation = records.Expectation()
    expectation.saw("a", b"new")
    seen = verify.Observation()
    seen.add("a", b"old")
    seen.add("a", b"new")
    assert verify.compare(expectation, seen, strict=False) == []
