"""What `make cluster` makes before a node can start: programs, images, the Python environment, side
by side.

Owns: the tasks, how long they take, and running them at once. Imports: the standard library,
dev.kube, dev.image. Invariants: what is in the caches is neither made nor counted; a task that
fails stops the others; each line says whose it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from dev.image import archive, content
from dev.image.workshop import Workshop
from dev.kube import binaries
from dev.kube.paths import CHECKOUT, Paths
from dev.kube.versions import NODE_PROGRAMS

PROGRAMS = (*NODE_PROGRAMS, "etcdctl", "helm")
"""The node's, etcdctl for etcd's image and helm for the chart: beside the others, two more cost
half a minute."""
AFTERWARDS_MINUTES = 2.0
"""Starting the node, loading images, chart and quickstart."""


@dataclass(frozen=True)
class Task:
    """One thing to make, and the processor time it takes (measured: 2 cores of 3 GHz)."""

    name: str
    what: str
    command: tuple[str, ...]
    cpu_minutes: float


def tasks(paths: Paths, environment: str) -> list[Task]:
    """What is not in the caches; `environment` is the virtual environment to make, "" = none."""
    module = (sys.executable, "-m")
    found = []
    missing = [name for name in PROGRAMS if binaries.cached(name, paths) is None]
    if missing:
        what = f"{len(missing)} Go programs from source, {', '.join(missing)}"
        found.append(
            Task(
                "programs",
                what,
                (*module, "dev.kube", "binary", *missing),
                2 + 8 * len(missing) / len(PROGRAMS),
            )
        )
    built = archive.names_in(Workshop.below(paths).layout)
    if unbuilt := [
        image for image in content.images_of(content.default_name(CHECKOUT)) if image not in built
    ]:
        has_packages = any(content.REPOSITORY in name for name in built)
        what = "images of brokers, operator and Spark" + (
            " (packages are cached)" if has_packages else ""
        )
        found.append(
            Task(
                "images",
                what,
                (*module, "dev.image", "build"),
                (0.3 if has_packages else 2.0) * len(unbuilt),
            )
        )
    if environment and not (Path(environment) / ".magnetar-installed").exists():
        found.append(
            Task(
                "python",
                f"packages in {environment}",
                ("make", "--no-print-directory", "setup", f"VENV={environment}"),
                1.5,
            )
        )
    return found


def estimate(found: Sequence[Task], cores: int, load: float) -> float:
    """Minutes until a cluster is ready, beside what else the machine does: `load` processes that
    want to run."""
    return sum(task.cpu_minutes for task in found) * (1 + load / cores) / cores + AFTERWARDS_MINUTES


def announcement(found: Sequence[Task], cores: int, load: float) -> str:
    """What will be made, and how long that takes."""
    minutes = round(estimate(found, cores, load))
    head = (
        f"about {minutes} minutes until the cluster is ready ({cores} cores, load {load:.1f}); "
        "what is made now is cached for the next time:"
    )
    return "\n".join([head, *(f"  {task.name}: {task.what}" for task in found)])


def prepare(environment: str) -> None:
    """Make what is missing. Exits if a task fails."""
    found = tasks(Paths.from_environment(), environment)
    if not found:
        return
    print(announcement(found, os.cpu_count() or 1, os.getloadavg()[0]), flush=True)
    if failed := run(found):
        sys.exit(
            f"{', '.join(failed)} failed; what they said is above. What is complete is cached: run "
            "the same command again."
        )


def run(found: Sequence[Task]) -> list[str]:
    """Run all at once; the names of those that failed."""
    processes = {
        task.name: subprocess.Popen(
            task.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for task in found
    }
    failed: list[str] = []
    with ThreadPoolExecutor(len(processes)) as threads:
        followed = {
            threads.submit(_follow, name, process): name for name, process in processes.items()
        }
        for ended in as_completed(followed):
            if ended.result() != 0 and not failed:
                failed.append(followed[ended])
                for process in processes.values():
                    process.terminate()
    return failed


def _follow(name: str, process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None, "started with a pipe"
    with process.stdout:
        for line in process.stdout:
            print(f"  {name}: {line.rstrip()}", flush=True)
    return process.wait()
