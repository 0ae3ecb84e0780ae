"""Background processes with pid files that cannot be mistaken.

Owns: starting, finding and stopping the node's daemons. May import: the standard library.
Invariant: a signal reaches only the very process recorded: pid, kernel start time and boot must all
agree, and the signal travels through a pidfd, so a recycled pid is never hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STOP_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Record:
    """What a pid file holds."""

    pid: int
    start_ticks: int
    boot: str
    command: str


@dataclass(frozen=True)
class Usage:
    """What a running process costs."""

    resident_mib: int
    uptime_seconds: float


def command_digest(argv: Sequence[str], inputs: Sequence[Path] = ()) -> str:
    """Names a command together with its configuration files, so that a changed one is restarted."""
    digest = sha256("\0".join(argv).encode())
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def start_ticks(pid: int) -> int | None:
    """The kernel's start time of a process; None if there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may contain spaces and parentheses; the fields after its last ")" do not.
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else started


def start(argv: Sequence[str], *, pid_file: Path, log: Path, digest: str, cwd: Path) -> Record:
    """Start a daemon in a session of its own, with its output in a fresh log, and record it."""
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with log.open("wb") as output:
        log.chmod(0o600)
        process = subprocess.Popen(
            argv,
            env=environment_without_proxies(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=cwd,
            umask=0o022,  # ours hides our own files; daemons make files for pods
        )
    # it outlives us on purpose; this silences the warning about an unreaped child
    process.returncode = 0
    record = Record(process.pid, start_ticks(process.pid) or 0, boot(), digest)
    write_record(pid_file, record)
    return record


def environment_without_proxies() -> dict[str, str]:
    """The bridge is not a loopback address, so Go programs would take a proxy on the way to it."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    return {name: value for name, value in os.environ.items() if name.lower() not in proxies}


def write_record(pid_file: Path, record: Record) -> None:
    unfinished = pid_file.with_suffix(".new")
    unfinished.write_text(json.dumps(asdict(record)))
    unfinished.chmod(0o600)
    unfinished.replace(pid_file)


def read_record(pid_file: Path) -> Record | None:
    """The recorded process; None without a readable pid file."""
    try:
        return Record(**json.loads(pid_file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def is_alive(record: Record | None) -> bool:
    """Whether exactly the recorded process still runs."""
    return (
        record is not None
        and record.boot == boot()
        and start_ticks(record.pid) == record.start_ticks
    )


def running(pid_file: Path) -> Record | None:
    """The record, if its process runs."""
    record = read_record(pid_file)
    return record if is_alive(record) else None


def stop(pid_file: Path, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> bool:
    """Stop the recorded process if it is still the same one; says whether there was one to stop."""
    record = running(pid_file)
    stopped = record is not None and stop_process(record.pid, record.start_ticks, timeout_seconds)
    pid_file.unlink(missing_ok=True)
    return stopped


def stop_process(pid: int, expected_start_ticks: int, timeout_seconds: float) -> bool:
    """Terminate, and after the timeout kill, the process with this pid and start time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # From here the handle pins the process: compare after opening, then signal only through it.
        if start_ticks(pid) != expected_start_ticks:
            return False
        for number, patience in (
            (signal.SIGTERM, timeout_seconds),
            (signal.SIGKILL, STOP_TIMEOUT_SECONDS),
        ):
            signal.pidfd_send_signal(handle, number)
            if _gone(pid, expected_start_ticks, patience):
                return True
        return False
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def kill_all(pids: Sequence[int], patience_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Kill these processes at once and wait until they are gone."""
    known = [(pid, ticks) for pid in pids if (ticks := start_ticks(pid)) is not None]
    handles: list[int] = []
    for pid, ticks in known:
        try:
            handles.append(os.pidfd_open(pid))
            if start_ticks(pid) == ticks:
                signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
        except ProcessLookupError:
            continue
    for pid, ticks in known:
        _gone(pid, ticks, patience_seconds)
    for handle in handles:
        os.close(handle)


def usage(record: Record) -> Usage | None:
    """Memory and age of a running process."""
    try:
        pages = int(Path(f"/proc/{record.pid}/statm").read_text().split()[1])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Usage(pages * PAGE_BYTES // 2**20, uptime - record.start_ticks / TICKS_PER_SECOND)


def _gone(pid: int, expected_start_ticks: int, patience_seconds: float) -> bool:
    deadline = time.monotonic() + patience_seconds
    while start_ticks(pid) == expected_start_ticks:
        if time.monotonic() > deadline:
            return False
        _reap(pid)
        time.sleep(POLL_SECONDS)
    _reap(pid)
    return True


def _reap(pid: int) -> None:
    """Our own children stay zombies until waited for; other processes are not ours to wait for."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def boot() -> str:
    """Names this boot of the machine."""
    return BOOT_ID.read_text().strip()
