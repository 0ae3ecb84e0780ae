"""Where images are made.

Owns: the image directories in the cache and how buildah is called. May import: dev.kube.paths,
dev.kube.report. Invariant: every buildah call uses our own storage, so `buildah images` of the user
shows nothing of ours.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev.kube.paths import Paths
from dev.kube.report import run_quietly, run_with_progress, say


@dataclass(frozen=True)
class Workshop:
    """Our own image storage, below the cache directory."""

    root: Path

    @classmethod
    def below(cls, paths: Paths) -> Workshop:
        return cls(paths.cache / "images")

    @property
    def layout(self) -> Path:
        """An OCI layout: every layer once, uncompressed, shared by all images."""
        return self.root / "layout"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def temporary(self) -> Path:
        """Also holds buildah's cache mounts, pip's downloads among them."""
        return self.root / "temporary"

    def prepare(self) -> None:
        for directory in (self.root, self.layout, self.temporary):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One build at a time: they share buildah's storage and the layout's index."""
        self.prepare()
        with (self.root / "lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another image build")
                fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # buildah leaves its storage mounted on itself.
                subprocess.run(["umount", self.storage / "overlay"], capture_output=True)

    def buildah(self, *arguments: str | Path) -> str:
        """A short buildah command."""
        return run_quietly(self._argv(arguments))

    def buildah_with_progress(self, describe: Callable[[int], str], *arguments: str | Path) -> None:
        """A long buildah command; its output is shown as it comes."""
        run_with_progress(self._argv(arguments), describe, echo=True)

    def stored(self, image: str) -> str:
        """How skopeo names an image of our storage."""
        return f"containers-storage:[overlay@{self.storage}+{self.root / 'run'}]{image}"

    def has(self, image: str) -> bool:
        return image in self.images()

    def images(self) -> list[str]:
        return self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def remove(self, images: Iterable[str]) -> None:
        """Remove names; layers that another image needs stay."""
        for image in images:
            self.buildah("rmi", image)
        self.buildah("rmi", "--prune")

    def _argv(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        storage: list[str | Path] = ["--root", self.storage, "--runroot", self.root / "run"]
        # The user's umask may be ours (077); files in an image must be readable by its own user.
        shell = ["sh", "-c", 'umask 022; exec "$@"', "sh"]
        environment = ["env", f"TMPDIR={self.temporary}"]
        return [*shell, *environment, "buildah", *storage, *arguments]
