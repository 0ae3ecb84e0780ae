"""Bringing images to the local node, and to files.

Owns: import from the layout into the node's containerd, archives for other clusters, and the etcd
image. May import: archive, content, workshop, dev.kube. Invariant: only what the node lacks is
sent, so a rebuilt project layer arrives in seconds although Spark's image is 1.3 GB.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import IO

from dev.image import archive
from dev.image.content import REPOSITORY, TARGETS
from dev.image.workshop import Workshop
from dev.kube import binaries, cluster, containers, oci
from dev.kube.paths import Paths
from dev.kube.report import CommandFailed, say
from dev.kube.versions import ETCD

ETCD_IMAGE = f"localhost/magnetar-etcd:{ETCD}"


def is_loaded(paths: Paths, name: str) -> bool:
    return cluster.is_running(paths) and name in containers.images(paths)


def load(workshop: Workshop, paths: Paths, name: str) -> None:
    """Send an image to the node; falls back to all of it if the node has lost a layer it seemed
    to have."""
    if not cluster.is_running(paths):
        raise cluster.NotReady("the local cluster is not running: python3 -m dev.kube up")
    started = time.monotonic()
    try:
        sent = _send(workshop, paths, name, without=containers.blobs(paths))
    except CommandFailed as error:
        say(f"{error}\nsending the whole image instead")
        sent = _send(workshop, paths, name, without=set())
    say(f"loaded {name}: {sent / 2**20:.1f} MiB new, {time.monotonic() - started:.1f} s")


def _send(workshop: Workshop, paths: Paths, name: str, *, without: set[str]) -> int:
    sent = 0

    def write(pipe: IO[bytes]) -> None:
        nonlocal sent
        sent = archive.write(workshop.layout, [name], pipe, without=without)

    containers.load_stream(paths, write)
    return sent


def save(workshop: Workshop, images: Collection[str], destination: Path) -> None:
    """Write a complete archive (`kind load image-archive`, `k3s ctr images import`, `docker
    load` read it)."""
    unfinished = destination.with_name(f".{destination.name}.unfinished")
    say(f"writing {destination}")
    try:
        with unfinished.open("wb") as output:
            archive.write(workshop.layout, images, output)
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)


def prune(workshop: Workshop, paths: Paths, kept: set[str]) -> None:
    """Remove builds of other content, except those that pods on the node still run."""
    node_is_up = cluster.is_running(paths)
    keep = {*kept, *(containers.images_in_use(paths) if node_is_up else ())}

    def superseded(names: list[str]) -> list[str]:
        return [name for name in names if _is_ours(name) and name not in keep]

    workshop.remove(superseded(workshop.images()))
    freed = archive.prune(workshop.layout, keep)
    if node_is_up:
        containers.remove_images(paths, superseded(containers.images(paths)))
    say(
        f"kept {', '.join(sorted(name for name in keep if _is_ours(name)))}; freed "
        f"{freed // 2**20} MiB of layers"
    )


def _is_ours(name: str) -> bool:
    """The project's own images or the stages below them; not base, pause or etcd."""
    return name.startswith(
        (*(f"{REPOSITORY}{suffix}:" for suffix in TARGETS.values()), f"{REPOSITORY}-stage-")
    )


def write_etcd_image(paths: Paths, destination: Path) -> None:
    """An image with etcd and etcdctl, laid out as etcd's own: for clusters whose etcd the
    operator runs."""
    programs = binaries.ensure(["etcd", "etcdctl"], paths)
    files = {f"usr/local/bin/{name}": path for name, path in programs.items()}
    oci.write_scratch_image(destination, ETCD_IMAGE, files, ["/usr/local/bin/etcd"])
