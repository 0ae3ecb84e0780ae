"""Names of files in the volume.

Owns: every file's spelling; no other module writes one as a literal. Imports: names. Pure.
Invariants: a name is created once and never means two things; numbers in names are padded, so that
sorted names are in order.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from magnetar.names import BundleName

CLAIMS = "claims"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
MANIFESTS = "manifests"
SEGMENTS = "segments"
BACKUPS = "backups"
DECISIONS = "decisions"
LOAD_HISTORY = "load-history"
LOAD_REPORTS = "load-reports"
COORDINATORS = "coordinators"
STORAGE_ID = "cluster/storage-id"
RESTORE = "cluster/restore"

LOG_SUFFIX = ".log"
SEALED_SUFFIX = ".sealed"
INDEX_SUFFIX = ".index"
SPARE_SUFFIX = ".spare"


def restore(number: int) -> str:
    """Says that the metadata store of this storage was restored for the `number`-th time."""
    return f"{RESTORE}/{number:08d}"


def restore_number(name: str) -> int | None:
    """The number in such a name, or None if `name` is not one."""
    digits = name.rpartition("/")[2]
    return int(digits) if digits.isdecimal() else None


def backup(restore_number: int, revision: int) -> str:
    """A copy of the metadata store as of one revision; sorted names are in order, whatever
    clocks said."""
    return f"{BACKUPS}/{restore_number:08d}-{revision:020d}"


def backup_place(name: str) -> tuple[int, int] | None:
    """(restore number, revision) of a copy of the metadata store, or None if `name` is not one."""
    number, dash, revision = name.rpartition("/")[2].partition("-")
    return (
        (int(number), int(revision))
        if dash and number.isdecimal() and revision.isdecimal()
        else None
    )


def checkpoint_epoch(name: str) -> int | None:
    """The term that wrote a checkpoint, or None if `name` is not one."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else None


def claim(incarnation: str) -> str:
    """The file whose presence lets an incarnation acknowledge."""
    return f"{CLAIMS}/{incarnation}"


def logs_of(incarnation: str) -> str:
    """The directory of an incarnation's log files, their seals and indexes."""
    return f"{LOGS}/{incarnation}"


def log_file(incarnation: str, number: int) -> str:
    return f"{LOGS}/{incarnation}/{number:08d}{LOG_SUFFIX}"


def sealed(incarnation: str, number: int) -> str:
    """Holds the sealed length of the log file beside it."""
    return f"{LOGS}/{incarnation}/{number:08d}{SEALED_SUFFIX}"


def index(incarnation: str, number: int) -> str:
    """The level-0 index of the log file beside it."""
    return f"{LOGS}/{incarnation}/{number:08d}{INDEX_SUFFIX}"


def spare(incarnation: str, number: int) -> str:
    """What was the log file of this number, set aside for a later one of the same incarnation."""
    return f"{LOGS}/{incarnation}/{number:08d}{SPARE_SUFFIX}"


def log_number(name: str) -> int | None:
    """The number of a log file, or None if `name` is not one."""
    return _number(name, LOG_SUFFIX)


def sealed_number(name: str) -> int | None:
    """The number of the log file whose sealed length `name` holds, or None if it holds none."""
    return _number(name, SEALED_SUFFIX)


def index_number(name: str) -> int | None:
    """The number of the log file whose index `name` is, or None if it is none."""
    return _number(name, INDEX_SUFFIX)


def _number(name: str, suffix: str) -> int | None:
    stem = name.rpartition("/")[2]
    digits = stem.removesuffix(suffix)
    return int(digits) if digits != stem and digits.isdecimal() else None


def is_log(name: str) -> bool:
    """Whether `name` is a log file."""
    return name.startswith(f"{LOGS}/") and log_number(name) is not None


def parse_log(name: str) -> tuple[str, int]:
    """(incarnation, number) of a log file."""
    number = log_number(name)
    assert number is not None, name
    return name.split("/")[-2], number


def slot(log: str, number: int) -> str:
    """The object of a log file's slot, where a volume makes log files of objects."""
    return f"{log}/{number:08d}"


