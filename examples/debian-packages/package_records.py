"""Package records of a Debian machine as keyed messages.

Owns: reading `/var/lib/dpkg/status`, apt's package lists and `dpkg.log`; turning them into
generations of records and removals; the file in which the producer leaves what a compacted topic
must hold. Imports: the standard library only. Invariants: the key is `package:architecture`; a
record is what the machine says, never invented; generations are ordered from the oldest view to the
newest, so that "the newest record of a key" is the one sent last; a removed key has an empty
payload.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Record = dict[str, str]

STATUS = "var/lib/dpkg/status"
LISTS = "var/lib/apt/lists"
LOG = "var/log/dpkg.log"
APT_HELPER = "/usr/lib/apt/apt-helper"
SUITE_ORDER = ("", "updates", "security", "backports")
HISTORY, INSTALLED, REFRESH = "history", "installed", "refresh"
DROP_EVERY = 50

_SUITE = re.compile(r"_dists_(?P<suite>[^_]+)_.*_Packages(?:\.[a-z0-9]+)?$")


@dataclass(slots=True)
class Generation:
    """One view of the machine's packages: what it holds, and which keys of older views it no
    longer has."""

    number: int
    name: str
    records: dict[str, Record]
    removed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Expectation:
    """What the newest view of a topic must hold: SHA-256 of the payload by key, and the keys
    that were deleted."""

    newest: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    generation: int = 0

    def saw(self, key: str, payload: bytes) -> None:
        """Note that `payload` was acknowledged for `key`; an empty one deletes the key."""
        if payload:
            self.newest[key] = hashlib.sha256(payload).hexdigest()
            self.removed.discard(key)
        else:
            self.newest.pop(key, None)
            self.removed.add(key)

    def write(self, path: Path) -> None:
        body = {
            "generation": self.generation,
            "newest": self.newest,
            "removed": sorted(self.removed),
        }
        path.write_text(json.dumps(body, indent=1, sort_keys=True))

    @staticmethod
    def read(path: Path) -> Expectation:
        """The expectation an earlier run left, or an empty one."""
        if not path.exists():
            return Expectation()
        body = json.loads(path.read_text())
        return Expectation(dict(body["newest"]), set(body["removed"]), int(body["generation"]))


# --- parsing --------------------------------------------------------------------------------------


def parse_records(lines: Iterable[str]) -> Iterator[Record]:
    """Stanzas of Debian's control format: `Field: value`, continuation lines start with a blank,
    stanzas end with an empty line."""
    record: Record = {}
    last = ""
    for line in lines:
        text = line.rstrip("\n")
        if not text.strip():
            if record:
                yield record
            record, last = {}, ""
        elif text[0] in " \t":
            if last:
                record[last] += "\n" + text[1:]
        else:
            name, separator, value = text.partition(":")
            if separator:
                last = name
                record[name] = value.strip()
    if record:
        yield record


def key_of(record: Mapping[str, str]) -> str:
    """`package:architecture`."""
    return f"{record['Package']}:{record.get('Architecture', 'all')}"


def source_of(record: Mapping[str, str]) -> str:
    """The source package a binary was built from (without the version that may follow in
    parentheses)."""
    return record.get("Source", record["Package"]).partition(" ")[0]


def is_installed(record: Mapping[str, str]) -> bool:
    return record.get("Status", "").endswith(" installed")


def read_log(lines: Iterable[str]) -> tuple[dict[str, Record], set[str]]:
    """`dpkg.log` as (older versions that upgrades and removals replaced, keys that were removed
    and not installed again)."""
    replaced: dict[str, Record] = {}
    removed: set[str] = set()
    for line in lines:
        words = line.split()
        if len(words) < 5 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        action, key, old = words[2], words[3], words[4]
        name, _, architecture = key.partition(":")
        if action == "install":
            removed.discard(key)
            continue
        if old != "<none>":
            replaced[key] = {
                "Package": name,
                "Architecture": architecture,
                "Version": old,
                "Logged": f"{words[0]} {words[1]}",
            }
        if action in ("remove", "purge"):
            removed.add(key)
    return replaced, removed


def read_list(path: Path) -> Iterator[Record]:
    """Records of one apt package list; a compressed one is opened by apt itself, which has every
    codec it may have used."""
    if path.suffix:
        command = [APT_HELPER, "cat-file", str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            yield from parse_records(process.stdout)
        if process.returncode:
            raise OSError(
                f"{' '.join(command)} ended with status {process.returncode}; run apt-get update "
                "and try again"
            )
    else:
        with path.open(errors="replace") as lines:
            yield from parse_records(lines)


def suites(lists: Path) -> list[tuple[str, list[Path]]]:
    """Package lists by suite, oldest view first: the release, then its updates, security and
    backports."""
    found: dict[str, list[Path]] = {}
    for path in sorted(lists.glob("*_Packages*")) if lists.is_dir() else []:
        match = _SUITE.search(path.name)
        if match:
            found.setdefault(match["suite"], []).append(path)

    def rank(suite: str) -> tuple[int, str]:
        suffix = suite.partition("-")[2]
        return (SUITE_ORDER.index(suffix) if suffix in SUITE_ORDER else len(SUITE_ORDER), suite)

    return [(suite, found[suite]) for suite in sorted(found, key=rank)]


# --- generations ----------------------------------------------------------------------------------


def superseded(older: Mapping[str, Record], newer: Mapping[str, Record]) -> set[str]:
    """Keys of `older` whose source package was rebuilt in `newer` without them: an old kernel's
    image when a new one is out."""
    rebuilt = {source_of(record) for record in newer.values()}
    return {
        key for key, record in older.items() if key not in newer and source_of(record) in rebuilt
    }


def read_views(root: Path) -> list[Generation]:
    """Every view the machine itself has of its packages, oldest first. Raises FileNotFoundError
    if it has no package database."""
    status, log = root / STATUS, root / LOG
    if not status.exists():
        raise FileNotFoundError(
            f"{status} is not there: this example reads the package database of a Debian machine; "
            "pass --root"
        )
    replaced, uninstalled = (
        read_log(log.read_text(errors="replace").splitlines()) if log.exists() else ({}, set())
    )
    views: list[Generation] = []
    if replaced:
        views.append(Generation(0, HISTORY, replaced))
    known: dict[str, Record] = {}
    for suite, paths in suites(root / LISTS):
        records = {key_of(record): record for path in paths for record in read_list(path)}
        views.append(Generation(0, suite, records, superseded(known, records)))
        known.update(records)
    with status.open(errors="replace") as lines:
        installed = {
            key_of(record): record for record in parse_records(lines) if is_installed(record)
        }
    views.append(
        Generation(
            0,
            INSTALLED,
            installed,
            (superseded(known, installed) & uninstalled) | (uninstalled - set(installed)),
        )
    )
    return views


def choose_keys(views: list[Generation], limit: int) -> set[str]:
    """At most `limit` keys (0 = all): first those with several versions or a removal, then the
    others, by name."""
    versions: dict[str, set[str]] = {}
    removed = set().union(*(view.removed for view in views))
    for view in views:
        for key, record in view.records.items():
            versions.setdefault(key, set()).add(record.get("Version", ""))
    ordered = sorted(versions, key=lambda key: (len(versions[key]) < 2 and key not in removed, key))
    return set(ordered[:limit] if limit else ordered)


def plan_generations(
    views: list[Generation], wanted: int, limit: int, first: int = 1
) -> list[Generation]:
    """Exactly `wanted` generations, numbered from `first`.

    With more views than wanted the newest are taken; with fewer, further generations send every key
    that is left again (messages differ by generation and time). A removal is kept only for a key
    that an earlier generation sent. A machine that shows no removal at all leaves out every 50th
    key of the newest generation, so that deletion is exercised everywhere.
    """
    if wanted < 1:
        raise ValueError(f"generations: {wanted} is not valid; use 1 or more")
    chosen = choose_keys(views, limit)
    generations: list[Generation] = []
    alive: dict[str, Record] = {}
    for number, view in enumerate(views[-wanted:], start=first):
        records = {key: record for key, record in view.records.items() if key in chosen}
        removed = {key for key in view.removed if key in alive and key not in records}
        alive = {key: record for key, record in (alive | records).items() if key not in removed}
        generations.append(Generation(number, view.name, records, removed))
    while len(generations) < wanted:
        generations.append(Generation(first + len(generations), REFRESH, dict(alive)))
    if wanted > 1 and not any(generation.removed for generation in generations):
        last = generations[-1]
        last.removed = set(sorted(alive)[::DROP_EVERY])
        for key in last.removed:
            last.records.pop(key, None)
    return generations


def payload_of(generation: Generation, record: Record, sent_ms: int) -> bytes:
    """The message value: the record with the generation that sent it."""
    body = {
        "generation": generation.number,
        "view": generation.name,
        "sent_ms": sent_ms,
        "record": record,
    }
    return json.dumps(body, sort_keys=True).encode()


def messages_of(generation: Generation, sent_ms: int) -> Iterator[tuple[str, bytes]]:
    """(key, payload) of every message of a generation: its records, then its removals."""
    for key in sorted(generation.records):
        yield key, payload_of(generation, generation.records[key], sent_ms)
    for key in sorted(generation.removed):
        yield key, b""
