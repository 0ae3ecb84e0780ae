"""CPU and memory that this process uses.

Owns: `ProcessUsage`. Imports: memory; reads getrusage, /proc and the cgroup. Invariants: memory is
resident against the cgroup's limit, CPU against what this process can use.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from magnetar.hosting.memory import limit_bytes, machine_bytes

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
LOOP_CORES = 1.0
"""The event loop runs on one core, whatever the machine has: with that one full, the broker is."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    """The real usage: getrusage, /proc and the cgroup."""

    def __init__(self) -> None:
        self.cores = min(LOOP_CORES, float(len(os.sched_getaffinity(0))), cpu_quota(_QUOTA_FILE))
        self._limit_bytes = limit_bytes() or machine_bytes()

    def cpu_seconds(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def memory_share(self) -> float:
        return (
            int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / self._limit_bytes
        )


def cpu_quota(path: Path) -> float:
    """Cores that the cgroup of `path` (version 2: quota and period in us) grants; infinite if it
    sets no limit or is not there."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return float("inf")  # "max 100000", or another version of cgroups