def slot_of(key: str) -> tuple[str, int] | None:
    """(log file, number) of a slot, or None if `key` is not one."""
    log, _, digits = key.rpartition("/")
    return (log, int(digits)) if digits.isdecimal() and is_log(log) else None


def checkpoints_of(bundle: BundleName) -> str:
    return f"{CHECKPOINTS}/{bundle}"


def checkpoint(bundle: BundleName, epoch: int, sequence: int) -> str:
    return f"checkpoints/{bundle}/{epoch:020d}-{sequence:08d}"


def coordinator_checkpoints(tcid: int) -> str:
    """The directory of a transaction coordinator's checkpoints."""
    return f"{COORDINATORS}/{tcid:02d}"


def coordinator_of(name: str) -> int | None:
    """The number of the transaction coordinator whose checkpoint this is, or None if `name` is
    not one."""
    digits = name.removeprefix(f"{COORDINATORS}/").partition("/")[0]
    return int(digits) if name.startswith(f"{COORDINATORS}/") and digits.isdecimal() else None


def coordinator_checkpoint(tcid: int, epoch: int, sequence: int) -> str:
    return f"{COORDINATORS}/{tcid:02d}/{epoch:020d}-{sequence:08d}"


def manifests_of(bundle: BundleName) -> str:
    return f"{MANIFESTS}/{bundle}"


def manifest(bundle: BundleName, generation: int, nonce: int) -> str:
    return f"manifests/{bundle}/{generation:012d}-{nonce:016x}"


def segments_of(bundle: BundleName) -> str:
    return f"{SEGMENTS}/{bundle}"


def segment(bundle: BundleName, stem: str) -> str:
    return f"segments/{bundle}/{stem}.seg"


def decision_name(at_ms: int, author: int, size: int) -> str:
    """A record of what the load balancer decided, of `size` bytes."""
    return f"{DECISIONS}/{at_ms:015d}-{author:020d}-{size:08d}"


def decision_place(name: str) -> tuple[int, int] | None:
    """Time and size of a decision's record; None for any other name."""
    parts = name.removeprefix(f"{DECISIONS}/").split("-")
    if not name.startswith(f"{DECISIONS}/") or len(parts) != 3 or not all(map(str.isdigit, parts)):
        return None
    return int(parts[0]), int(parts[2])


class LoadHistoryPlace(NamedTuple):
    """Samples of one broker's load: when the first and the last were taken, bytes."""

    from_ms: int
    to_ms: int
    size: int
    broker: str


def load_history(place: LoadHistoryPlace) -> str:
    """The object of a few samples; sorted names are in order of time."""
    begin, end, size, broker = place
    return f"{LOAD_HISTORY}/{begin:015d}-{end:015d}-{size:08d}-{broker}.jsonl.gz"


def load_history_place(name: str) -> LoadHistoryPlace | None:
    """What such a name says, or None if `name` is not one."""
    found = _LOAD_HISTORY.fullmatch(name)
    if found is None:
        return None
    begin, end, size, broker = found.groups()
    return LoadHistoryPlace(int(begin), int(end), int(size), broker)


class LoadReportPlace(NamedTuple):
    """A report of load analytics: when it was made, bytes, and by which job."""

    at_ms: int
    size: int
    job: str

    @property
    def identifier(self) -> str:
        """The name without its directory and ending."""
        return f"{self.at_ms:015d}-{self.size:08d}-{quote(self.job, safe='')}"


def load_report(place: LoadReportPlace) -> str:
    return f"{LOAD_REPORTS}/{place.identifier}.html"


def load_report_place(name: str) -> LoadReportPlace | None:
    """What such a name says, or None if `name` is not one."""
    found = _LOAD_REPORT.fullmatch(name)
    if found is None:
        return None
    return LoadReportPlace(int(found[1]), int(found[2]), unquote(found[3]))


_LOAD_HISTORY = re.compile(rf"{LOAD_HISTORY}/(\d{{15}})-(\d{{15}})-(\d{{8,12}})-([^/]+)\.jsonl\.gz")
_LOAD_REPORT = re.compile(rf"{LOAD_REPORTS}/(\d{{15}})-(\d{{8,12}})-([^/]+)\.html")
