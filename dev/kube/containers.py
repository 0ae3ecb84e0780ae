"""The node's own containerd: its images and what is left of its pods.

Owns: images of the local node; removal of shims, mounts and control groups. May import: binaries,
configuration, oci, paths, processes, report. Invariant: only shims that name our socket are
touched, so a containerd of the user keeps all of its containers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from dev.kube import binaries, oci, processes
from dev.kube.configuration import PAUSE_IMAGE
from dev.kube.paths import Paths
from dev.kube.report import CommandFailed, run_quietly, run_with_progress

NAMESPACE = "k8s.io"
CGROUP_ROOT = Path("/sys/fs/cgroup")
UNMOUNT_ROUNDS = 5
RUNC_STATE = Path("/run/containerd/runc") / NAMESPACE
SHIM_SOCKETS = Path("/run/containerd/s")
LOG_LINKS = Path("/var/log/containers")
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
FLEX_VOLUMES = tuple(
    Path("/usr/libexec/kubernetes") / below
    for below in ("kubelet-plugins/volume/exec", "kubelet-plugins/volume", "kubelet-plugins", "")
)


def _ctr(paths: Paths) -> list[str | Path]:
    return ["ctr", "--address", paths.containerd_socket, "--namespace", NAMESPACE]


def is_ready(paths: Paths) -> bool:
    try:
        run_quietly([*_ctr(paths), "version"])
    except CommandFailed:
        return False
    return True


def images(paths: Paths) -> list[str]:
    """Names of all images a pod can use."""
    names = run_quietly([*_ctr(paths), "images", "list", "--quiet"]).split()
    return sorted(name for name in names if not name.startswith("sha256:"))


def images_in_use(paths: Paths) -> set[str]:
    """Images that some container on the node was made from."""
    lines = run_quietly([*_ctr(paths), "containers", "list"]).splitlines()[1:]
    return {columns[1] for line in lines if len(columns := line.split()) > 1}


def remove_images(paths: Paths, names: Sequence[str]) -> None:
    if names:
        run_quietly([*_ctr(paths), "images", "remove", *names])


def load(paths: Paths, archive: Path) -> None:
    """Import an OCI or Docker archive and unpack its layers."""
    size = archive.stat().st_size // 2**20
    argv = [*_ctr(paths), "images", "import", archive]
    run_with_progress(argv, lambda _: f"importing {archive.name} ({size} MiB)")


def blobs(paths: Paths) -> set[str]:
    """Digests of everything the node has received already."""
    return set(run_quietly([*_ctr(paths), "content", "list", "--quiet"]).split())


def load_stream(paths: Paths, write: Callable[[IO[bytes]], object]) -> None:
    """Import an archive that `write` produces as it is read; it may leave out blobs the node
    has."""
    argv = [str(part) for part in (*_ctr(paths), "images", "import", "-")]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=output)
        assert process.stdin is not None, "started with a pipe"
        # the reader's own message says more
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            write(pipe)
        if process.wait() != 0:
            output.seek(0)
            raise CommandFailed(
                f"ctr images import: {output.read().decode(errors='replace').strip()}"
            )


def load_pause(paths: Paths) -> None:
    """Give the node the image every pod's sandbox runs."""
    if PAUSE_IMAGE in images(paths):
        return
    program = binaries.ensure(["pause"], paths)["pause"]
    archive = paths.cluster / "pause.tar"
    oci.write_scratch_image(archive, PAUSE_IMAGE, {"pause": program}, ["/pause"])
    load(paths, archive)


def shims(paths: Paths) -> list[int]:
    """Pids of the shims that serve our containerd."""
    wanted = str(paths.containerd_socket)
    found = []
    for pid in _all_pids():
        arguments = _arguments(pid)
        if (
            arguments
            and Path(arguments[0]).name.startswith("containerd-shim")
            and wanted in arguments
        ):
            found.append(pid)
    return found


def kill_pods(paths: Paths) -> int:
    """Kill all containers and their shims; says how many shims there were."""
    found = shims(paths)
    # Shims and runc keep sockets and state outside our directory; what is ours is written down
    # inside it.
    bundles = list((paths.containerd_state / "io.containerd.runtime.v2.task" / NAMESPACE).glob("*"))
    notes = [bundle / "address" for bundle in bundles if (bundle / "address").exists()]
    sockets = [Path(note.read_text().strip().removeprefix("unix://")) for note in notes]
    processes.kill_all(_descendants(found))
    processes.kill_all(found)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for bundle in bundles:
        shutil.rmtree(RUNC_STATE / bundle.name, ignore_errors=True)
    for directory in (RUNC_STATE, RUNC_STATE.parent, SHIM_SOCKETS, SHIM_SOCKETS.parent):
        with contextlib.suppress(OSError):  # absent, or another containerd uses it
            directory.rmdir()
    return len(found)


def _all_pids() -> Iterable[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _descendants(ancestors: Iterable[int]) -> list[int]:
    parents = {pid: _parent(pid) for pid in _all_pids()}
    generation, found = set(ancestors), []
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found += sorted(generation)
    return found


def mounts_below(directory: Path, mountinfo: str) -> list[str]:
    """Mount points inside a directory, the deepest and youngest first."""
    prefix = f"{directory}/"
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if point.startswith(prefix)]


def _unescape(point: str) -> str:
    """The kernel writes blanks in mount points as octal escapes."""
    return (
        point.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
    )


def unmount_all(paths: Paths) -> None:
    for _ in range(UNMOUNT_ROUNDS):
        points = mounts_below(paths.cluster, Path("/proc/self/mountinfo").read_text())
        if not points:
            return
        for point in points:
            if subprocess.run(["umount", point], capture_output=True).returncode != 0:
                subprocess.run(["umount", "--lazy", point], capture_output=True)


def remove_cgroups() -> None:
    """Remove the kubelet's control groups; a group with processes cannot be removed, so nobody
    else's is."""
    tops = [CGROUP_ROOT / "kubepods", *CGROUP_ROOT.glob("*/kubepods")]
    for attempt in range(UNMOUNT_ROUNDS):
        for top in tops:
            for directory, _, _ in os.walk(top, topdown=False):
                _remove_group(Path(directory))
        if not any(top.exists() for top in tops):
            return
        time.sleep(0.1 * attempt)  # the kernel lets go of a killed process' group a little later


def _remove_group(directory: Path) -> None:
    with contextlib.suppress(OSError):  # still in use; the next round tries again
        directory.rmdir()


def remove_kubelet_leftovers(paths: Paths) -> None:
    """What the kubelet writes outside its directory whatever its options say; directories go
    only when empty."""
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{paths.cluster}/"):
            link.unlink()
    for leftover in DEVICE_PLUGINS.glob("kubelet*"):
        leftover.unlink()
    for directory in (LOG_LINKS, DEVICE_PLUGINS, DEVICE_PLUGINS.parent, *FLEX_VOLUMES):
        with contextlib.suppress(OSError):  # absent, or in use
            directory.rmdir()
