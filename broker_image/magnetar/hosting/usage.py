"""What this process uses of its machine.

Owns: `ProcessUsage`: CPU time, resident memory, limits of the cgroup (versions 1 and 2). Imports: memory; reads /proc
and the cgroup. Invariant: memory is compared with the limit that ends the process, CPU with what it
can use.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from magnetar.hosting.memory import limit_bytes, machine_bytes

_CGROUP = Path("/sys/fs/cgroup")
LOOP_CORES = 1.0
"""The event loop runs on one core, whatever the machine has: with that one full, the broker is."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    """The real usage: getrusage, /proc and the cgroup."""

    def __init__(self) -> None:
        self.cores = min(LOOP_CORES, float(len(os.sched_getaffinity(0))), cpu_quota(_CGROUP))
        self.memory_limit_bytes = limit_bytes() or machine_bytes()

    def cpu_seconds(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def memory_bytes(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def cpu_quota(cgroup: Path) -> float:
    """Cores that the control group grants, by its quota and period in us; infinite if it sets no
    limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        pass  # "max 100000", or version 1
    for part in ("cpu", "cpu,cpuacct"):
        try:
            quota = (cgroup / part / "cpu.cfs_quota_us").read_text()
            period = (cgroup / part / "cpu.cfs_period_us").read_text()
            return int(quota) / int(period) if int(quota) > 0 else float("inf")
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return float("inf")
